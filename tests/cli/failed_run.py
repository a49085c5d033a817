"""The events of a run of two ranks that fails in both of its attempts."""

from launcher.core.events import (
    AgentEnded,
    AgentStarted,
    AttemptStarted,
    Cause,
    Judged,
    NotRestarting,
    RankEnded,
    RankStarted,
    Stopping,
)
from launcher.core.machine.proc import ProcessId
from launcher.core.verdict import Confidence, Failure, Role, Verdict

AGENT = ProcessId(1, 1, "another", "boot")


def verdict(what, traceback=None, *, culprit=1):
    cause = Failure(culprit, Role.CAUSE, what, "it was first by 3 ms", 1, "a.py:3 in f", 1, traceback)
    other = Failure(1 - culprit, Role.CONSEQUENCE, "ConnectionError: lost", "it lost its peer", 2, status=1)
    return Verdict(culprit, Confidence.LIKELY, "r", (cause, other))


def failed_once(first):
    return [
        AgentStarted(AGENT, None, 2), AttemptStarted(0, 1), RankStarted(0, 50), RankStarted(1, 51),
        RankEnded(1, 51, 1), Judged(first), Stopping(Cause.FAILED, 1, restarts=True), RankEnded(0, 50, 1),
    ]  # fmt: skip


def failed_twice(first, last=None, log_offset=0):
    return [
        *failed_once(first), AttemptStarted(1, 2), RankStarted(0, 60), RankStarted(1, 61, 0, log_offset),
        RankEnded(1, 61, 1), *([Judged(last)] if last else []), NotRestarting("it failed in the same way"),
        Stopping(Cause.FAILED, 1), RankEnded(0, 60, 1), AgentEnded(Cause.FAILED, 1),
    ]  # fmt: skip
