"""Every process below this one: reap it, ask it to end, kill it.

Because agents are subreapers, a descendant can neither leave the tree by a double fork nor by a session of its own;
and "no child is left" means "nothing is left".
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

FIRST_KILL_AGAIN_S = 0.02
LAST_KILL_AGAIN_S = 1.0
KILL_PATIENCE_S = 10.0  # a process that is still there so long after SIGKILL waits inside the kernel


class NothingLeft(Exception):  # noqa: N818 - not an error: it ends a loop
    """There is no child, so there is no descendant either (where subreapers exist)."""


def reap() -> Iterator[tuple[int, int]]:
    """Collect every child that has ended: pid, and status as in subprocess. Does not block.

    Raises:
        NothingLeft: at the end, when there is no child at all.
    """
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            raise NothingLeft from None
        if pid == 0:
            return
        yield pid, os.waitstatus_to_exitcode(status)


def descendants() -> list[int]:
    """The pid of every living process below this one. Zombies are left out: they only wait to be reaped."""
    import psutil  # noqa: PLC0415 - needed only when something has to be ended

    living: list[int] = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                living.append(process.pid)
    return living


def signal_group(leader: int, number: int) -> bool:
    """Signal the process group that `leader`, a child not reaped yet, leads. False where there is none (yet)."""
    try:
        os.killpg(leader, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def signal_everything(leaders: Iterable[int], number: int) -> None:
    """Signal the groups of `leaders`, then every other descendant.

    Groups first: that is one atomic step for each, and needs no look around. A stopped process is continued, since it
    could not act on the signal otherwise.
    """
    reached = {leader for leader in leaders if signal_group(leader, number)}
    for leader in reached:
        signal_group(leader, signal.SIGCONT)
    for pid in descendants():
        with suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) not in reached:
                os.kill(pid, number)
                os.kill(pid, signal.SIGCONT)


class Ending:
    """The one rule by which processes are ended: SIGTERM, `grace_s` seconds, then SIGKILL until nothing is left.

    It never waits: its owner sleeps until `timeout_s` has passed or a child has ended, reaps, and calls `step`.
    """

    def __init__(
        self, grace_s: float, leaders: Callable[[], Iterable[int]], *, on_kill: Callable[[int], object] | None = None
    ) -> None:
        self._leaders = leaders
        self._on_kill = on_kill or (lambda _count: None)
        self._kill_again_s = FIRST_KILL_AGAIN_S
        self._killing_since: float | None = None
        self._deadline = time.monotonic() + grace_s
        self.killed = 0
        signal_everything(leaders(), signal.SIGTERM)

    @property
    def timeout_s(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    @property
    def in_vain(self) -> bool:
        """Whether something has outlived SIGKILL for so long that waiting for it makes no sense."""
        return self._killing_since is not None and time.monotonic() - self._killing_since > KILL_PATIENCE_S

    def kill_now(self) -> None:
        """Let no grace period pass."""
        if self._killing_since is None:
            self._deadline = time.monotonic()

    def step(self) -> None:
        """Kill whatever is left if it is time to. New descendants may appear meanwhile, hence again and again."""
        if self.timeout_s > 0:
            return
        if self._killing_since is None:
            self._killing_since = time.monotonic()
            self.killed = len(descendants())
            self._on_kill(self.killed)
        signal_everything(self._leaders(), signal.SIGKILL)
        self._deadline = time.monotonic() + self._kill_again_s
        self._kill_again_s = min(2 * self._kill_again_s, LAST_KILL_AGAIN_S)
