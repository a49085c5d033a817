"""Predicts the step time and the peak memory of one layout on a device."""

from __future__ import annotations

from launcher.core.frozen import frozen
from launcher.plan.collective_time import all_reduce_s
from launcher.plan.configuration import Configuration
from launcher.plan.device_profile import DeviceProfile
from launcher.plan.model_shape import ModelShape
from launcher.plan.nearby import correction, position_of
from launcher.plan.peak_memory import RankMemory, fullest_rank, rank_parameters
from launcher.plan.pipeline import Path, critical_path, lower_bound_s
from launcher.plan.stage_time import ELEMENT_BYTES, PassTime, StageTimes, stage_times

_OPTIMIZER_BYTES = 26  # read and written for each parameter: gradient, weight, a single-precision copy, two moments


@frozen
class StepParts:
    """Seconds of the busiest rank's step. Their sum is the step time."""

    compute: float
    dispatch: float
    mp: float
    pp: float  # messages to other stages
    bubble: float
    dp: float
    optimizer: float
    other: float  # data, metrics; and what measured layouts nearby add or save


@frozen
class Prediction:
    model: ModelShape
    configuration: Configuration
    step_s: float
    parts: StepParts
    busiest_stage: int
    imbalance: float  # busy time of the busiest stage, relative to the mean of all stages
    memory: RankMemory  # of the fullest pipeline rank
    tokens_per_s: float
    tflops_per_device: float  # with recompute, as Megatron-LM counts
    mfu: float  # without recompute

    @property
    def memory_bytes(self) -> float:
        return self.memory.total


@frozen
class _AfterPipeline:
    dp: float
    optimizer: float


def predict(model: ModelShape, configuration: Configuration, device: DeviceProfile) -> Prediction:
    """Simulate a step and return its time and memory."""
    times = stage_times(model, configuration, device)
    layout, software = configuration.layout, configuration.software
    path = critical_path(times, configuration.schedule, layout.pp, layout.micro_batches)
    pipeline_s, after = path.seconds(times), _after_pipeline(model, configuration, device)
    model_s = pipeline_s + after.dp + after.optimizer + device.numbers.step_s
    step_s = model_s
    if device.observations:
        step_s *= correction(device.observations, position_of(model, configuration))
    of_stages = _busy(times, layout.pp)
    busiest = max(range(layout.pp), key=lambda rank: of_stages[rank].total)
    busy = of_stages[busiest].times(layout.micro_batches)
    flops = model.step_flops(configuration.global_batch, recompute=software.recompute == "full")
    useful = model.step_flops(configuration.global_batch, recompute=False)
    return Prediction(
        model=model,
        configuration=configuration,
        step_s=step_s,
        parts=StepParts(
            compute=busy.compute, dispatch=busy.dispatch, mp=busy.mp, pp=busy.messages,
            bubble=_without_rounding(pipeline_s - busy.total, pipeline_s), dp=after.dp, optimizer=after.optimizer,
            other=device.numbers.step_s + step_s - model_s,
        ),
        busiest_stage=busiest,
        imbalance=of_stages[busiest].total * layout.pp / sum(each.total for each in of_stages),
        memory=fullest_rank(model, configuration, device),
        tokens_per_s=configuration.global_batch * model.tokens / step_s,
        tflops_per_device=flops / step_s / layout.world_size / 1e12,
        mfu=useful / step_s / layout.world_size / device.peak_flops_per_s,
    )  # fmt: skip


def model_step_s(
    model: ModelShape, configuration: Configuration, device: DeviceProfile, path: Path | None = None
) -> tuple[float, Path]:
    """Return the step time without corrections, and the critical path. A given `path` is used without a simulation."""
    times = stage_times(model, configuration, device)
    layout = configuration.layout
    found = path or critical_path(times, configuration.schedule, layout.pp, layout.micro_batches)
    after = _after_pipeline(model, configuration, device)
    return found.seconds(times) + after.dp + after.optimizer + device.numbers.step_s, found


def bound_s(model: ModelShape, configuration: Configuration, device: DeviceProfile) -> float:
    """Return a lower bound of the step time, without corrections and without a simulation."""
    layout = configuration.layout
    pipeline_s = lower_bound_s(stage_times(model, configuration, device), layout.pp, layout.micro_batches)
    after = _after_pipeline(model, configuration, device)
    return pipeline_s + after.dp + after.optimizer + device.numbers.step_s


def _after_pipeline(model: ModelShape, configuration: Configuration, device: DeviceProfile) -> _AfterPipeline:
    """Return the times of the gradients' all-reduce and of the optimizer, on the rank with the most parameters."""
    layout, numbers = configuration.layout, device.numbers
    most = max(rank_parameters(model, configuration, rank) for rank in {0, layout.pp - 1})
    dp_s = all_reduce_s(
        layout.dp, ELEMENT_BYTES * most, stride=layout.mp, per_server=device.per_server, numbers=numbers
    )
    if layout.pp > 1 and model.tied_embeddings:  # the first and the last stage sum the gradient of the shared table
        table = ELEMENT_BYTES * model.vocab * model.hidden / layout.mp
        dp_s += all_reduce_s(2, table, stride=layout.mp * layout.dp, per_server=device.per_server, numbers=numbers)
    shared = layout.dp if configuration.software.optimizer_shard else 1
    optimizer_s = numbers.optimizer_factor * most * _OPTIMIZER_BYTES / numbers.memory_bytes_per_s / shared
    return _AfterPipeline(dp_s, optimizer_s)


def _without_rounding(difference: float, of: float) -> float:
    """Return a difference of sums, or 0 if it is only their rounding error."""
    return difference if difference > 1e-9 * of else 0.0


def _busy(times: StageTimes, ranks: int) -> list[PassTime]:
    """Return the sum of each rank's passes for one micro batch."""
    sums = []
    for rank in range(ranks):
        busy = PassTime()
        for each in (*times.forward[rank::ranks], *times.backward[rank::ranks]):
            busy += each
        sums.append(busy)
    return sums
