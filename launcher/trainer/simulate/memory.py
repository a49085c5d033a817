"""Finds the moment of a step with the most memory, and divides its tensors into kinds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import partial

from torch import Tensor

from launcher.sharding.simulated_step import MEMORY_KINDS, MemoryPeak
from launcher.trainer.session import Session
from launcher.trainer.simulate.observer import Allocation, StepObserver


class MemoryRecord:
    """The allocations of one training step of a session, with their kinds."""

    def __init__(self, session: Session, observer: StepObserver) -> None:
        """Start the record between two steps of `session`, whose operators `observer` observes."""
        self._session, self._observer = session, observer
        self._kinds: dict[int, str] = {}
        self._before, self._first = observer.live, len(observer.events)
        self._mark()

    def watch(self, undo: ExitStack) -> None:
        """Find the tensors that become gradients during backward, until `undo` is closed."""
        for parameter in self._session.model.parameters():
            # After the optimizer's own hook, which may copy the gradient.
            hook = parameter.register_post_accumulate_grad_hook(partial(self._accumulated))
            undo.callback(hook.remove)

    def peak(self) -> MemoryPeak:
        """Return the largest memory of the step. Call it at the end of the step."""
        self._mark()
        kinds = {
            number: self._kinds.get(number) or _kind_of(allocation, is_left=number in self._observer.live)
            for number, allocation in enumerate(self._observer.allocations)
        }
        return _peak_of(self._observer.allocations, self._before, self._observer.events[self._first :], kinds)

    def _mark(self) -> None:
        for kind, tensors in self._session.optimizer.held.items():
            self._mark_as(kind, tensors)
        parameters = list(self._session.model.parameters())
        self._mark_as("weights", (parameter.detach() for parameter in parameters))
        self._mark_as("gradients", (parameter.grad for parameter in parameters if parameter.grad is not None))

    def _accumulated(self, parameter: Tensor) -> None:
        self._mark_as("gradients", [] if parameter.grad is None else [parameter.grad])

    def _mark_as(self, kind: str, tensors: Iterable[Tensor]) -> None:
        for number in self._observer.allocations_of(tensors):
            self._kinds.setdefault(number, kind)


def _kind_of(allocation: Allocation, *, is_left: bool) -> str:
    """Return the kind of a tensor that is neither a weight, a gradient nor a moment.

    Activations are the tensors of forward and backward. The ids of a batch are buffers, and so is a tensor that is left
    after the step.
    """
    is_buffer = is_left or allocation.is_from_host or allocation.phase == "optimizer"
    return "buffers" if is_buffer else "activations"


def _peak_of(
    allocations: list[Allocation], before: set[int], events: list[int], kinds: Mapping[int, str]
) -> MemoryPeak:
    live: Counter[str] = Counter()
    for number in before:
        live[kinds[number]] += allocations[number].bytes
    total = most = sum(live.values())
    at_peak, last = Counter(live), max(before, default=None)
    for event in events:
        number = max(event, ~event)
        change = allocations[number].bytes if event >= 0 else -allocations[number].bytes
        live[kinds[number]] += change
        total += change
        if total > most:
            most, at_peak, last = total, Counter(live), number
    by = Allocation(0, "optimizer", "", "") if last is None else allocations[last]
    parts = {kind: at_peak[kind] for kind in MEMORY_KINDS}
    return MemoryPeak(**parts, phase=by.phase, operator=by.operator, function=by.function)
