"""Records one training step for `tlaunch plan operators`: operators, layouts of their tensors, and communication.

Sizes, collectives and messages are measured. The sharded dims follow from the model's plan:

    data parallelism     the first dim of tensors that depend on the batch
    model parallelism    the features (in attention, the heads) between a layer split by outputs and one split by inputs
    parameters           the dims of their placement
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from torch import nn

from launcher.core.frozen import frozen
from launcher.sharding.strategy_report import ReportEdge, ReportOperator, ReportTensor, StrategyReport, save_report
from launcher.trainer.parallel.placement import Placement
from launcher.trainer.parallel.world import World
from launcher.trainer.telemetry.operators import CONSTANT, SeenOperator, SeenTensor
from launcher.trainer.telemetry.recording import Recorder, recording
from launcher.trainer.telemetry.watch import watching

RECORDED = 2  # the step of this process to record; the first one opens connections
# Operators that keep the layout of features.
HANDED_ON = frozenset({"add", "sub", "mul", "relu", "gelu", "dropout", "identity", "attention"})


@frozen
class RecordedModel:
    """The model of a program, and the information that determines the layouts of its tensors."""

    recipe: str
    model: nn.Module
    placements: Mapping[str, Placement]  # of parameters
    gives_parts: Collection[str]  # modules whose output features are sharded over the model-parallel ranks

    def recorder(self, path: Path | None, world: World, attempt: int) -> StepRecorder:
        return StepRecorder(path, world.place.global_rank, partial(recorded_report, self, world, attempt), self.model)


class StepRecorder:
    """Records the operators and collectives of one step of this process, and writes a report to `path`.

    It records the second step, or the first if there is only one. Without a `path` it does nothing.
    """

    def __init__(
        self,
        path: Path | None = None,
        rank: int = 0,
        report_of: Callable[[Recorder, int], StrategyReport] | None = None,
        model: nn.Module | None = None,
    ) -> None:
        """Prepare to record a step. If `model` is given, its modules are recorded as operators."""
        self._path, self._rank, self._report_of, self._model = path, rank, report_of, model
        self._steps = 0
        self._told = ""

    @contextmanager
    def step(self, number: int, *, is_last: bool) -> Iterator[None]:
        """Run a step inside the `with` block. Only one step of the training is recorded."""
        self._steps += 1
        is_recorded = self._steps == RECORDED or (is_last and self._steps < RECORDED)
        if self._path is None or self._report_of is None or not is_recorded:
            yield
            return
        recorder = Recorder(self._rank)
        with recording(recorder) if self._model is None else watching(self._model, recorder):
            yield
        try:
            save_report(self._path, self._report_of(recorder, number))
            self._told = f"strategy: {self._path}"
        except OSError as error:  # does not end the training
            self._told = f"no strategy report: {error.filename or self._path}: {error.strerror or error}"

    def first_line(self) -> str:
        """Return a log line about the report in the first call after it is written. In other calls, return ""."""
        told, self._told = self._told, ""
        return told


def recorded_report(
    recorded: RecordedModel, world: World, attempt: int, recorder: Recorder, step: int
) -> StrategyReport:
    """Return a report of a recorded step on this rank, with its operators, tensor layouts and collectives."""
    layouts = _Layouts(recorded, world)
    operators = tuple(layouts.operator(seen) for seen in recorder.graph.operators.values())
    edges = tuple(
        ReportEdge(taken.name, operator.name, number)
        for operator in operators
        for number, taken in enumerate(operator.inputs)
        if not taken.is_parameter and taken.name != CONSTANT
    )
    place = world.place
    return StrategyReport(
        recorded.recipe,
        str(place.layout),
        place.world_size,
        place.global_rank,
        operators,
        edges,
        tuple(recorder.collectives()),
        step=step,
        attempt=attempt,
    )


@frozen
class _Held:
    """The sharding of an activation, which follows from the operator that computes it."""

    is_of_batch: bool  # its first dim is the batch
    has_parts: bool  # its features are sharded over the model-parallel ranks


class _Layouts:
    """Derives the layouts of a model's tensors, operator by operator in the order of computation."""

    def __init__(self, recorded: RecordedModel, world: World) -> None:
        self._recorded, self._world = recorded, world
        self._held: dict[str, _Held] = {CONSTANT: _Held(is_of_batch=False, has_parts=False)}

    def operator(self, seen: SeenOperator) -> ReportOperator:
        held = [self._held_of(taken.name) for taken in seen.inputs if not taken.is_parameter]
        has_parts = self._world.mp.size > 1 and (
            seen.name in self._recorded.gives_parts or (seen.kind in HANDED_ON and any(one.has_parts for one in held))
        )
        output = _Held(any(one.is_of_batch for one in held), has_parts)
        self._held[seen.name] = output
        is_attention = seen.kind == "attention"
        return ReportOperator(
            seen.name,
            seen.kind,
            tuple(
                self._parameter(taken)
                if taken.is_parameter
                else self._activation(taken, self._held_of(taken.name), is_attention=is_attention)
                for taken in seen.inputs
            ),
            self._activation(SeenTensor(seen.name, seen.size), output, is_attention=is_attention),
            stage=self._world.pp.index,
            calls=seen.calls,
        )

    def _held_of(self, name: str) -> _Held:
        return self._held.get(name, _Held(is_of_batch=True, has_parts=False))  # the data, and tensors from other stages

    def _parameter(self, taken: SeenTensor) -> ReportTensor:
        placement = self._recorded.placements[taken.name]
        whole, box = tuple(placement.full_shape), placement.box
        is_cut = [part < length for part, length in zip(box.size, whole, strict=True)]
        cuts = tuple(self._world.mp.size if cut else 1 for cut in is_cut)
        by = tuple("mp" if cut else "" for cut in is_cut)
        return ReportTensor(taken.name, whole, cuts, by, box.size, box.start, is_parameter=True)

    def _activation(self, seen: SeenTensor, held: _Held, *, is_attention: bool) -> ReportTensor:
        dims = len(seen.size)
        shape: list[int | None] = list(seen.size)
        cuts, by = [1] * dims, [""] * dims
        start, is_box = [0] * dims, True
        if held.has_parts and dims:
            dim = 1 if is_attention else dims - 1  # heads come before positions
            cuts[dim], by[dim], shape[dim] = self._world.mp.size, "mp", seen.size[dim] * self._world.mp.size
            start[dim] = seen.size[dim] * self._world.mp.index
        if held.is_of_batch and dims and self._world.dp.size > 1:
            # Parts have about equal cost, and the other ranks' numbers of rows are unknown.
            cuts[0], by[0], shape[0], is_box = self._world.dp.size, "dp", None, False
        own_start = tuple(start) if is_box else None
        return ReportTensor(seen.name, tuple(shape), tuple(cuts), tuple(by), seen.size, own_start)
