"""Records the operators and the communication of one training step, for strategy reports.

    collectives, pipeline       call `communicated(...)` for each collective and message that they start
    modules of the model        are recorded as operators, with the functions between them (telemetry/watch.py)
    autograd functions          save `operator()` in forward, and pass it to `within(...)` in backward

`active` is the recorder of this process while it records one step, and None otherwise. Other steps only check it.
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
    scope: str | None = None  # the module in which functions are operators; None: inside an operator


class Recorder:
    """Records the operators of a step, and its collectives with the operators that start them."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.graph = OperatorGraph()
        self.phase: ReportPhase = "forward"  # the default phase
        self._within: list[_Where] = []
        self._counts: Counter[ReportCollective] = Counter()  # in the order of first occurrence

    @property
    def operator(self) -> str:
        """The name of the running operator. Outside operators, it is "optimizer" in the optimizer phase, else ""."""
        if self._within:
            return self._within[-1].operator
        return "optimizer" if self.phase == "optimizer" else ""

    def begin(self, operator: str, *, phase: ReportPhase | None = None, scope: str | None = None) -> None:
        """Attribute communication to `operator` until `end` is called. `phase` defaults to the current phase."""
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
        """Record a collective in `group`, or a message from the first rank of `group` to the second."""
        one = ReportCollective(self.operator, self.current_phase, kind, tuple(group), count_bytes, 1, what)
        self._counts[one] += 1

    def applied(
        self,
        kind: str,
        compute: Callable[[], Tensor],
        taken: Sequence[Tensor],
        *,
        own: str,
        parameters: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """Call `compute` and return its result. Record the call as an operator with the name `own` in the current module."""
        scope = self._within[-1].operator if self._within else ""
        if self.current_phase == "forward":
            name = self.graph.next_name(scope, own)
        else:  # recompute
            name = f"{scope}.{own}" if scope else own
        with self.within(name, None):
            output = compute()
        if self.current_phase == "forward":
            self.graph.computed(name, kind, taken, parameters or {}, output)
        return output

    def called(self, function: Callable[..., Any], taken: Sequence[Any], output: Any) -> None:
        """Record a call of a torch function as an operator, unless the call is made inside another operator."""
        where = self._within[-1] if self._within else None
        if self.current_phase == "forward" and (where is None or where.scope is not None):
            self.graph.called(function, None if where is None else where.scope, taken, output)

    def collectives(self) -> Iterator[ReportCollective]:
        """Yield the distinct collectives in the order of first occurrence, each with its count."""
        for one, count in self._counts.items():
            yield ReportCollective(one.operator, one.phase, one.kind, one.group, one.bytes, count, one.what)


active: Recorder | None = None  # of this process, while it records


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    global active  # noqa: PLW0603 - state of the process
    active = recorder
    try:
        yield
    finally:
        active = None


def communicated(kind: ReportKind, group: Sequence[int], count_bytes: int, what: str) -> None:
    """Record a collective of this rank in `group`, if this step is recorded."""
    if active is not None:
        active.communicated(kind, group, count_bytes, what)


def passed(kind: Literal["send", "receive"], direction: Direction, peer: int, count_bytes: int) -> None:
    """Record a pipeline message of activations (forward) or gradients (backward), if this step is recorded."""
    if active is not None:
        ends = (active.rank, peer) if kind == "send" else (peer, active.rank)
        with active.within("pipeline", direction):
            active.communicated(kind, ends, count_bytes, _MESSAGES[direction])


def operator() -> str | None:
    """Return the name of the running operator for use in backward, or None if nothing is recorded."""
    return None if active is None else active.operator


def within(name: str | None, phase: ReportPhase | None = None) -> AbstractContextManager[None]:
    """Attribute the communication inside `with` to the operator `name`. `phase` defaults to the current phase.

    Does nothing without a name or a recorder.
    """
    if active is None or name is None:
        return _NOTHING
    return active.within(name, phase)


def enter_phase(phase: ReportPhase) -> None:
    if active is not None:
        active.phase = phase
