"""The stacks of a server's ranks, collected by its agent for a client that asks the run's coordinator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from launcher.core.codec import decode, encode
from launcher.core.frozen import frozen
from launcher.core.heartbeat import read_heartbeat
from launcher.core.messages import Stacks, TakeStacks
from launcher.core.run_dir import RunDir
from launcher.supervise.diagnosis.stack_parser import RankStack
from launcher.supervise.diagnosis.stacks import Gathering, Target


@frozen
class Located:
    """One rank that ran when it was asked."""

    global_rank: int
    pid: int
    step: int | None  # the last that it told
    stack: RankStack | None  # None: it has ended meanwhile


@frozen
class Part:
    """The answer of one server."""

    ranks: tuple[Located, ...] = ()
    trouble: str | None = None  # why it cannot tell


def part_from(content: Any) -> Part:
    """Return the answer that `Survey` has sent.

    Raises:
        ValueError: `content` is something else.
    """
    return decode(Part, content)


class Survey:
    """Any number of questions at once. Its owner calls `step` whenever `timeout_s` has passed; nothing here blocks.

    Nothing here raises either: ranks need their agent, whatever somebody asks.
    """

    def __init__(self, run_dir: RunDir, send: Callable[[Stacks], object]) -> None:
        self._run_dir = run_dir
        self._send = send
        self._open: dict[int, tuple[Mapping[int, int], Gathering]] = {}  # pids and answers by a question's number

    @property
    def timeout_s(self) -> float | None:
        """Seconds until the next step; None while no question is open."""
        return min((gathering.timeout_s for _, gathering in self._open.values()), default=None)

    def begin(self, asked: TakeStacks, running: Mapping[int, int]) -> None:
        """Ask those ranks of `running`, which has pids by global rank, that somebody wants to hear of."""
        try:
            pids = {global_rank: pid for global_rank, pid in running.items() if is_among(global_rank, asked.ranks)}
            targets = {rank: Target(pid, self._run_dir.stacks_log(rank)) for rank, pid in pids.items()}
            self._open[asked.number] = pids, Gathering(targets)
        except Exception as error:  # noqa: BLE001 - see above
            self._answer(asked.number, Part(trouble=repr(error)))

    def step(self) -> None:
        for number, (pids, gathering) in list(self._open.items()):
            try:
                gathering.step()
                if not gathering.done:
                    continue
                part = self._part(pids, gathering)
            except Exception as error:  # noqa: BLE001 - see above
                part = Part(trouble=repr(error))
            del self._open[number]
            with suppress(Exception):  # what it holds is lost then, and its answers are not
                gathering.close()
            self._answer(number, part)

    def close(self) -> None:
        """Let go of all questions. May be called again."""
        for _, gathering in self._open.values():
            gathering.close()
        self._open.clear()

    def _part(self, pids: Mapping[int, int], gathering: Gathering) -> Part:
        beats = {global_rank: read_heartbeat(self._run_dir.heartbeat(global_rank)) for global_rank in pids}
        steps = {global_rank: found.beat.step if found else None for global_rank, found in beats.items()}
        stacks = gathering.stacks()
        return Part(tuple(Located(rank, pid, steps[rank], stacks.get(rank)) for rank, pid in sorted(pids.items())))

    def _answer(self, number: int, part: Part) -> None:
        self._send(Stacks(number, encode(part)))


def is_among(global_rank: int, ranges: tuple[tuple[int, int], ...] | None) -> bool:
    """Return True if the rank is in one of the ranges, given by first and last rank; None stands for all ranks."""
    return ranges is None or any(first <= global_rank <= last for first, last in ranges)
