"""Collects the stacks of a server's ranks when a client of the coordinator asks for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from launcher.control.messages import Stacks, TakeStacks
from launcher.core.codec import encode
from launcher.core.frozen import frozen
from launcher.core.heartbeat import read_heartbeat
from launcher.core.run_dir import RunDir
from launcher.supervise.diagnosis.rank_stacks import Gathering, Target
from launcher.supervise.diagnosis.stack_parser import RankStack


@frozen
class Located:
    """The stack of a rank that was running when stacks were requested."""

    global_rank: int
    pid: int
    step: int | None  # the last reported step
    stack: RankStack | None  # None: it has ended since


@frozen
class SurveyAnswer:
    ranks: tuple[Located, ...] = ()
    trouble: str | None = None  # why there are no stacks


class StackCollection:
    """Answers requests for the stacks of ranks. Call `step` each time `timeout_s` has passed.

    Never blocks or raises, because ranks depend on their agent.
    """

    def __init__(self, run_dir: RunDir, send: Callable[[Stacks], object]) -> None:
        self._run_dir = run_dir
        self._send = send
        self._open: dict[int, tuple[Mapping[int, int], Gathering]] = {}  # by request number: pids, and stacks so far

    @property
    def timeout_s(self) -> float | None:
        return min((gathering.timeout_s for _, gathering in self._open.values()), default=None)

    def begin(self, asked: TakeStacks, running: Mapping[int, int]) -> None:
        try:
            pids = {
                rank: pid
                for rank, pid in running.items()
                if asked.ranks is None or any(first <= rank <= last for first, last in asked.ranks)
            }
            targets = {rank: Target(pid, self._run_dir.stacks_log(rank)) for rank, pid in pids.items()}
            self._open[asked.number] = pids, Gathering(targets)
        except Exception as error:  # noqa: BLE001 - see above
            self._answer(asked.number, SurveyAnswer(trouble=repr(error)))

    def step(self) -> None:
        for number, (pids, gathering) in list(self._open.items()):
            try:
                gathering.step()
                if not gathering.done:
                    continue
                stacks = gathering.stacks()
                beats = {rank: read_heartbeat(self._run_dir.heartbeat(rank)) for rank in sorted(pids)}
                steps = {rank: found.beat.step if found else None for rank, found in beats.items()}
                ranks = (Located(rank, pids[rank], step, stacks.get(rank)) for rank, step in steps.items())
                answer = SurveyAnswer(tuple(ranks))
            except Exception as error:  # noqa: BLE001 - see above
                answer = SurveyAnswer(trouble=repr(error))
            del self._open[number]
            with suppress(Exception):  # the answer is more important than its resources
                gathering.close()
            self._answer(number, answer)

    def close(self) -> None:
        """Cancel all pending requests. May be called twice."""
        for _, gathering in self._open.values():
            gathering.close()
        self._open.clear()

    def _answer(self, number: int, answer: SurveyAnswer) -> None:
        self._send(Stacks(number, encode(answer)))
