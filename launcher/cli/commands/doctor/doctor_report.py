"""Render an examination of all servers as text or JSON.

SERVER    HOST  REACH   CLOCK  DEVICES
10.0.0.1  h1    ok      ok     note
10.0.0.2  h2    BREAKS  risky  note
ok everywhere: names, network, software, table, files, limits

breaks: h1 and h2 cannot reach each other: ...
  hint: ...
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from launcher.cli.commands.table.table_files import problem_to_json
from launcher.cli.text.columns import aligned, counted
from launcher.cli.text.style import ACTIVE, ERROR, GOOD, PLAIN, WARNING, Look, Screen
from launcher.core.codec import encode
from launcher.core.errors import RefusedTableError, TlaunchError
from launcher.doctor.examine import Examination
from launcher.doctor.finding import Finding, Severity, Topic
from launcher.logs.terminal import one_line, shortened

OK, UNKNOWN = "ok", "-"
_LOOKS = {OK: GOOD, "BREAKS": ERROR, Severity.RISKY.value: WARNING, Severity.NOTE.value: ACTIVE}


def report_lines(examination: Examination, findings: Sequence[Finding], screen: Screen = PLAIN) -> Iterator[str]:
    """Yield the lines of the report: the server table, the findings and a summary."""

    def painted(word: str) -> str:
        return screen.paint(word, _LOOKS.get(word, Look()))

    topics = _topics(examination, findings)
    found = {finding.topic for finding in findings}
    # Columns only for topics with findings, to fit on a narrow terminal.
    shown = [topic for topic in topics if topic in found]
    rows = []
    for index, server in enumerate(examination.cluster.servers):
        facts = examination.facts.get(index)
        rows.append([one_line(server.server_id), one_line(facts.hostname) if facts else UNKNOWN])
        for topic in shown:
            severities = [one.severity for one in findings if one.topic is topic and index in one.servers]
            # Findings are sorted: the first severity is the worst.
            rows[-1].append(_word(severities[0]) if severities else OK if facts else UNKNOWN)
    names = [topic.value.upper() for topic in shown]
    yield from aligned(["SERVER", "HOST", *names], rows, paint=dict.fromkeys(names, painted))
    if well := [topic.value for topic in topics if topic not in found and examination.facts]:
        where = "everywhere" if len(examination.facts) == len(examination.cluster.servers) else "where servers answered"
        yield screen.wrapped(f"ok {where}: {', '.join(well)}").replace(OK, painted(OK), 1)
    for finding in findings:
        yield ""
        word = _word(finding.severity)
        said = screen.wrapped(shortened(f"{word}: {one_line(finding.message)} [{finding.code}]"))
        yield said.replace(word, painted(word), 1)
        if finding.hint:
            hint = screen.wrapped(shortened(f"  hint: {one_line(finding.hint)}"))
            yield hint.replace("hint", screen.paint("hint", ACTIVE), 1)
    yield ""
    yield screen.paint(screen.wrapped(_summary(examination, findings)), GOOD if is_sound(findings) else ERROR)


def is_sound(findings: Sequence[Finding]) -> bool:
    return not any(finding.severity is Severity.BREAKS for finding in findings)


def report_to_json(examination: Examination, findings: Sequence[Finding]) -> dict[str, Any]:
    servers = [
        {
            "server": index,
            "server_id": server.server_id,
            "trouble": examination.troubles.get(index),
            "facts": encode(examination.facts[index]) if index in examination.facts else None,
            "reach": [encode(attempt) for attempt in examination.reach.get(index, ())],
        }
        for index, server in enumerate(examination.cluster.servers)
    ]
    return {
        "sound": is_sound(findings),
        "findings": encode(tuple(findings)),
        "servers": servers,
        "links": encode(examination.links),
    }


def refusal_to_json(error: TlaunchError) -> dict[str, Any]:
    """Return the JSON report for an error that prevented all checks."""
    problems = error.problems if isinstance(error, RefusedTableError) else ()
    why = {"error": str(error), "exit_code": error.exit_code, "problems": [problem_to_json(one) for one in problems]}
    return {"sound": False, "findings": [], "servers": [], "links": None, **why}


def _topics(examination: Examination, findings: Sequence[Finding]) -> list[Topic]:
    """Return the topics that were examined or have findings. The report shows only these topics.

    Links may not have been measured, and a single server has no connections. A server whose name cannot be resolved was
    not tested: its finding is about names, not about the network.
    """
    attempts = [attempt for tried in examination.reach.values() for attempt in tried]
    is_known = {
        Topic.ANSWER: False,
        Topic.LINKS: False,
        Topic.REACH: bool(attempts) and all(attempt.reached for attempt in attempts),
        Topic.CLOCK: bool(examination.offsets_s),
    }
    found = {finding.topic for finding in findings}
    return [topic for topic in Topic if topic in found or is_known.get(topic, True)]


def _word(severity: Severity) -> str:
    """Return the severity as text. The word "breaks" is in upper case to stand out without colours."""
    word: str = severity.value
    return word.upper() if severity is Severity.BREAKS else word


def _summary(examination: Examination, findings: Sequence[Finding]) -> str:
    servers = counted(len(examination.cluster.servers), "server")
    if len(examination.facts) < len(examination.cluster.servers):
        servers = f"{len(examination.facts)} of {servers}"
    counts = {severity: sum(one.severity is severity for one in findings) for severity in Severity}
    if not counts[Severity.BREAKS] and not counts[Severity.RISKY]:
        return f"{servers} examined: no problem would break a run"
    breaks = f"{counted(counts[Severity.BREAKS], 'problem')} would break a run"
    return f"{servers} examined: {breaks}, {counted(counts[Severity.RISKY], 'risk')}"
