"""The memory of each pipeline rank at its peak, in parts.

weights: 2 bytes a parameter. Gradients: 4, since they are summed in single precision. Optimizer: 12 (a single-precision
copy and Adam's two moments), divided by dp if the optimizer is sharded.

Activations, for every micro batch in flight and each position of a layer: 10 h bytes, the cut features / mp, and 5 bytes a
score without flash attention and recompute of scores (Korthikanti et al. 2022, arXiv:2205.05198, section 4). With full
recompute: the layer's input, and one layer in work.

Logits: 10 bytes each on the last rank. Base: libraries, communication buffers and unused blocks.
"""

from __future__ import annotations

from functools import lru_cache

from launcher.core.frozen import frozen
from launcher.mesh.schedules import GPIPE, most_in_flight, schedule_of
from launcher.plan.configuration import Configuration, stage_layers
from launcher.plan.device_profile import DeviceProfile
from launcher.plan.model_shape import LayerShape, ModelShape
from launcher.plan.stage_time import ELEMENT_BYTES

WEIGHT_BYTES, GRADIENT_BYTES, OPTIMIZER_BYTES = 2, 4, 12
_WHOLE_BYTES, _SCORE_BYTES, _LOGIT_BYTES = 10, 5, 10


@frozen
class RankMemory:
    """Bytes of a pipeline rank at its peak."""

    rank: int  # pipeline rank
    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    base: float

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer + self.activations + self.logits + self.base


def fullest_rank(model: ModelShape, configuration: Configuration, device: DeviceProfile) -> RankMemory:
    """Return the memory of the pipeline rank that needs the most."""
    ranks = range(configuration.layout.pp)
    return max((rank_memory(model, configuration, device, rank) for rank in ranks), key=lambda each: each.total)


def rank_memory(model: ModelShape, configuration: Configuration, device: DeviceProfile, rank: int) -> RankMemory:
    layout, software, numbers = configuration.layout, configuration.software, device.numbers
    count = layout.pp * configuration.chunks
    held = [pair for stage in stage_layers(model, count)[rank :: layout.pp] for pair in stage]
    parameters = rank_parameters(model, configuration, rank)
    kept = sum(_kept_bytes(kind, model, configuration) * number for kind, number in held)
    in_flight = _in_flight(configuration.schedule, rank, layout.pp, layout.micro_batches, configuration.chunks)
    activations = kept * in_flight / configuration.chunks
    if software.recompute == "full":
        activations += max(_layer_bytes(kind, model, configuration, scores=True) for kind, _ in held)
    logits = 0.0
    if rank == layout.pp - 1:
        logits = configuration.micro_batch * model.seq * model.vocab / layout.mp * _LOGIT_BYTES
    return RankMemory(
        rank=rank,
        weights=WEIGHT_BYTES * parameters,
        gradients=GRADIENT_BYTES * parameters,
        optimizer=OPTIMIZER_BYTES * parameters / (layout.dp if software.optimizer_shard else 1),
        activations=numbers.kept_factor * activations,
        logits=numbers.kept_factor * logits,
        base=numbers.base_bytes,
    )


def rank_parameters(model: ModelShape, configuration: Configuration, rank: int) -> float:
    """Return the number of parameters on a pipeline rank, divided by mp."""
    layout = configuration.layout
    held = stage_layers(model, layout.pp * configuration.chunks)[rank :: layout.pp]
    weights = sum(kind.weights * number for stage in held for kind, number in stage)
    tables = (rank == 0) + (rank == layout.pp - 1)
    if layout.pp == 1 and model.tied_embeddings:
        tables = 1
    return (weights + tables * model.vocab * model.hidden) / layout.mp


def _kept_bytes(layer: LayerShape, model: ModelShape, configuration: Configuration) -> float:
    """Return the bytes that a layer keeps for the backward pass of one micro batch."""
    recompute = configuration.software.recompute
    if recompute == "full":
        return ELEMENT_BYTES * configuration.micro_batch * layer.positions * model.hidden
    return _layer_bytes(layer, model, configuration, scores=recompute == "none")


def _layer_bytes(layer: LayerShape, model: ModelShape, configuration: Configuration, *, scores: bool) -> float:
    """Return the bytes of all activations of a layer for one micro batch."""
    mp = configuration.layout.mp
    features = layer.positions * (_WHOLE_BYTES * model.hidden + layer.cut_features / mp)
    if configuration.software.flash_attention:
        scores = False
    return configuration.micro_batch * (features + (_SCORE_BYTES * layer.scores / mp if scores else 0))


@lru_cache(maxsize=4096)
def _in_flight(kind: str, rank: int, ranks: int, micro_batches: int, chunks: int) -> int:
    """Return the number of micro batches, counted in chunks, whose activations a rank keeps at most."""
    # After 3 P micro batches the others repeat, except that GPipe keeps all.
    few = micro_batches if kind == GPIPE else min(micro_batches, 3 * ranks)
    return most_in_flight(schedule_of(kind, rank, ranks, few, chunks=chunks))
