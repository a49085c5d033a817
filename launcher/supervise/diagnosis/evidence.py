"""The evidence of one rank, and its summary: did it fail, of what, when, and by whose fault. No I/O."""

from __future__ import annotations

import re
import signal
from typing import Protocol

from launcher.core.frozen import frozen
from launcher.logs.tracebacks import FoundTraceback
from launcher.supervise.diagnosis.error_patterns import SHOWN_CHARS, Kind, Symptom, of_exception, of_log
from launcher.supervise.diagnosis.exit_order import LATE_S
from launcher.supervise.diagnosis.failure_files import FailureRecord

# A traceback with more output after it is one that the program survived.
LAST_WORDS_LINES = 20
# With which Open MPI ends a rank from inside, where no hook sees it, once a peer is gone. Why, only mpirun is told.
OPEN_MPI_LOST_A_PEER = 14
NEVER_NS = 1 << 63
# Signals that come from outside: they tell nothing of the program.
FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
# Of faulthandler, which Python programs have enabled: "  File "train.py", line 40 in step", innermost first.
_CRASH_FRAME = re.compile(r'Current thread .*\n  File "(?:.*/)?(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)')


class SeenStack(Protocol):
    """The stack of a living rank: the part of `launcher.supervise.diagnosis.stacks.RankStack` that is needed here."""

    @property
    def state(self) -> str: ...  # "running", "stopped", "uninterruptible" or "silent"
    @property
    def in_collective(self) -> bool: ...
    @property
    def place(self) -> str | None: ...  # "data.py:88 in load"
    @property
    def doing(self) -> str: ...  # one phrase


@frozen
class RankEvidence:
    """All that is known of one rank when it is judged. Times: wall clock, nanoseconds since 1970."""

    global_rank: int
    status: int | None  # as in subprocess; None: it still runs
    ended_ns: int | None  # when its end was noticed: it may have been earlier
    ended_index: int | None  # its place in the order in which ranks ended
    order_known: bool = True  # False: ranks that were noticed with it may have ended before it
    late_s: float = LATE_S  # by so much at most it ended sooner than it was noticed
    failure: FailureRecord | None = None  # its own hook's words
    logged: FoundTraceback | None = None
    log_tail: str = ""
    oom: bool = False  # the kernel's out-of-memory killer struck in its control group
    open_mpi: bool = False  # it has a place in a world of MPI, whose library may be Open MPI
    disk_full: bool = False  # it left no record, and could not have: that of its directory has no room
    stack: SeenStack | None = None  # of one that still runs
    step: int | None = None
    exit_reason: str | None = None  # why it could not be started
    server_index: int = 0
    clock_error_ns: int = 0  # by so much its times may be wrong against those of other servers
    heard: bool = True  # False: its server was lost, or not heard in time, and nothing is known of what it did

    @property
    def alive(self) -> bool:
        """Return whether it is known to run still."""
        return self.status is None and self.heard


@frozen
class FailureSummary:
    """The summary of a failed rank's evidence."""

    evidence: RankEvidence
    symptom: Symptom
    what: str  # "ValueError: no such word", "SIGSEGV (signal 11)"
    signature: str | None
    where: str | None = None
    traceback: str | None = None

    @property
    def global_rank(self) -> int:
        return self.evidence.global_rank

    @property
    def exact(self) -> bool:
        """Return whether its time is that of the failure, and not of the noticed end."""
        return self.evidence.failure is not None and self.evidence.failure.time_ns is not None

    @property
    def time_ns(self) -> int:
        failure = self.evidence.failure
        if failure is not None and failure.time_ns is not None:
            return failure.time_ns
        return self.evidence.ended_ns or 0

    @property
    def earliest_ns(self) -> int:
        """It failed no sooner, by the clock of who judges: an end may be noticed late."""
        late_ns = 0 if self.exact else int(self.evidence.late_s * 1e9)
        return self.time_ns - late_ns - self.evidence.clock_error_ns

    @property
    def latest_ns(self) -> int:
        """It failed no later, by that clock."""
        return self.time_ns + self.evidence.clock_error_ns if self.time_ns else NEVER_NS

    @property
    def order(self) -> tuple[int, int]:
        index = self.evidence.ended_index
        return (self.time_ns, 1 << 62 if index is None else index)


def failed(evidence: RankEvidence) -> bool:
    """Return whether the rank failed."""
    if evidence.status is None:
        return evidence.failure is not None  # it has raised, and something keeps it: a thread, atexit, a destructor
    return evidence.status != 0


def summarize(evidence: RankEvidence) -> FailureSummary:
    """Return the summary of a rank that failed. What is most direct decides: hook, traceback, signal or exit code."""
    if evidence.exit_reason is not None:
        return _own(evidence, f"could not be started: {evidence.exit_reason}")
    if evidence.failure is not None and evidence.failure.kind == "exception":
        return _of_hook(evidence, evidence.failure)
    if signal_of(evidence) is not None and evidence.failure is None:
        return _of_signal(evidence)
    if evidence.logged is not None and evidence.logged.lines_after <= LAST_WORDS_LINES and not evidence.logged.thread:
        return _of_log(evidence, evidence.logged)
    return _of_exit_code(evidence)


def signal_of(evidence: RankEvidence) -> int | None:
    """Return the signal that ended it."""
    return -evidence.status if evidence.status is not None and evidence.status < 0 else None


def name_of_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def file_and_line(where: str | None) -> str | None:
    """Without the function: "train.py:88"."""
    return where.partition(" in ")[0] if where else None


def _of_hook(evidence: RankEvidence, failure: FailureRecord) -> FailureSummary:
    kind = failure.type or "exception"
    symptom = of_exception(kind, failure.message, failure.traceback or "")
    return _of_exception(evidence, symptom, f"{kind}: {failure.message}", failure.where, failure.traceback)


def _of_log(evidence: RankEvidence, logged: FoundTraceback) -> FailureSummary:
    symptom = of_exception(logged.type, logged.message, logged.text)
    return _of_exception(evidence, symptom, f"{logged.type}: {logged.message}", logged.where, logged.text)


def _of_exception(
    evidence: RankEvidence, symptom: Symptom, what: str, where: str | None, traceback: str | None
) -> FailureSummary:
    kind = what.partition(": ")[0].rpartition(".")[2]
    if evidence.global_rank in symptom.named:
        symptom = Symptom(Kind.OWN_FAULT, symptom.evidence)
    return FailureSummary(evidence, symptom, _one_line(what), _signature(kind, where), where, traceback)


def _of_signal(evidence: RankEvidence) -> FailureSummary:
    number = signal_of(evidence) or 0
    if evidence.oom and number == signal.SIGKILL:
        return _own(evidence, "out of memory: killed by the kernel", "oom")
    what = f"{name_of_signal(number)} (signal {number})"
    if number in FROM_OUTSIDE:
        return _own(evidence, what, None)
    where = _crash_place(evidence.log_tail)
    symptom = _of_tail(evidence) if number == signal.SIGABRT else Symptom(Kind.OWN_FAULT, what)
    return FailureSummary(evidence, symptom, what, _signature(name_of_signal(number), where), where)


def _of_exit_code(evidence: RankEvidence) -> FailureSummary:
    """Words in a log that a program printed before it chose to exit are doubtful."""
    failure, found = evidence.failure, _of_tail(evidence)
    if not found.evidence and _ended_by_open_mpi(evidence):
        return FailureSummary(
            evidence, Symptom(Kind.PEER_CLOSED, "ended by Open MPI"), f"exit code {evidence.status}", None
        )
    symptom = Symptom(found.kind, found.evidence, not found.consequence, found.named)
    status = evidence.status if evidence.status is not None else failure.status if failure else 1
    what = f"exit code {status}" if status >= 0 else f"{name_of_signal(-status)} (signal {-status})"
    what += "; the disk of its run directory is full" if evidence.disk_full else ""
    shown = f"{what}: {_one_line(failure.message)}" if failure and failure.message else what
    where = failure.where if failure else None
    handled = failure.traceback if failure and failure.type else None  # else the way to the exit: the log tells more
    return FailureSummary(evidence, symptom, shown, _signature(what, where), where, handled)


def _ended_by_open_mpi(evidence: RankEvidence) -> bool:
    """Return whether Open MPI ended it: a program that exits by itself says so in its record, or has left a traceback."""
    return evidence.open_mpi and evidence.failure is None and evidence.status == OPEN_MPI_LOST_A_PEER


def _own(evidence: RankEvidence, what: str, signature: str | None = "") -> FailureSummary:
    return FailureSummary(evidence, Symptom(Kind.OWN_FAULT, what), what, what if signature == "" else signature)


def _of_tail(evidence: RankEvidence) -> Symptom:
    symptom = of_log(evidence.log_tail)
    return Symptom(Kind.OWN_FAULT, symptom.evidence) if evidence.global_rank in symptom.named else symptom


def _crash_place(tail: str) -> str | None:
    found = _CRASH_FRAME.search(tail)
    return f"{found['file']}:{found['line']} in {found['function']}" if found else None


def _signature(what: str, where: str | None) -> str:
    place = file_and_line(where)
    return f"{what} at {place}" if place else what


def _one_line(text: str) -> str:
    line = text.strip().partition("\n")[0].strip().removesuffix(":")
    return line if len(line) <= SHOWN_CHARS else f"{line[: SHOWN_CHARS - 3]}..."
