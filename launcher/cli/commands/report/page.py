"""A report with charts as one HTML file, without scripts or external files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from launcher import __version__
from launcher.cli.commands.report.charts import Chart, RankChart, charts_of, rank_chart, safe
from launcher.cli.commands.report.differences import differences, rules_of
from launcher.cli.commands.report.facts import RunFacts, mapping
from launcher.cli.commands.report.report_text import UNKNOWN, figures, notes
from launcher.cli.launch.recorded import as_words, recorded_options
from launcher.cli.text.columns import counted, duration
from launcher.cli.text.membership_text import change_text
from launcher.cli.text.verdict_text import NUMBER, culprit_failure, excerpt, headline, rank_list
from launcher.core.errors import UnreadableError
from launcher.core.events import Cause, RankStarted
from launcher.core.frozen import frozen
from launcher.core.resources import data_dir
from launcher.core.run_dir import RunDir, mark_of
from launcher.core.text import shell_word, shell_words
from launcher.core.verdict import Role
from launcher.logs.log_file import TAIL_BYTES, bytes_between, opened
from launcher.logs.terminal import one_line, printable, shortened
from launcher.preload.masking import masked_text
from launcher.runs.event_reader import EventReader
from launcher.runs.rank_logs import AttemptStarts


def to_html(runs: Sequence[RunFacts], to_svg: Callable[[Chart | RankChart], str]) -> str:
    """Return an HTML page about one run, or about several runs side by side. All content is escaped.

    `to_svg` returns a chart as an SVG element.
    """
    environment = Environment(
        loader=FileSystemLoader(data_dir("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: safe(value) if type(value) is str else value,  # not Markup
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "about": lambda facts: [(name, shortened(safe(value))) for name, value in about(facts)],
        "attempts": attempts_of,
        "rank_chart": rank_chart,
        "quoted": shell_word,
        "svg": lambda chart: Markup(to_svg(chart)),  # noqa: S704 - to_svg escapes its texts
        "when": when,
    }
    return environment.get_template("report.html.j2").render(
        title=runs[0].name if len(runs) == 1 else f"{len(runs)} runs side by side",
        alone=len(runs) == 1,
        runs=runs,
        figures=figures(runs),
        differences=list(differences(runs)),
        charts=list(charts_of(runs)),
        notes=notes(runs),
        made=f"Made by tlaunch {__version__} on {_moment(max(facts.state.looked_ns for facts in runs))}.",
    )


def when(facts: RunFacts) -> str:
    started_ns = facts.state.started_ns
    start = ", ".join(filter(None, (facts.state.host, _moment(started_ns) if started_ns else "never started")))
    return start + (f" to {_moment(facts.ended_ns)}" if facts.ended_ns else "")


def _moment(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns // 10**9, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def about(facts: RunFacts) -> Iterator[tuple[str, str]]:
    record = facts.record
    with suppress(UnreadableError):
        options, _ = recorded_options(facts.state.run_dir)
        yield "command", shell_words(("tlaunch", "run", *as_words(options)))
    yield "command of each rank", shell_words(facts.command) or UNKNOWN
    yield "working directory", str(record.get("cwd", UNKNOWN))
    cluster = mapping(record.get("cluster"))
    ranks, servers = str(facts.state.progress.rank_count), cluster.get("servers")
    ranks += f" on {counted(len(servers), 'server')}" if isinstance(servers, list) else ""
    yield "ranks", ranks + (f", from {cluster['source']}" if cluster.get("source") else "")
    if pairs := [f"{name}={value}" for name, value in mapping(record.get("layout")).items() if value]:
        yield "layout", " ".join(pairs)
    if rules := [f"{name}: {value}" for name, value in rules_of(facts)]:
        yield "rules", "; ".join(rules)
    yield from ((str(name), str(version)) for name, version in mapping(record.get("versions")).items())
    yield "run directory", str(facts.state.run_dir.root)


MAX_LINES = 15  # of a log


@frozen
class AttemptSummary:
    number: int
    took: str
    cause: str
    devices: str = ""  # of an elastic run: changes from the previous attempt
    verdict: str = ""
    confidence: str = ""  # of the verdict, with its reason
    culprit: int | None = None
    last_lines: tuple[str, ...] = ()  # the culprit's traceback, else the end of its log in this attempt
    log: str = ""  # path of the culprit's log
    consequences: str = ""  # ranks that failed because another rank had, and how


def attempts_of(facts: RunFacts) -> list[AttemptSummary]:
    """Summarize each attempt. Return an empty list if there is only one attempt and it has no verdict."""
    state, found = facts.state, []
    devices = {change.attempt: change_text(change) for change in facts.changes}
    logs = _spans_of_logs(state.run_dir)
    for attempt in state.attempts:
        verdict = attempt.verdict
        is_open = attempt.number == state.attempts[-1].number and state.report is None
        ended_ns = (facts.ended_ns or state.looked_ns) if is_open else attempt.ended_ns
        took = duration(max(0.0, (ended_ns - attempt.started_ns) / 1e9))
        cause = state.state.value if is_open else attempt.cause.value
        if verdict is None:
            is_missing = attempt.cause in {Cause.FAILED, Cause.HUNG}
            said = "no verdict was recorded" * is_missing
            found.append(AttemptSummary(attempt.number, took, cause, devices.get(attempt.number, ""), said))
            continue
        failure, culprit = culprit_failure(verdict), verdict.culprit
        followers = [failure for failure in verdict.failures if failure.role is Role.CONSEQUENCE]
        consequences, text, log = "", (failure and failure.traceback) or "", ""
        if followers:
            others = " and others" if len({NUMBER.sub("#", follower.what) for follower in followers}) > 1 else ""
            ranks = rank_list(follower.global_rank for follower in followers)
            consequences = f"{ranks}: {shortened(one_line(followers[0].what))}{others}"
        if culprit is not None:
            log = str(state.run_dir.train_log(culprit))
            text = text or _end_of_log(Path(log), *logs.get((culprit, attempt.number), (0, 0, b"")))
        text = masked_text(text)
        lines = text.rstrip().split("\n") if text.strip() and log else []
        last_lines = excerpt(lines) if failure and failure.traceback else lines[-MAX_LINES:]
        confidence = f"{verdict.confidence.value}: {failure.reason if failure else verdict.reason}"
        shown = tuple(shortened(printable(line)) for line in last_lines)
        values = (headline(verdict), confidence, culprit, shown, log, consequences)
        found.append(AttemptSummary(attempt.number, took, cause, devices.get(attempt.number, ""), *values))
    return found if len(found) > 1 or any(each.verdict for each in found) else []


# An attempt in a rank's log: offset of its text, offset of the next attempt's mark, and that mark.
_Span = tuple[int, int | None, bytes]


def _spans_of_logs(run_dir: RunDir) -> dict[tuple[int, int], _Span]:
    """Return the start and end offsets of each attempt's text in its log, keyed by global rank and attempt."""
    spans: dict[tuple[int, int], _Span] = {}
    latest: dict[int, int] = {}
    starts = AttemptStarts()
    for stamped in EventReader(run_dir.events).read():
        starts.apply(stamped.event)
        match stamped.event:
            case RankStarted(global_rank=rank, log_offset=text_offset):
                mark_offset, attempt = starts.of(rank)[-1]
                if rank in latest:
                    begin, _, _ = spans[rank, latest[rank]]
                    spans[rank, latest[rank]] = (begin, mark_offset, mark_of(attempt))
                latest[rank] = attempt
                spans.setdefault((rank, attempt), (text_offset, None, b""))
    return spans


def _end_of_log(path: Path, begin: int, end: int | None, mark: bytes) -> str:
    """Return the last part of the text that an attempt wrote to a log, or "" if the log was truncated."""
    with suppress(OSError), opened(path) as log:
        if end is None:
            end = os.fstat(log).st_size
        elif bytes_between(log, end, end + len(mark)) != mark:
            return ""  # truncated in that attempt, or later
        begin = begin if begin <= end else 0  # beyond the end: truncated in this attempt
        return bytes_between(log, max(begin, end - TAIL_BYTES), end).decode(errors="replace")
    return ""
