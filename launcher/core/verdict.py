"""The verdict on a failed attempt: the first failure, its consequences, and the stacks of all ranks."""

from __future__ import annotations

from enum import Enum

from launcher.core.frozen import frozen


class Role(str, Enum):
    CAUSE = "cause"
    CONSEQUENCE = "consequence"  # it failed because another rank had failed or was missing


class Confidence(str, Enum):
    CERTAIN = "certain"
    LIKELY = "likely"
    UNSURE = "unsure"


@frozen
class Failure:
    """The failure of one rank. The rank may still be running, for example if other ranks wait for it."""

    global_rank: int
    role: Role
    what: str  # "ValueError: no such word", "SIGKILL (signal 9)", "out of memory", "does not take part"
    reason: str  # why it counts as a cause or a consequence
    time_ns: int | None = None  # of the exception if known, else of the end of the process
    where: str | None = None  # "train.py:88 in step"
    status: int | None = None  # as in subprocess; for a failed rank that is still running, the expected exit status
    traceback: str | None = None  # its last lines


@frozen
class StackGroup:
    global_ranks: tuple[int, ...]
    doing: str  # "in all_reduce (distributed_c10d.py:2935), called at train.py:40", "stopped (SIGSTOP)"
    frames: tuple[str, ...] = ()  # of the main thread, innermost first: "train.py:40 in step"


@frozen
class Verdict:
    culprit: int | None  # a global rank; None: unknown
    confidence: Confidence
    reason: str  # one sentence
    failures: tuple[Failure, ...] = ()  # the cause first, then consequences in order of time
    stacks: tuple[StackGroup, ...] = ()  # outliers first, the largest group last
    server: str | None = None  # id of the server to blame, if the cause is not a rank
    servers: tuple[str, ...] = ()  # all servers to blame, if several were lost at about the same time
    stood_still_s: float | None = None  # how long the launcher's machine was suspended, if servers dropped it
    scheduler: str | None = None  # how MindSpore's scheduler ended, if it is to blame: "SIGKILL (signal 9)"
    signature: str | None = None  # equal for equal failures; None if the program is not the cause
    apart: tuple[tuple[str, str], ...] = ()  # ids of servers that cannot reach each other
    loses_large: bool = False  # these servers can connect, but lose large packets

    @property
    def is_loss(self) -> bool:
        """True if the attempt failed because servers were lost, and not because of the program."""
        return (self.server is not None or self.stood_still_s is not None) and not self.apart

    @property
    def causes(self) -> tuple[Failure, ...]:
        found = [failure for failure in self.failures if failure.role is Role.CAUSE]
        return tuple(sorted(found, key=lambda failure: failure.global_rank != self.culprit))

    @property
    def signalled(self) -> Failure | None:
        """The first failure, if its cause was a signal that tlaunch forwarded to all ranks. Otherwise None."""
        no_other = self.culprit is None and self.server is None and self.scheduler is None
        return next(iter(self.causes), None) if no_other and self.confidence is Confidence.CERTAIN else None
