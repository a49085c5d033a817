"""What one training step really computes and communicates, told by who does it to a recorder, where there is one.

    collectives, pipeline       call `active.communicated(...)` for each collective and message that they begin
    modules of the model        become operators, and functions between them (telemetry/watch.py)
    autograd functions          keep `operator()` of forward, and name it in backward with `within(...)`

Without a recorder `active` is None, and all of that is a look at it. A recorder serves one process, and one step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

from torch import Tensor

from launcher.core.frozen import frozen
from launcher.sharding.strategy_report import ReportCollective, ReportKind, ReportPhase
from launcher.trainer.telemetry.operators import OperatorGraph

Direction = Literal["forward", "backward"]
_MESSAGES: Mapping[Direction, str] = {"forward": "activations", "backward": "gradients"}
_NOTHING = nullcontext()


@frozen
class _Where:
    operator: str
    phase: ReportPhase
    scope: str | None = None  # the module whose functions are operators of their own; None: inside of an operator


class Recorder:
    """Takes note of the operators of a step, and of its collectives, each with the operator in which it arose."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.graph = OperatorGraph()
        self.phase: ReportPhase = "forward"  # of what does not say itself which it belongs to
        self._within: list[_Where] = []
        self._counts: Counter[ReportCollective] = Counter()  # by what is alike, in the order of the first of each

    @property
    def operator(self) -> str:
        """The operator that is computed, or a part of the step that is none."""
        if self._within:
            return self._within[-1].operator
        return "optimizer" if self.phase == "optimizer" else ""

    def begin(self, operator: str, *, phase: ReportPhase | None = None, scope: str | None = None) -> None:
        """Have what is communicated told as of this operator until the `end` that belongs to it, in this phase or the present one."""
        self._within.append(_Where(operator, phase or self.current_phase, scope))

    def end(self) -> None:
        self._within.pop()

    @contextmanager
    def within(self, operator: str, phase: ReportPhase | None) -> Iterator[None]:
        self.begin(operator, phase=phase)
        try:
            yield
        finally:
            self.end()

    @property
    def current_phase(self) -> ReportPhase:
        return self._within[-1].phase if self._within else self.phase

    def communicated(self, kind: ReportKind, group: Sequence[int], count_bytes: int, what: str) -> None:
        """Take note of a collective of this rank with the other ones of `group`, or of a message from the first to the second."""
        one = ReportCollective(self.operator, self.current_phase, kind, tuple(group), count_bytes, 1, what)
        self._counts[one] += 1

    def sent(self, direction: Direction, to: int, count_bytes: int) -> None:
        """Take note of a message along the pipeline: activations forward, their gradients backward."""
        with self.within("pipeline", direction):
            self.communicated("send", (self.rank, to), count_bytes, _MESSAGES[direction])

    def received(self, direction: Direction, source: int, count_bytes: int) -> None:
        """Take note of a message that this rank gets, as `sent`."""
        with self.within("pipeline", direction):
            self.communicated("receive", (source, self.rank), count_bytes, _MESSAGES[direction])

    def applied(
        self,
        kind: str,
        compute: Callable[[], Tensor],
        taken: Sequence[Tensor],
        *,
        own: str,
        parameters: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """Return what `compute` gives, as an operator called `own` in the module that is computed."""
        scope = self._within[-1].operator if self._within else ""
        if self.current_phase == "forward":
            name = self.graph.next_name(scope, own)
        else:  # computed again
            name = f"{scope}.{own}" if scope else own
        with self.within(name, None):
            output = compute()
        if self.current_phase == "forward":
            self.graph.computed(name, kind, taken, parameters or {}, output)
        return output

    def called(self, function: Callable[..., Any], taken: Sequence[Any], output: Any) -> None:
        """Take note of a function of torch that was called, between operators or inside of one."""
        where = self._within[-1] if self._within else None
        if self.current_phase == "forward" and (where is None or where.scope is not None):
            self.graph.called(function, None if where is None else where.scope, taken, output)

    def collectives(self) -> Iterator[ReportCollective]:
        """Yield what was communicated, equal ones with their number, in the order of the first of each."""
        for one, count in self._counts.items():
            yield ReportCollective(one.operator, one.phase, one.kind, one.group, one.bytes, count, one.what)


active: Recorder | None = None  # of this process, while it records


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Have all that this process computes and communicates told to `recorder`."""
    global active  # noqa: PLW0603 - what a process records
    active = recorder
    try:
        yield
    finally:
        active = None


def operator() -> str | None:
    """Return the operator that is computed, for an autograd function to keep; None while nothing is recorded."""
    return None if active is None else active.operator


def within(name: str | None, phase: ReportPhase | None = None) -> AbstractContextManager[None]:
    """Have what is communicated inside `with` told as of this operator, in this phase or the one that it is; none without a name."""
    if active is None or name is None:
        return _NOTHING
    return active.within(name, phase)


def enter_phase(phase: ReportPhase) -> None:
    """Say what the step comes to, for all that does not say so itself."""
    if active is not None:
        active.phase = phase
