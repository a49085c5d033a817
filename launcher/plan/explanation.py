"""Says why layouts lost, with numbers, and which changes would help most."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from launcher.core.frozen import frozen
from launcher.core.records import Layout
from launcher.plan.configuration import Configuration
from launcher.plan.device_profile import DeviceProfile, Numbers
from launcher.plan.model_shape import ModelShape
from launcher.plan.peak_memory import RankMemory
from launcher.plan.prediction import Prediction, StepParts, bound_s, predict
from launcher.plan.search import Candidate, LayoutClass, SearchResult, memory_limit

PART_NAMES = {
    "compute": "compute", "dispatch": "waiting for the host", "mp": "all-reduces of mp", "pp": "pipeline messages",
    "bubble": "bubble", "dp": "all-reduce of dp", "optimizer": "optimizer", "other": "the rest of the step",
}  # fmt: skip
# What the model leaves out. Every prediction is printed with these lines.
UNKNOWN = (
    "mixture of experts, sharded weights (FSDP, ZeRO-3), sequence and context parallelism, offloading",
    "precisions other than 16 bits with single-precision optimizer states; frozen or quantised weights",
    "overlap of dp's all-reduce with backward; network traffic of other jobs; slow devices",
    "how kernels suit a shape: hidden sizes that divide badly cost up to 27 % in published runs",
)
_CHANGES_SHOWN = 3
_FINALISTS = 24  # layouts that are evaluated again for each change
_SIMULATED = 3  # of these, by their bounds
_MORE_MEMORY = 1.25
_UNEVEN = 1.03  # imbalance of stages that is worth a word


@frozen
class Change:
    """A change of the input. `gain` is the relative gain in tokens per second of the best layout."""

    what: str
    gain: float
    configuration: Configuration  # of the best layout after the change


def class_reason(each: LayoutClass, best: Prediction | None, device: DeviceProfile) -> str:
    """Return why a class is not the best one, or an empty text if it is."""
    if each.refused:
        return each.refused
    if each.best is None:
        memory, configuration = each.least_memory, each.least_configuration
        assert memory is not None, "a class without a best layout is too large"
        assert configuration is not None
        return (
            f"needs {memory.total / 1e9:.1f} GB of {device.memory_bytes / 1e9:.1f} GB or more on stage {memory.rank}: "
            f"{_largest(memory)}, with {configuration.software.recompute} recompute"
        )
    if best is None or each.best.configuration == best.configuration:
        return ""
    return slower_reason(each.best, best)


def slower_reason(slower: Prediction, best: Prediction) -> str:
    """Return the part of the step that makes a layout slower than the best one."""
    name = max(PART_NAMES, key=lambda part: getattr(slower.parts, part) - getattr(best.parts, part))
    own, others = getattr(slower.parts, name), getattr(best.parts, name)
    last, cause = slower.configuration.layout.pp - 1, ""
    if name == "compute" and slower.imbalance > _UNEVEN and slower.busiest_stage == last:
        cause = f"stage {last} has the head, {slower.imbalance:.2f} x the mean stage; "
    ratio = f"{slower.step_s / best.step_s:.2f} x the best"
    return f"{ratio}: {cause}{PART_NAMES[name]} {_seconds(own)} instead of {_seconds(others)}"


def deciding_part(parts: StepParts) -> str:
    """Return the largest part of a step besides compute, with its share."""
    total = sum(getattr(parts, name) for name in PART_NAMES)
    name = max((each for each in PART_NAMES if each != "compute"), key=lambda each: getattr(parts, each))
    return f"{PART_NAMES[name]} {getattr(parts, name) / total:.0%}"


def best_changes(model: ModelShape, device: DeviceProfile, result: SearchResult) -> list[Change]:
    """Return the changes with the largest gain in tokens per second, each evaluated by itself."""
    finalists = [each.configuration for each in result.candidates[:_FINALISTS]]
    if not finalists:
        return []
    before = _best_rate(model, device, finalists)
    found = []
    for what, changed_device, configurations in _changes(device, result, finalists):
        rate, configuration = _best_rate(model, changed_device, configurations)
        found.append(Change(what, rate / before[0] - 1, configuration))
    useful = [each for each in found if each.gain >= 0.005]
    return sorted(useful, key=lambda each: (-each.gain, each.what))[:_CHANGES_SHOWN]


def _changes(
    device: DeviceProfile, result: SearchResult, finalists: Sequence[Configuration]
) -> Iterator[tuple[str, DeviceProfile, Sequence[Configuration]]]:
    def with_numbers(change: Callable[[Numbers], Numbers]) -> DeviceProfile:
        return replace(device, numbers=change(device.numbers))

    yield (
        "network between servers twice as fast",
        with_numbers(
            lambda old: replace(
                old,
                network_bytes_per_s=2 * old.network_bytes_per_s,
                message_bytes_per_s=2 * old.message_bytes_per_s,
                network_latency_s=old.network_latency_s / 2,
            )
        ),
        finalists,
    )
    yield (
        "links within a server twice as fast",
        with_numbers(
            lambda old: replace(old, link_bytes_per_s=2 * old.link_bytes_per_s, link_latency_s=old.link_latency_s / 2)
        ),
        finalists,
    )
    yield (
        "half the host's time for dispatch (compiled graphs)",
        with_numbers(lambda old: replace(old, dispatch_s=old.dispatch_s / 2, micro_batch_s=old.micro_batch_s / 2)),
        finalists,
    )
    more = list(_would_fit(device, result.too_large))[:_FINALISTS]
    yield "25 % more memory", device, [*finalists, *more]
    yield "twice the global batch", device, [*finalists, *map(_twice_the_batch, finalists)]
    if not finalists[0].software.flash_attention:
        flash = [replace(each, software=replace(each.software, flash_attention=True)) for each in finalists]
        yield "flash attention", device, flash


def _would_fit(device: DeviceProfile, too_large: Sequence[Candidate]) -> Iterator[Configuration]:
    limit = _MORE_MEMORY * memory_limit(device)
    return (each.configuration for each in too_large if each.memory.total <= limit)


def _twice_the_batch(configuration: Configuration) -> Configuration:
    layout = configuration.layout
    doubled = Layout(dp=layout.dp, mp=layout.mp, pp=layout.pp, micro_batches=2 * layout.micro_batches)
    return replace(configuration, layout=doubled)


def _best_rate(
    model: ModelShape, device: DeviceProfile, configurations: Sequence[Configuration]
) -> tuple[float, Configuration]:
    """Return the highest number of samples per second, and its configuration."""
    by_bound = sorted(configurations, key=lambda each: bound_s(model, each, device) / each.global_batch)
    rates = [(each.global_batch / predict(model, each, device).step_s, each) for each in by_bound[:_SIMULATED]]
    return max(rates, key=lambda pair: pair[0])


def _largest(memory: RankMemory) -> str:
    parts = ("weights", "gradients", "optimizer", "activations", "logits", "base")
    largest = sorted(parts, key=lambda part: -getattr(memory, part))[:2]
    return ", ".join(f"{part} {getattr(memory, part) / 1e9:.1f} GB" for part in largest)


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 0.1 else f"{seconds * 1e3:.3g} ms"
