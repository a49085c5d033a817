"""The verdict on a failed attempt: the rank that failed first, those that only followed, and what every rank was doing."""

from __future__ import annotations

from enum import Enum

from launcher.core.frozen import frozen


class Role(str, Enum):
    CAUSE = "cause"
    CONSEQUENCE = "consequence"  # it failed because another rank had failed, or did not come


class Confidence(str, Enum):
    CERTAIN = "certain"
    LIKELY = "likely"
    UNSURE = "unsure"


@frozen
class Failure:
    """A failure of one rank. A rank that still runs can be a cause too: others wait for it in vain."""

    global_rank: int
    role: Role
    what: str  # "ValueError: no such word", "SIGKILL (signal 9)", "out of memory", "does not take part"
    reason: str  # why it is taken for a cause or a consequence
    time_ns: int | None = None  # of the exception where one is known, else of the end of the process
    where: str | None = None  # "train.py:88 in step"
    status: int | None = (
        None  # as in subprocess; of a failed rank that did not exit, the one that it was about to exit with
    )
    traceback: str | None = None  # the last lines of it


@frozen
class StackGroup:
    """Ranks that were found at the same place."""

    global_ranks: tuple[int, ...]
    doing: str  # "in all_reduce (distributed_c10d.py:2935), called at train.py:40", "stopped (SIGSTOP)"
    frames: tuple[str, ...] = ()  # of the main thread, innermost first: "train.py:40 in step"


@frozen
class Verdict:
    culprit: int | None  # a global rank; None: unknown
    confidence: Confidence
    reason: str  # one sentence
    failures: tuple[Failure, ...] = ()  # the cause first, consequences after it in the order of their times
    stacks: tuple[StackGroup, ...] = ()  # the outlier first, the largest group last
    server: str | None = None  # the id of the server that is to blame, where it is no rank
    servers: tuple[str, ...] = ()  # all that are to blame, if several were lost at about the same time
    stood_still_s: float | None = None  # how long the launcher's machine was suspended, if servers gave it up for that
    scheduler: str | None = None  # how MindSpore's scheduler ended, where that is to blame: "SIGKILL (signal 9)"
    signature: str | None = None  # the same for the same failure; None where it says nothing of the program
    apart: tuple[tuple[str, str], ...] = ()  # ids of servers that do not reach each other
    loses_large: bool = False  # these servers can connect, and large packets between them are lost

    @property
    def is_loss(self) -> bool:
        """True if the connection to servers was lost: no failure of the program."""
        return (self.server is not None or self.stood_still_s is not None) and not self.apart

    @property
    def causes(self) -> tuple[Failure, ...]:
        """The failures that others followed from, the culprit's first."""
        found = [failure for failure in self.failures if failure.role is Role.CAUSE]
        return tuple(sorted(found, key=lambda failure: failure.global_rank != self.culprit))

    @property
    def signalled(self) -> Failure | None:
        """The first failure, if a signal that tlaunch forwarded to every rank is to blame; else None."""
        no_other = self.culprit is None and self.server is None and self.scheduler is None
        return next(iter(self.causes), None) if no_other and self.confidence is Confidence.CERTAIN else None
