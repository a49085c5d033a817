"""The evidence of one rank, and its summary: did it fail, of what, when, and by whose fault. No I/O."""

from __future__ import annotations

import re
import signal
from dataclasses import replace

from launcher.core.frozen import frozen
from launcher.core.verdict import Confidence
from launcher.logs.tracebacks import FoundTraceback, may_be_uncaught
from launcher.supervise.diagnosis.child_errors import LAST_WORDS_LINES, UNCAUGHT, child_error
from launcher.supervise.diagnosis.error_patterns import SHOWN_CHARS, Kind, Symptom, of_exception, of_log
from launcher.supervise.diagnosis.failure_files import FailureRecord
from launcher.supervise.diagnosis.mindspore_errors import explained
from launcher.supervise.diagnosis.stack_parser import RankStack, crash_place
from launcher.supervise.rank_ends import LATE_S

# The exit code with which Open MPI ends a rank from inside, unseen by any hook, once a peer is gone.
OPEN_MPI_LOST_A_PEER = 14
LAST_ERROR_LINES = 5  # what a program says of its error, and a hint or two after it
_SAYS_WHY = re.compile(r"(?:\S+: )?(?:fatal |usage )?(?:error|fatal): \S", re.IGNORECASE)
NEVER_NS = 1 << 63
# Signals that come from outside: they say nothing about the program.
FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
SHELL_SIGNALLED = 128  # and the signal's number: the exit code of a shell whose command a signal ended
_ENDS_COMMANDS = FROM_OUTSIDE | {
    signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV, signal.SIGSYS,
    signal.SIGPIPE, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU, signal.SIGXFSZ,
}  # fmt: skip
_MAY_BE_HANDLED = "the program may have handled the exception whose traceback it printed"


@frozen
class RankEvidence:
    """The knowledge of one rank when it is judged. Times: wall clock, nanoseconds since 1970."""

    global_rank: int
    status: int | None  # as in subprocess; None: it still runs
    ended_ns: int | None  # when its end was noticed: it may have been earlier
    ended_index: int | None  # its place in the order in which ranks ended
    order_known: bool = True  # False: ranks that were noticed with it may have ended before it
    late_s: float = LATE_S  # by so much at most it ended sooner than it was noticed
    failure: FailureRecord | None = None  # written by its own hook
    logged: FoundTraceback | None = None
    above: tuple[FoundTraceback, ...] = ()  # tracebacks above that one, perhaps of processes that the rank had started
    log_tail: str = ""
    oom: bool = False  # the kernel's out-of-memory killer struck in its control group
    forwarded: tuple[int, ...] = ()  # signals that tlaunch handed to every rank
    open_mpi: bool = False  # it has a place in a world of MPI, whose library may be Open MPI
    meets_scheduler: bool = False  # its variables say where MindSpore's is
    disk_full: bool = False  # it left no record, and could not: the disk of its directory is full
    stack: RankStack | None = None  # of one that still runs
    step: int | None = None
    exit_reason: str | None = None  # why it could not be started
    server_index: int = 0
    clock_error_ns: int = 0  # by so much its times may be wrong against those of other servers
    heard: bool = True  # False: its server was lost, or not heard in time, and nothing is known of what it did

    @property
    def alive(self) -> bool:
        """True if it is known to run still."""
        return self.status is None and self.heard

    @property
    def seen(self) -> RankStack | None:
        """The stack, if it is known to run still."""
        return self.stack if self.alive else None


@frozen
class FailureSummary:
    evidence: RankEvidence
    symptom: Symptom
    what: str  # "ValueError: no such word", "SIGSEGV (signal 11)"
    signature: str | None
    where: str | None = None
    traceback: str | None = None
    tells_why: bool = True  # False: `what` is no more than an exit code, or a signal that came from outside
    at_most: Confidence = Confidence.CERTAIN  # highest confidence of a verdict that blames it
    doubt: str | None = None  # why it is not higher
    forwarded: bool = False  # it ended by a signal that every rank was sent

    @property
    def global_rank(self) -> int:
        return self.evidence.global_rank

    @property
    def exact(self) -> bool:
        """True if `time_ns` is that of the failure, and not of the noticed end."""
        return self.evidence.failure is not None and self.evidence.failure.time_ns is not None

    @property
    def time_ns(self) -> int:
        raised_ns = self.evidence.failure.time_ns if self.evidence.failure else None
        return (self.evidence.ended_ns or 0) if raised_ns is None else raised_ns

    @property
    def earliest_ns(self) -> int:
        """The earliest time of the failure, by the clock of the judge: an end may be noticed late."""
        late_ns = 0 if self.exact else int(self.evidence.late_s * 1e9)
        return self.time_ns - late_ns - self.evidence.clock_error_ns

    @property
    def latest_ns(self) -> int:
        """The latest time of the failure, by that clock."""
        return self.time_ns + self.evidence.clock_error_ns if self.time_ns else NEVER_NS

    @property
    def order(self) -> tuple[int, int]:
        index = self.evidence.ended_index
        return (self.time_ns, 1 << 62 if index is None else index)


def failed(evidence: RankEvidence) -> bool:
    if evidence.status is None:
        return evidence.failure is not None  # it has raised, and something keeps it: a thread, atexit, a destructor
    return evidence.status != 0


def summarize(evidence: RankEvidence) -> FailureSummary:
    """Return the summary of a rank that failed.

    It is made of what the hook recorded, a signal, the traceback in the log, or the exit code, in this order. If the
    program may have handled the traceback, no verdict is certain.
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
    if logged is None or logged.thread or logged.lines_after > LAST_WORDS_LINES or _says_more(evidence, logged):
        return _of_exit_code(evidence)
    return _of_logged(evidence, logged)


def _of_logged(evidence: RankEvidence, logged: FoundTraceback) -> FailureSummary:
    """Return the summary of a program whose last words may be that traceback."""
    failure, status = evidence.failure, _status(evidence)
    found = _of_exception(evidence, logged.type, logged.message, logged.where, logged.text)
    if failure is not None and failure.type == logged.type:  # it was being handled when the program left
        return found
    if logged.lines_after and (failure is not None or status != UNCAUGHT):
        return replace(
            found, what=f"exit code {status}, after {found.what}", at_most=Confidence.UNSURE, doubt=_MAY_BE_HANDLED
        )
    if logged.lines_after or failure is not None or status != UNCAUGHT or not may_be_uncaught(logged):
        return replace(found, at_most=Confidence.LIKELY, doubt=_MAY_BE_HANDLED)
    return found


def _says_more(evidence: RankEvidence, logged: FoundTraceback) -> bool:
    """Return whether the words of `sys.exit`, or a signal below a shell, say more than the traceback in the log."""
    if evidence.failure is None or not evidence.failure.message:
        return _signal_below_shell(evidence) is not None
    return evidence.failure.message.strip() != logged.message.strip()


def _signal_below_shell(evidence: RankEvidence) -> int | None:
    """Return the signal that ended a shell's command, from the shell's exit code; None if there was none."""
    number = (evidence.status or 0) - SHELL_SIGNALLED
    return number if number in _ENDS_COMMANDS else None


def _status(evidence: RankEvidence) -> int:
    """Return how a rank ended, or with which code it wants to exit."""
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
    told = explained(kind, message, traceback)
    what, where = told.what, told.where or where
    short_kind = what.partition(": ")[0].rpartition(".")[2]
    summary = FailureSummary(evidence, symptom, _one_line(what), _signature(short_kind, where), where, told.traceback)
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
    if number == signal.SIGTERM and evidence.meets_scheduler:  # which MindSpore sends to ranks once it misses one
        return FailureSummary(evidence, Symptom(Kind.PEER_FAILED, what), what, None)
    if number in FROM_OUTSIDE:
        return FailureSummary(evidence, symptom, what, None, tells_why=False)
    if number == signal.SIGABRT:
        symptom = _own_if_named(evidence, of_log(evidence.log_tail))
    where = crash_place(evidence.log_tail)
    return FailureSummary(evidence, symptom, what, _signature(name, where), where)


def _of_exit_code(evidence: RankEvidence) -> FailureSummary:
    """Return the summary of a program that chose to exit: what it printed before is doubtful evidence."""
    failure, found = evidence.failure, _own_if_named(evidence, of_log(evidence.log_tail))
    # A program that exits by itself leaves a record or a traceback, one that Open MPI ends does not.
    if evidence.open_mpi and not failure and evidence.status == OPEN_MPI_LOST_A_PEER and not found.evidence:
        symptom = Symptom(Kind.PEER_CLOSED, "ended by Open MPI")
        return FailureSummary(evidence, symptom, f"exit code {evidence.status}", None)
    if (number := _signal_below_shell(evidence)) in evidence.forwarded:
        return _of_signal(evidence, number)
    symptom = Symptom(found.kind, found.evidence, not found.consequence, found.named)
    status = _status(evidence)
    what = f"exit code {status}" if status >= 0 else f"{_name_of_signal(-status)} (signal {-status})"
    what += "; the disk of its run directory is full" if evidence.disk_full else ""
    said = (failure.message if failure else None) or _last_error(evidence.log_tail)
    shown = f"{what}: {_one_line(said)}" if said else what
    where = failure.where if failure else None
    # Without an exception the traceback is the way to the exit, and the log says more.
    handled = failure.traceback if failure and failure.type else None
    return FailureSummary(evidence, symptom, shown, _signature(what, where), where, handled, tells_why=bool(said))


def _last_error(log_tail: str) -> str:
    """Return the line by which a program tells why it exits, as argparse, click and many others begin it; empty without one."""
    lines = [line.strip() for line in log_tail.splitlines() if line.strip()]
    return next((line for line in reversed(lines[-LAST_ERROR_LINES:]) if _SAYS_WHY.match(line)), "")


def _name_of_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _own_if_named(evidence: RankEvidence, symptom: Symptom) -> Symptom:
    """Return a symptom that names the rank itself as its own fault."""
    return Symptom(Kind.OWN_FAULT, symptom.evidence) if evidence.global_rank in symptom.named else symptom


def _signature(what: str, where: str | None) -> str:
    place = where.partition(" in ")[0] if where else ""
    return f"{what} at {place}" if place else what


def _one_line(text: str) -> str:
    line = text.strip().partition("\n")[0].strip().removesuffix(":")
    return line if len(line) <= SHOWN_CHARS else f"{line[: SHOWN_CHARS - 3]}..."
