"""Collects the stacks of all ranks without ending or delaying any rank.

In a Python rank started by tlaunch, faulthandler appends the stacks to stacks.log when STACKS_SIGNAL arrives. Its
handler is C code that does not need the interpreter or its lock. Any other process would be ended by the signal, so it
is not sent one: py-spy shows its stacks if installed, else /proc shows what the process waits for.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from launcher.core.frozen import frozen
from launcher.core.machine.proc import Stat, catches, has_open, stat, status
from launcher.core.regular_files import open_regular
from launcher.core.verdict import StackGroup
from launcher.supervise.diagnosis.py_spy import PySpy, seen_from_outside, waited_for, working_directory
from launcher.supervise.diagnosis.stack_parser import RankStack, Sources, parse_faulthandler, understood

STACKS_SIGNAL = signal.SIGRTMAX - 3  # launcher/preload has the same
LIMIT_S = 1.5
DUMP_LOOK_EVERY_S = 0.01  # polling interval; a dump that has not grown since the last poll may be complete
LOCK_SHARE = 0.5  # share of the limit to wait for a lock, since a stopped process may hold it forever
AWAY_S = 0.25  # a poll that is later than this was delayed, and perhaps the ranks were, too
MAX_AWAY = 4  # number of times that a delay extends the limit
MAX_DUMP_BYTES = 4 << 20
NETWORK_S = 0.5  # for source lines on network file systems, when a user waits for the result
MAX_GROUPS = 4  # in a sentence
_LATER = (errno.EAGAIN, errno.EMFILE, errno.ENFILE)  # too many py-spies are running, or no descriptor is free


@frozen
class Target:
    """A rank whose stack is requested. `pid` must belong to the rank until the request has ended."""

    pid: int
    stacks_log: Path  # where its handler writes


class Gathering:
    """Collects stacks of ranks without blocking. Until `done` is True, call `step` whenever `timeout_s` has passed.

    Several processes may request stacks of the same ranks. They take turns by locking stacks.log.
    """

    def __init__(self, targets: Mapping[int, Target], limit_s: float = LIMIT_S, sources: Sources | None = None) -> None:
        now = time.monotonic()
        self._deadline = now + limit_s
        self._lock_until = now + LOCK_SHARE * limit_s
        self._next = now
        self._away = 0
        shared = sources or Sources()
        self._open = {global_rank: _Question(target, shared) for global_rank, target in sorted(targets.items())}
        self._answers: dict[int, RankStack] = {}

    @property
    def done(self) -> bool:
        return not self._open

    @property
    def timeout_s(self) -> float:
        return max(0.0, self._next - time.monotonic()) if self._open else 0.0

    def step(self) -> None:
        now = time.monotonic()
        late_s = now - self._next
        if late_s > AWAY_S and self._away < MAX_AWAY:
            # Otherwise a rank that was asked just before the delay would count as silent.
            self._away += 1
            self._deadline += late_s
            self._lock_until += late_s
        self._next = min(now + DUMP_LOOK_EVERY_S, self._deadline)
        for global_rank, question in list(self._open.items()):
            answer = question.step(now, patient=now < self._lock_until)
            if answer is None and now >= self._deadline:
                answer = question.give_up()
            if answer is not None or not question.open:
                self._end(global_rank, answer)

    def stacks(self) -> dict[int, RankStack]:
        """Return the stacks received so far, sorted by rank. Ranks that exited before answering are missing."""
        return dict(sorted(self._answers.items()))

    def close(self) -> None:
        """Cancel all open requests. May be called repeatedly."""
        for global_rank, question in list(self._open.items()):
            self._end(global_rank, question.give_up())

    def _end(self, global_rank: int, answer: RankStack | None) -> None:
        self._open.pop(global_rank).close()
        if answer is not None:
            self._answers[global_rank] = answer


def gather(targets: Mapping[int, Target], limit_s: float = LIMIT_S) -> dict[int, RankStack]:
    """Return the stacks of all targets. Block until all have answered or the time limit has passed."""
    gathering = Gathering(targets, limit_s, Sources(NETWORK_S))
    try:
        while not gathering.done:
            gathering.step()
            time.sleep(gathering.timeout_s)
    finally:
        gathering.close()
    return gathering.stacks()


def group(stacks: Mapping[int, RankStack], steps: Mapping[int, int | None]) -> tuple[StackGroup, ...]:
    """Group ranks by location, and sort the groups by size, smallest first.

    Of equally large groups, those outside collectives come first. Ranks in a collective must also be in the same step.
    """
    members: dict[tuple[str, bool], list[int]] = {}
    for global_rank, stack in sorted(stacks.items()):
        doing, step = stack.doing, steps.get(global_rank)
        if stack.in_collective and step is not None:
            what, comma, caller = doing.partition(", ")
            doing = f"{what} at step {step}{comma}{caller}"
        members.setdefault((doing, stack.in_collective or stack.may_wait), []).append(global_rank)
    ordered = sorted(members.items(), key=lambda item: (len(item[1]), item[0][1], item[1][0]))
    return tuple(StackGroup(tuple(ranks), doing, stacks[ranks[0]].frames) for (doing, _), ranks in ordered)


def sentence(groups: Iterable[StackGroup], *, whole: bool = True) -> str:
    """Summarize groups of ranks: "7 ranks wait in all_reduce at step 12; rank 3 is at a.py:8 in load".

    The largest group comes first. `whole` means that the groups contain all ranks.
    """
    ordered = sorted(groups, key=lambda each: -len(each.global_ranks))
    parts = [_clause(each, is_all=whole and len(ordered) == 1) for each in ordered[:MAX_GROUPS]]
    left = sum(len(each.global_ranks) for each in ordered[MAX_GROUPS:])
    return "; ".join([*parts, f"{left} elsewhere"] if left else parts)


def _clause(group: StackGroup, *, is_all: bool) -> str:
    number = len(group.global_ranks)
    one = number == 1
    who = f"rank {group.global_ranks[0]}" if one else f"{'all ' if is_all else ''}{number} ranks"
    if group.doing.startswith("in "):
        return f"{who} {'waits' if one else 'wait'} {group.doing.partition(', called ')[0]}"
    if group.doing.startswith("no "):
        return f"{who} {'has' if one else 'have'} {group.doing}"
    return f"{who} {'is' if one else 'are'} {group.doing}"


class _Question:
    def __init__(self, target: Target, sources: Sources) -> None:
        self._sources = sources
        self._pid = target.pid
        self._path = target.stacks_log
        self._log: int | None = None  # its descriptor, perhaps locked, once the rank was asked
        self._start = self._size = 0  # size of the log in bytes: before the request, and at the last poll
        self._grown_at = 0.0  # monotonic
        self._spy: PySpy | None = None
        self.open = True  # until the rank exits

    def step(self, now: float, *, patient: bool) -> RankStack | None:
        """Return the stack, or None if it has not arrived. If `patient`, wait for other requesting processes."""
        found = stat(self._pid)
        if found is None or found.exiting:
            self.open = False
            return self._read()
        if found.stopped:
            return self._read() or seen_from_outside(found)
        if self._spy is not None:
            return self._spy.step(found)
        return self._look(now) if self._log is not None else self._ask(found, patient=patient)

    def give_up(self) -> RankStack | None:
        """Describe the rank as well as possible after the time limit. Return None if the rank has exited."""
        if answer := self._read():
            return answer
        found = stat(self._pid)
        if found is None or found.exiting:
            return None
        if found.state == "D" or found.stopped or not catches(self._pid, STACKS_SIGNAL):
            return seen_from_outside(found)
        if self._log is None:
            return RankStack("silent", "silent: other processes were asking for its stack")
        why = "it blocks the signal for stacks" if _busy_with_signal(self._pid) else "it did not answer"
        return RankStack("silent", f"silent: {why}")

    def close(self) -> None:
        if self._log is not None:
            os.close(self._log)
            self._log = None
        if self._spy is not None:
            self._spy.close()

    def _ask(self, found: Stat, *, patient: bool) -> RankStack | None:
        """Send the signal that requests the stack, and return None. If that fails, return the state from /proc."""
        try:
            if not catches(self._pid, STACKS_SIGNAL):
                program = waited_for(found).pid  # perhaps a child of a shell
                self._spy = PySpy(program, self._sources) if PySpy.useful(program) else None
                return None if self._spy else seen_from_outside(found)
            log = open_regular(self._path)
        except OSError as error:
            return None if error.errno in _LATER else seen_from_outside(found)
        try:
            if patient:
                fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another process holds the lock
            os.close(log)
            return None
        except OSError:  # a file system without locks
            pass
        if not has_open(self._pid, log):  # its handler would write the dump to another file
            os.close(log)
            return seen_from_outside(found)
        self._log = log
        self._start = self._size = os.fstat(log).st_size
        try:
            os.kill(self._pid, STACKS_SIGNAL)
        except OSError as error:
            return RankStack("silent", f"silent: cannot signal it: {error.strerror}")
        return None

    def _look(self, now: float) -> RankStack | None:
        """Return the stack if the signal handler has finished writing it, else None."""
        assert self._log is not None
        size = os.fstat(self._log).st_size
        if size != self._size:
            self._size, self._grown_at = size, now
        if size == self._start or now - self._grown_at < DUMP_LOOK_EVERY_S or _busy_with_signal(self._pid):
            return None
        return self._read()

    def _read(self) -> RankStack | None:
        """Return the stack that was logged since the request, or None if there is none."""
        if self._log is None:
            return None
        dump = parse_faulthandler(os.pread(self._log, MAX_DUMP_BYTES, self._start))
        return None if dump is None else understood(dump, self._sources, working_directory(self._pid))


def _busy_with_signal(pid: int) -> bool:
    """Return True if the signal that requests stacks is pending or blocked. The signal is blocked while its handler runs."""
    fields = status(pid)
    return any(int(fields.get(name, "0"), 16) >> (STACKS_SIGNAL - 1) & 1 for name in ("SigPnd", "ShdPnd", "SigBlk"))
