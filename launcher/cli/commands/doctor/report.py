"""An examination of all servers, as a person reads it and as JSON.

SERVER    HOST  REACH   CLOCK  DEVICES
10.0.0.1  h1    ok      ok     note
10.0.0.2  h2    BREAKS  risky  note
ok everywhere: names, network, software, table, files, limits

breaks: h1 and h2 do not reach each other: ...
  hint: ...
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from launcher.cli.text.columns import aligned, counted
from launcher.core.errors import RefusedTableError, TlaunchError
from launcher.logs.terminal import one_line, shortened

if TYPE_CHECKING:
    from launcher.doctor.examine import Examination
    from launcher.doctor.finding import Finding, Severity, Topic

OK, UNKNOWN = "ok", "-"


def report_lines(examination: Examination, findings: Sequence[Finding]) -> Iterator[str]:
    """The table of servers, what was found, and one line that sums it up; safe to show."""
    topics = _topics(examination, findings)
    found = {finding.topic for finding in findings}
    yield from aligned(*_table(examination, findings, [topic for topic in topics if topic in found]))
    if well := [topic.value for topic in topics if topic not in found and examination.facts]:
        where = "everywhere" if len(examination.facts) == len(examination.cluster.servers) else "where servers answered"
        yield f"ok {where}: {', '.join(well)}"
    for finding in findings:
        yield ""
        yield from _finding_lines(finding)
    yield ""
    yield _summary(examination, findings)


def is_sound(findings: Sequence[Finding]) -> bool:
    """Whether nothing that was found would break a run."""
    return not any(finding.severity.value == "breaks" for finding in findings)


def report_to_json(examination: Examination, findings: Sequence[Finding]) -> dict[str, Any]:
    """All that was asked and found."""
    from launcher.doctor.facts import to_json

    servers = [
        {
            "server": index,
            "server_id": server.server_id,
            "trouble": examination.troubles.get(index),
            "facts": to_json(examination.facts[index]) if index in examination.facts else None,
            "reach": [to_json(attempt) for attempt in examination.reach.get(index, ())],
        }
        for index, server in enumerate(examination.cluster.servers)
    ]
    told = [to_json(finding) for finding in findings]
    return {"sound": is_sound(findings), "findings": told, "servers": servers, "links": to_json(examination.links)}


def refusal_to_json(error: TlaunchError) -> dict[str, Any]:
    """With the keys of an examination, which there was none of, and why; a refused table's problems as of `validate`."""
    from launcher.cli.commands.table.input import problem_to_json

    problems = error.problems if isinstance(error, RefusedTableError) else ()
    told = {"error": str(error), "exit_code": error.exit_code, "problems": [problem_to_json(one) for one in problems]}
    return {"sound": False, "findings": [], "servers": [], "links": None, **told}


def _table(
    examination: Examination, findings: Sequence[Finding], topics: Sequence[Topic]
) -> tuple[list[str], list[list[str]]]:
    """A column for each topic of which something was found: all of them would not fit on a narrow terminal."""
    header = ["SERVER", "HOST", *(topic.value.upper() for topic in topics)]
    rows = []
    for index, server in enumerate(examination.cluster.servers):
        facts = examination.facts.get(index)
        host = one_line(facts.hostname) if facts else UNKNOWN
        cells = [_cell(examination, findings, index, topic) for topic in topics]
        rows.append([one_line(server.server_id), host, *cells])
    return header, rows


def _topics(examination: Examination, findings: Sequence[Finding]) -> list[Topic]:
    """Of links nothing is known where nobody measured them, nor of whom a server reaches where it is alone.

    A server whose name nobody knows was not tried: that is told of as a name, and says nothing of the network.
    """
    from launcher.doctor.finding import Topic

    found = {finding.topic for finding in findings}
    unasked = {Topic.ANSWER, Topic.LINKS} | (set() if _all_reached(examination) else {Topic.REACH})
    if not examination.offsets_s:
        unasked.add(Topic.CLOCK)
    return [topic for topic in Topic if topic in found or topic not in unasked]


def _all_reached(examination: Examination) -> bool:
    attempts = [attempt for tried in examination.reach.values() for attempt in tried]
    return bool(attempts) and all(attempt.reached for attempt in attempts)


def _cell(examination: Examination, findings: Sequence[Finding], server: int, topic: Topic) -> str:
    severities = [one.severity for one in findings if one.topic is topic and server in one.servers]
    if severities:
        return _word(severities[0])  # the worst: findings come in that order
    return OK if server in examination.facts else UNKNOWN


def _word(severity: Severity) -> str:
    """What would break a run stands out without any colour."""
    return severity.value.upper() if severity.value == "breaks" else severity.value


def _finding_lines(finding: Finding) -> Iterator[str]:
    yield shortened(f"{_word(finding.severity)}: {one_line(finding.message)} [{finding.code}]")
    if finding.hint:
        yield shortened(f"  hint: {one_line(finding.hint)}")


def _summary(examination: Examination, findings: Sequence[Finding]) -> str:
    from launcher.doctor.finding import Severity

    servers = counted(len(examination.cluster.servers), "server")
    if len(examination.facts) < len(examination.cluster.servers):
        servers = f"{len(examination.facts)} of {servers}"
    counts = {severity: sum(one.severity is severity for one in findings) for severity in Severity}
    if not counts[Severity.BREAKS] and not counts[Severity.RISKY]:
        return f"{servers} examined: nothing stands in the way of a run"
    breaks = f"{counted(counts[Severity.BREAKS], 'problem')} would break a run"
    return f"{servers} examined: {breaks}, {counted(counts[Severity.RISKY], 'risk')}"
