"""What a training is configured with besides the model: layout, micro batches, schedule, recompute, sharded optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Literal, get_args

from launcher.core.frozen import frozen
from launcher.core.records import Layout
from launcher.mesh.schedules import INTERLEAVED, KINDS, ONE_FORWARD_ONE_BACKWARD
from launcher.mesh.stages import cut_by_cost
from launcher.plan.model_shape import LayerShape, ModelShape

Recompute = Literal["none", "selective", "full"]
RECOMPUTES: tuple[Recompute, ...] = get_args(Recompute)


@frozen
class Software:
    """Settings that a training framework fixes for all layouts."""

    schedule: str = ONE_FORWARD_ONE_BACKWARD  # one of `schedules.KINDS`
    recompute: Recompute = "none"  # `selective`: attention scores only
    optimizer_shard: bool = False  # the dp ranks divide the optimizer's states
    flash_attention: bool = False  # attention scores stay on the chip


@frozen
class Configuration:
    layout: Layout
    micro_batch: int  # samples
    software: Software
    chunks: int = 1  # of layers for each stage; more than 1 only if the schedule is interleaved

    @property
    def global_batch(self) -> int:
        return self.layout.dp * self.layout.micro_batches * self.micro_batch

    @property
    def schedule(self) -> str:
        """The schedule that runs: with one chunk for each stage there is nothing to interleave."""
        return (
            ONE_FORWARD_ONE_BACKWARD
            if self.chunks == 1 and self.software.schedule == INTERLEAVED
            else self.software.schedule
        )

    def __str__(self) -> str:
        return f"{self.layout}, {self.layout.micro_batches} x {self.micro_batch} samples"


def software_of(values: Mapping[str, Any], default: Software) -> Software:
    """Return the settings that a row or profile states. Other text in the fields leaves the default."""
    schedule, recompute = str(values.get("schedule") or ""), str(values.get("recompute") or "")
    flags = {
        name: values[name] for name in ("optimizer_shard", "flash_attention") if isinstance(values.get(name), bool)
    }
    return replace(
        default,
        # Published rows continue in words: "interleaved where pp > 1", "full (not stated in the picture)".
        schedule=next((kind for kind in KINDS if schedule.startswith(kind)), default.schedule),
        recompute=next((kind for kind in RECOMPUTES if recompute.startswith(kind)), default.recompute),
        **flags,
    )


def chunks_of(model: ModelShape, layout: Layout, schedule: str) -> int:
    """Return the fewest chunks for each stage with which the schedule interleaves, or 1 if it cannot."""
    if schedule != INTERLEAVED or layout.pp == 1 or layout.micro_batches % layout.pp:
        return 1
    each = len(model.stack) // layout.pp
    return next((chunks for chunks in range(2, each + 1) if len(model.stack) % (chunks * layout.pp) == 0), 1)


@cache
def stage_layers(model: ModelShape, stages: int) -> tuple[tuple[tuple[LayerShape, int], ...], ...]:
    """Return each stage's layers, as pairs of a kind of layer and its number. The stages are balanced by multiply-adds.

    Equal layers are divided evenly, and the first stages hold the remaining ones. The head is not balanced, as in
    Megatron-LM.
    """
    stack = model.stack
    if len(set(stack)) == 1:
        each, more = divmod(len(stack), stages)
        sizes = tuple(each + (index < more) for index in range(stages))
    else:
        sizes = cut_by_cost([layer.multiply_adds + layer.attention_multiply_adds for layer in stack], stages)
    found, first = [], 0
    for size in sizes:
        held = stack[first : first + size]
        found.append(tuple((kind, held.count(kind)) for kind in dict.fromkeys(held)))
        first += size
    return tuple(found)
