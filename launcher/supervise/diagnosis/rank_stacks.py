"""The stacks of all ranks, asked for without ending or delaying any.

A Python rank that tlaunch started has faulthandler write its stacks to the end of stacks.log whenever STACKS_SIGNAL
comes; the C code of that handler needs neither the interpreter nor its lock. A process that has no handler would be
ended by the signal and never gets it: /proc shows what it waits for, or py-spy shows its stacks where it is installed.
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

__all__ = ["STACKS_SIGNAL", "Gathering", "RankStack", "Target", "gather", "group", "sentence"]

STACKS_SIGNAL = signal.SIGRTMAX - 3  # launcher/preload has the same
LIMIT_S = 1.5
DUMP_LOOK_EVERY_S = 0.01  # a dump that has not grown between two looks so far apart may be whole
LOCK_SHARE = 0.5  # of the limit: another process that asks may be stopped, and hold its lock for ever
AWAY_S = 0.25  # a look so much too late was held up, and ranks that had just been asked perhaps too
MAX_AWAY = 4  # times that the limit is extended by that: not where every look takes long
MAX_DUMP_BYTES = 4 << 20
NETWORK_S = 0.5  # for source lines on file systems that may not answer, where a person waits for them
MAX_GROUPS = 4  # in a sentence
_LATER = (errno.EAGAIN, errno.EMFILE, errno.ENFILE)  # another process asks, or no descriptors are left for now


@frozen
class Target:
    """One rank to ask. `pid` must be known to be the rank's: a child not reaped yet, or found again by its start."""

    pid: int
    stacks_log: Path  # where its handler writes


class Gathering:
    """Asks all targets at once. Its owner calls `step` whenever `timeout_s` has passed, until `done`; nothing blocks.

    Several may ask the same ranks: they take turns by a lock on stacks.log. `sources` reads the lines of programs.
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
        """Seconds until the next step makes sense; 0 when it is due, or when all is done."""
        return max(0.0, self._next - time.monotonic()) if self._open else 0.0

    def step(self) -> None:
        """Look after every rank that has not answered."""
        now = time.monotonic()
        late_s = now - self._next
        if late_s > AWAY_S and self._away < MAX_AWAY:
            # A rank that was asked just before this process was held up would be taken for silent.
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
        """Return the answers so far, by ascending global rank, without ranks that ended before they answered."""
        return dict(sorted(self._answers.items()))

    def close(self) -> None:
        """Give up whatever is not answered. May be called at any time, and again."""
        for global_rank, question in list(self._open.items()):
            self._end(global_rank, question.give_up())

    def _end(self, global_rank: int, answer: RankStack | None) -> None:
        self._open.pop(global_rank).close()
        if answer is not None:
            self._answers[global_rank] = answer


def gather(targets: Mapping[int, Target], limit_s: float = LIMIT_S) -> dict[int, RankStack]:
    """Return what every target is doing. Blocks until all have answered, `limit_s` + `NETWORK_S` seconds if not held up."""
    gathering = Gathering(targets, limit_s, Sources(NETWORK_S))
    try:
        while not gathering.done:
            gathering.step()
            time.sleep(gathering.timeout_s)
    finally:
        gathering.close()
    return gathering.stacks()


def group(stacks: Mapping[int, RankStack], steps: Mapping[int, int | None]) -> tuple[StackGroup, ...]:
    """Group ranks at the same place: the smallest group first, and of two, the one that does not wait for others.

    Ranks that wait for others are at the same place only in the same step; elsewhere, steps do not part them.
    """
    members: dict[tuple[str, bool], list[int]] = {}
    for global_rank, stack in sorted(stacks.items()):
        doing, step = stack.doing, steps.get(global_rank)
        if stack.in_collective and step is not None:
            what, comma, caller = doing.partition(", ")
            doing = f"{what} at step {step}{comma}{caller}"
        members.setdefault((doing, stack.in_collective), []).append(global_rank)
    ordered = sorted(members.items(), key=lambda item: (len(item[1]), item[0][1], item[1][0]))
    return tuple(StackGroup(tuple(ranks), doing, stacks[ranks[0]].frames) for (doing, _), ranks in ordered)


def sentence(groups: Iterable[StackGroup], *, whole: bool = True) -> str:
    """Return one line, the largest group first: "7 ranks wait in all_reduce at step 12; rank 3 is at a.py:8 in load".

    `whole`: these are all ranks that were to be asked.
    """
    ordered = sorted(groups, key=lambda each: -len(each.global_ranks))
    count = sum(len(each.global_ranks) for each in ordered) if whole else None
    parts = [_clause(each, count) for each in ordered[:MAX_GROUPS]]
    left = sum(len(each.global_ranks) for each in ordered[MAX_GROUPS:])
    return "; ".join([*parts, f"{left} elsewhere"] if left else parts)


def _clause(group: StackGroup, count: int | None) -> str:
    """Return what a group does. `count`: of all ranks; None where there are others."""
    number = len(group.global_ranks)
    one = number == 1
    who = f"rank {group.global_ranks[0]}" if one else f"{'all ' if number == count else ''}{number} ranks"
    if group.doing.startswith("in "):
        return f"{who} {'waits' if one else 'wait'} {group.doing.partition(', called ')[0]}"
    if group.doing.startswith("no "):
        return f"{who} {'has' if one else 'have'} {group.doing}"
    return f"{who} {'is' if one else 'are'} {group.doing}"


class _Question:
    """One rank that is asked for its stack."""

    def __init__(self, target: Target, sources: Sources) -> None:
        self._sources = sources
        self._pid = target.pid
        self._path = target.stacks_log
        self._log: int | None = None  # its descriptor, perhaps locked, once the rank was asked
        self._start = self._size = 0  # bytes of the log: before the question, and at the last look
        self._grown_at = 0.0  # monotonic
        self._spy: PySpy | None = None
        self.open = True  # until the rank ends

    def step(self, now: float, *, patient: bool) -> RankStack | None:
        """Return the answer, if there is one; `patient`: wait for other processes that ask the same rank."""
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
        """Return what can be said when the time is over; None if the rank has ended."""
        if answer := self._read():
            return answer
        found = stat(self._pid)
        if found is None or found.exiting:
            return None
        if found.state == "D" or found.stopped or not catches(self._pid, STACKS_SIGNAL):
            return seen_from_outside(found)
        if self._log is None:
            return RankStack("silent", "silent: others asked it all the time")
        blocked = _busy_with_signal(self._pid)
        return RankStack("silent", f"silent: {'it blocks the signal that asks' if blocked else 'it gave no answer'}")

    def close(self) -> None:
        """Let go of the lock, and of py-spy. May be called again."""
        if self._log is not None:
            os.close(self._log)
            self._log = None
        if self._spy is not None:
            self._spy.close()

    def _ask(self, found: Stat, *, patient: bool) -> RankStack | None:
        """Send the signal, unless the rank would not understand it. None: the answer is to come."""
        try:
            if not catches(self._pid, STACKS_SIGNAL):
                program = waited_for(found).pid  # perhaps below a shell
                self._spy = PySpy(program, self._sources) if PySpy.useful(program) else None
                return None if self._spy else seen_from_outside(found)
            log = _opened(self._path, locked=patient)
        except OSError as error:
            return None if error.errno in _LATER else seen_from_outside(found)
        if not has_open(self._pid, log):  # whatever has the descriptor now would get the dump
            os.close(log)
            return seen_from_outside(found)
        self._log = log
        self._start = self._size = os.fstat(log).st_size
        try:
            os.kill(self._pid, STACKS_SIGNAL)
        except OSError as error:
            return RankStack("silent", f"silent: it cannot be asked: {error.strerror}")
        return None

    def _look(self, now: float) -> RankStack | None:
        """Return the answer once it has not grown for a while, unless the handler is still at work."""
        assert self._log is not None
        size = os.fstat(self._log).st_size
        if size != self._size:
            self._size, self._grown_at = size, now
        if size == self._start or now - self._grown_at < DUMP_LOOK_EVERY_S or _busy_with_signal(self._pid):
            return None
        return self._read()

    def _read(self) -> RankStack | None:
        """Return what the log has got since the question; None if that is nothing to understand."""
        if self._log is None:
            return None
        dump = parse_faulthandler(os.pread(self._log, MAX_DUMP_BYTES, self._start))
        return None if dump is None else understood(dump, self._sources, working_directory(self._pid))


def _opened(path: Path, *, locked: bool) -> int:
    """Return a descriptor of the log, with its lock. Raises BlockingIOError where another process asks this rank."""
    log = open_regular(path)
    try:
        if locked:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(log)
        raise
    except OSError:  # a file system without locks
        pass
    return log


def _busy_with_signal(pid: int) -> bool:
    """Return whether the signal waits for its turn, or its handler is at work: till then the signal stays blocked."""
    fields = status(pid)
    return any(int(fields.get(name, "0"), 16) >> (STACKS_SIGNAL - 1) & 1 for name in ("SigPnd", "ShdPnd", "SigBlk"))
