"""The evidence of one rank, and the summary of its failure: error, location, time and kind. No I/O."""

from __future__ import annotations

import re
import signal
from contextlib import suppress
from dataclasses import replace
from itertools import groupby

from launcher.core.frozen import frozen
from launcher.core.verdict import Confidence
from launcher.logs.message_sections import CALL_STACK, NET_CODE, SECTION, sections_in
from launcher.logs.tracebacks import FoundTraceback, find_traceback, may_be_uncaught
from launcher.preload.frames import is_of_program
from launcher.supervise.diagnosis.child_errors import LAST_WORDS_LINES, UNCAUGHT, child_error
from launcher.supervise.diagnosis.error_patterns import SHOWN_CHARS, Kind, Symptom, of_exception, of_log
from launcher.supervise.diagnosis.failure_files import FailureRecord
from launcher.supervise.diagnosis.stack_parser import RankStack, crash_place
from launcher.supervise.rank_ends import FROM_OUTSIDE, LATE_S

# The exit code when Open MPI exits a rank after losing a peer. No Python hook runs in this case.
OPEN_MPI_LOST_A_PEER = 14
LAST_ERROR_LINES = 5  # a program's error message and a hint or two after it
_SAYS_WHY = re.compile(r"(?:\S+: )?(?:fatal |usage )?(?:error|fatal): \S", re.IGNORECASE)
NEVER_NS = 1 << 63
SHELL_SIGNALLED = 128  # a shell exits with 128 + N if signal N ended its command
_ENDS_COMMANDS = FROM_OUTSIDE | {
    signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV, signal.SIGSYS,
    signal.SIGPIPE, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU, signal.SIGXFSZ,
}  # fmt: skip
_MAY_BE_HANDLED = "the program may have handled the exception whose traceback it printed"


@frozen
class RankEvidence:
    """The evidence about one rank after a failure or hang. Times are wall-clock nanoseconds since 1970."""

    global_rank: int
    status: int | None  # as in subprocess; None: still running
    ended_ns: int | None  # when its exit was noticed
    ended_index: int | None  # its position in the order of exits
    order_known: bool = True  # False: ranks noticed at the same time may have exited before it
    late_s: float = LATE_S  # maximum delay between its exit and `ended_ns`
    failure: FailureRecord | None = None  # written by the hook in the rank
    logged: FoundTraceback | None = None
    above: tuple[FoundTraceback, ...] = ()  # tracebacks above `logged`, perhaps of child processes
    log_tail: str = ""
    oom: bool = False  # the out-of-memory killer killed a process in its control group
    forwarded: tuple[int, ...] = ()  # signals that tlaunch forwarded to every rank
    open_mpi: bool = False  # it is part of an MPI world, possibly of Open MPI
    meets_scheduler: bool = False  # its environment has the address of MindSpore's scheduler
    disk_full: bool = False  # there is no failure record, because the disk of its directory is full
    stack: RankStack | None = None  # if it is running
    step: int | None = None
    exit_reason: str | None = None  # why it could not be started
    server_index: int = 0
    clock_error_ns: int = 0  # maximum error of its times relative to other servers
    heard: bool = True  # False: its server was lost or did not report in time, so its state is unknown

    @property
    def alive(self) -> bool:
        """True if the rank is known to be running."""
        return self.status is None and self.heard

    @property
    def seen(self) -> RankStack | None:
        return self.stack if self.alive else None


@frozen
class FailureSummary:
    evidence: RankEvidence
    symptom: Symptom
    what: str  # "ValueError: no such word", "SIGSEGV (signal 11)"
    signature: str | None
    where: str | None = None
    traceback: str | None = None
    tells_why: bool = True  # False: `what` is only an exit code or a signal from another process
    at_most: Confidence = Confidence.CERTAIN  # highest confidence of a verdict that blames this rank
    doubt: str | None = None  # reason for a lower `at_most`
    forwarded: bool = False  # ended by a signal that tlaunch forwarded to every rank

    @property
    def global_rank(self) -> int:
        return self.evidence.global_rank

    @property
    def exact(self) -> bool:
        """True if `time_ns` is the time of the failure itself, not the time when the exit was noticed."""
        return self.evidence.failure is not None and self.evidence.failure.time_ns is not None

    @property
    def time_ns(self) -> int:
        raised_ns = self.evidence.failure.time_ns if self.evidence.failure else None
        return (self.evidence.ended_ns or 0) if raised_ns is None else raised_ns

    @property
    def earliest_ns(self) -> int:
        """The earliest possible time of the failure by the coordinator's clock."""
        late_ns = 0 if self.exact else int(self.evidence.late_s * 1e9)
        return self.time_ns - late_ns - self.evidence.clock_error_ns

    @property
    def latest_ns(self) -> int:
        """The latest possible time of the failure by the coordinator's clock."""
        return self.time_ns + self.evidence.clock_error_ns if self.time_ns else NEVER_NS

    @property
    def order(self) -> tuple[int, int]:
        index = self.evidence.ended_index
        return (self.time_ns, 1 << 62 if index is None else index)


def failed(evidence: RankEvidence) -> bool:
    if evidence.status is None:
        return evidence.failure is not None  # it has raised, but a thread, atexit or a destructor keeps it running
    return evidence.status != 0


def summarize(evidence: RankEvidence) -> FailureSummary:
    """Summarize the failure of a rank.

    The first available source is used: the hook's record, a signal, the traceback in the log, or the exit code. A
    verdict based on a logged exception is never certain if the program may have handled the exception.
    """
    failure, logged = evidence.failure, evidence.logged
    if evidence.exit_reason is not None:
        what = f"could not be started: {evidence.exit_reason}"
        return FailureSummary(evidence, Symptom(Kind.OWN_FAULT, what), what, what)
    if failure is not None and failure.kind == "exception":
        kind = failure.type or "exception"
        return _of_exception(evidence, kind, failure.message, failure.where, failure.traceback)
    if failure is None and evidence.status is not None and evidence.status < 0:
        return _of_signal(evidence, -evidence.status)
    if logged is None or logged.thread or logged.lines_after > LAST_WORDS_LINES:
        return _of_exit_code(evidence)
    if failure is not None and failure.message:
        says_more = failure.message.strip() != logged.message.strip()  # the message of `sys.exit`
    else:
        says_more = _signal_below_shell(evidence) is not None
    return _of_exit_code(evidence) if says_more else _of_logged(evidence, logged)


def _of_logged(evidence: RankEvidence, logged: FoundTraceback) -> FailureSummary:
    failure, status = evidence.failure, _status(evidence)
    found = _of_exception(evidence, logged.type, logged.message, logged.where, logged.text)
    if failure is not None and failure.type == logged.type:  # the program exited while handling it
        return found
    by_itself = failure is not None or status != UNCAUGHT
    if logged.lines_after and by_itself:
        what = f"exit code {status}, after {found.what}"
        return replace(found, what=what, at_most=Confidence.UNSURE, doubt=_MAY_BE_HANDLED)
    if logged.lines_after or by_itself or not may_be_uncaught(logged):
        return replace(found, at_most=Confidence.LIKELY, doubt=_MAY_BE_HANDLED)
    return found


def _signal_below_shell(evidence: RankEvidence) -> int | None:
    """Return the signal that ended a shell's command, or None if the shell's exit code does not show a signal."""
    number = (evidence.status or 0) - SHELL_SIGNALLED
    return number if number in _ENDS_COMMANDS else None


def _status(evidence: RankEvidence) -> int:
    """Return the exit status of a rank. If the rank is still running, use the status in its failure record."""
    if evidence.status is not None:
        return evidence.status
    return evidence.failure.status if evidence.failure else 1


def _of_exception(
    evidence: RankEvidence, kind: str, message: str, where: str | None, traceback: str | None
) -> FailureSummary:
    own = f"{kind}: {_one_line(message)}"
    child = child_error(kind, message, traceback, evidence.above)
    if child is not None:
        kind, message, traceback = child.found.type, child.found.message, child.found.text
        where = where if child.found.where is None else child.found.where
    symptom = _own_if_named(evidence, of_exception(kind, message, traceback or ""))
    what = f"{kind}: {_one_line(message)}"
    if SECTION.search(message):  # of MindSpore
        what, place, traceback = explained(kind, message, traceback)
        where = place or where
    short_kind = what.partition(": ")[0].rpartition(".")[2]
    summary = FailureSummary(evidence, symptom, _one_line(what), _signature(short_kind, where), where, traceback)
    if child is None or child.is_sure:
        return summary
    doubt = "the process may have handled the exception whose traceback it printed"
    return replace(summary, what=f"{own}, after {summary.what}", at_most=Confidence.UNSURE, doubt=doubt)


def _of_signal(evidence: RankEvidence, number: int) -> FailureSummary:
    if evidence.oom and number == signal.SIGKILL:
        what = "out of memory: killed by the kernel"
        return FailureSummary(evidence, Symptom(Kind.OWN_FAULT, what), what, "oom")
    name = _name_of_signal(number)
    what = f"{name} (signal {number})"
    symptom = Symptom(Kind.OWN_FAULT, what)
    if number in evidence.forwarded:
        what = f"{what}, which was forwarded to every rank"
        return FailureSummary(evidence, symptom, what, name, forwarded=True)
    if number == signal.SIGTERM and evidence.meets_scheduler:  # sent by MindSpore after it has lost a rank
        return FailureSummary(evidence, Symptom(Kind.PEER_FAILED, what), what, None)
    if number in FROM_OUTSIDE:
        return FailureSummary(evidence, symptom, what, None, tells_why=False)
    if number == signal.SIGABRT:
        symptom = _own_if_named(evidence, of_log(evidence.log_tail))
    where = crash_place(evidence.log_tail)
    return FailureSummary(evidence, symptom, what, _signature(name, where), where)


def _of_exit_code(evidence: RankEvidence) -> FailureSummary:
    """Summarize the failure of a rank from its exit code and the end of its log."""
    failure, found = evidence.failure, _own_if_named(evidence, of_log(evidence.log_tail))
    # A program that exits by itself leaves a record or a traceback. If Open MPI exits it, there is neither.
    if evidence.open_mpi and not failure and evidence.status == OPEN_MPI_LOST_A_PEER and not found.evidence:
        symptom = Symptom(Kind.PEER_CLOSED, "ended by Open MPI")
        return FailureSummary(evidence, symptom, f"exit code {evidence.status}", None)
    if (number := _signal_below_shell(evidence)) in evidence.forwarded:
        return _of_signal(evidence, number)
    symptom = Symptom(found.kind, found.evidence, not found.consequence, found.named)
    status = _status(evidence)
    what = f"exit code {status}" if status >= 0 else f"{_name_of_signal(-status)} (signal {-status})"
    what += "; the disk of its run directory is full" if evidence.disk_full else ""
    lines = [line.strip() for line in evidence.log_tail.splitlines() if line.strip()][-LAST_ERROR_LINES:]
    last_error = next((line for line in reversed(lines) if _SAYS_WHY.match(line)), "")  # of argparse or click
    said = (failure.message if failure else None) or last_error
    shown = f"{what}: {_one_line(said)}" if said else what
    where = failure.where if failure else None
    # Without an exception the traceback only leads to the exit call, and the log is more useful.
    handled = failure.traceback if failure and failure.type else None
    return FailureSummary(evidence, symptom, shown, _signature(what, where), where, handled, tells_why=bool(said))


def _name_of_signal(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"  # a real-time signal


def _own_if_named(evidence: RankEvidence, symptom: Symptom) -> Symptom:
    """Change the kind of a symptom to OWN_FAULT if its message blames the failed rank itself."""
    return Symptom(Kind.OWN_FAULT, symptom.evidence) if evidence.global_rank in symptom.named else symptom


def _signature(what: str, where: str | None) -> str:
    place = where.partition(" in ")[0] if where else ""
    return f"{what} at {place}" if place else what


def _one_line(text: str) -> str:
    line = text.strip().partition("\n")[0].strip().removesuffix(":")
    return line if len(line) <= SHOWN_CHARS else f"{line[: SHOWN_CHARS - 3]}..."


# --- MindSpore ---

# The first line of a message may only refer to one of the sections below it, each with a title between two lines of
# dashes: "Exception thrown from dataset pipeline. Refer to 'Dataset Pipeline Error Message'." The message of a kernel
# that could not be launched has no first line; it starts with a section.
_REFERS = re.compile(r"(?:Refer to|check) '(?P<section>[^'\n]{1,80})'")
_LEVEL = re.compile(r"^\[[A-Z]+\] ?")
_FRAME = re.compile(
    r"^# (?:\d+ )?In file (?P<file>[^\n]+?):(?P<line>\d+)\b.*\n?(?:[ \t]+(?!\(See file )[^\n]*\n?)*", re.MULTILINE
)


def explained(kind: str, message: str, traceback: str | None) -> tuple[str, str | None, str | None]:
    """Return the cause that a MindSpore exception reports, such as an exception in a dataset.

    The values are what happened ("KeyError: 'label of image 40'"); the line in the program's code, unless the traceback
    shows it; and the traceback to show.
    """
    before, sections = sections_in(message)
    raised = find_traceback(sections.get(CALL_STACK, ""))
    if raised is not None:
        return f"{raised.type}: {raised.message}", raised.where, raised.text
    first = next(iter(sections.values()), "").strip()  # a kernel that failed has no text before it
    line = (before or first).partition("\n")[0]
    refers = _REFERS.search(line)
    section = sections.get(refers["section"], "").strip() if refers else ""
    said = _LEVEL.sub("", section.partition("\n")[0]) or line
    what = f"{kind}: {said}"
    frames = [frame for frame in _FRAME.finditer(sections.get(NET_CODE, "")) if is_of_program(frame["file"])]
    if frames:
        of_lines = [list(same)[-1] for _, same in groupby(frames, lambda frame: frame.group("file", "line"))]
        where = f"{frames[-1]['file'].rpartition('/')[2]}:{frames[-1]['line']}"
        return what, where, "\n".join([*(frame[0].rstrip() for frame in of_lines), what])
    shown = f"{kind}: {before}"
    frames_before, found, _ = (traceback or "").rpartition(shown)
    if found and sections and not section:
        traceback = f"{frames_before}{shown if before else what}"
    return what, None, traceback
