"""The costs of the Transformer's parts: the FLOPs of a training step, and the pipeline stages that follow from them.

FLOPs count the multiply-adds of matrix products and attention; a weight matrix of n elements is n of them for each position.
Norms, biases, dropout, softmax and embeddings add none. Stage costs (`part_costs`) are times, and include what these take.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul

from launcher.core.errors import RefusedLayoutError
from launcher.core.frozen import frozen
from launcher.mesh.stages import Stage, busy_shares, cut_by_cost, stages_of
from launcher.recipes.transformer.transformer_settings import ModelConfig, TransformerSettings

# FLOPs of a multiply-add that is trained: 2 forward, 4 backward (for the weights, and for what they are applied to).
FLOPS_PER_MULTIPLY_ADD = 6

# Relative speeds of the parts: FLOPs of products in a nanosecond, of layers and of the head; nanoseconds for each position
# of a block (attention, cross attention or feed-forward) besides its products, for its norm, dropout and softmax; and
# nanoseconds for each element of an embedded position. Measured by CPU time, one thread, on an AMD EPYC (torch 2.13,
# float32, micro batches of 1,024 tokens with little padding): of widths d = 128, 256 and 512 products reached 144, 166 and
# 178, and a block took 1,400, 1,500 and 1,300 besides. The head alone reached 162 (V = 20,000, d = 128), and a sixth less in
# pipelines of two ranks: a stage's share of the work was then within 0.01 of the predicted one at V = 10,000, 4 + 4 layers and
# f = 256, and within 0.07 where a stage has the head alone (V = 20,000, 1 + 1 layers).
LAYER_RATE, HEAD_RATE, BLOCK_NS, EMBEDDING_NS = 140, 135, 1500, 7
ENCODER_BLOCKS, DECODER_BLOCKS = 2, 3


@frozen
class PartCosts:
    """The cost of each part for a pair of the longest sentences, forward and backward, in picoseconds; their ratios count."""

    embeddings: int
    encoder_layer: int
    decoder_layer: int
    head: int


def encoder_layer(model: ModelConfig, sources: int, attended: int) -> int:
    """Return the multiply-adds, forward, of a layer of `sources` positions and `attended` pairs of a query and a key."""
    return sources * model.d_model * (4 * model.d_model + 2 * model.feed_forward_dim) + 2 * attended * model.d_model


def decoder_layer(model: ModelConfig, targets: int, sources: int, attended: int) -> int:
    """Return the multiply-adds, forward, of a layer. `attended` counts pairs of a query and a key, also in cross attention."""
    of_targets = targets * model.d_model * (6 * model.d_model + 2 * model.feed_forward_dim)
    return of_targets + 2 * sources * model.d_model**2 + 2 * attended * model.d_model


def head(model: ModelConfig, targets: int) -> int:
    """Return the multiply-adds of the output head."""
    return targets * model.d_model * model.vocabulary_size


def training_flops(model: ModelConfig, sources: Sequence[int], targets: Sequence[int]) -> int:
    """Return the FLOPs that a training step on pairs of these lengths needs, forward and backward.

    They are the model FLOPs of Chowdhery et al. 2022 (PaLM, arXiv:2204.02311, appendix B), 6 for each multiply-add of a
    matrix product and of attention, masked or not, counted for an encoder and a decoder. What this program computes
    besides, for padding or once more for `parallel.recompute`, is no work that the model needs.
    """
    own = sum(map(mul, sources, sources)), sum(map(mul, targets, targets))
    source_count, target_count = sum(sources), sum(targets)
    layers = model.encoder_layers * encoder_layer(model, source_count, own[0])
    layers += model.decoder_layers * decoder_layer(
        model, target_count, source_count, own[1] + sum(map(mul, sources, targets))
    )
    return FLOPS_PER_MULTIPLY_ADD * (layers + head(model, target_count))


def part_costs(settings: TransformerSettings) -> PartCosts:
    """Return the costs that stages are cut by."""
    model, sources, targets = settings.model, settings.data.source_length, settings.data.target_length
    of_encoder = encoder_layer(model, sources, sources**2)
    of_decoder = decoder_layer(model, targets, sources, targets**2 + sources * targets)
    return PartCosts(
        embeddings=1000 * EMBEDDING_NS * (sources + targets) * model.d_model,
        encoder_layer=1000 * FLOPS_PER_MULTIPLY_ADD * of_encoder // LAYER_RATE
        + 1000 * BLOCK_NS * ENCODER_BLOCKS * sources,
        # Cross attention goes over the sources, too.
        decoder_layer=1000 * FLOPS_PER_MULTIPLY_ADD * of_decoder // LAYER_RATE
        + 1000 * BLOCK_NS * (DECODER_BLOCKS * targets + sources),
        head=1000 * FLOPS_PER_MULTIPLY_ADD * head(model, targets) // HEAD_RATE,
    )


def pipeline_stages(settings: TransformerSettings, pp: int) -> tuple[Stage, ...]:
    """Return the stages of `pp` pipeline-parallel ranks: as `parallel.stages` has them, else cut by cost.

    With v chunks of layers on each rank there are v `pp` of them, and rank i has the stages i, `pp` + i, 2 `pp` + i, ...

    Raises:
        RefusedLayoutError: there are fewer parts than stages, or stages given by hand that do not fit.
    """
    encoder_layers, decoder_layers = settings.model.encoder_layers, settings.model.decoder_layers
    layer_count = encoder_layers + decoder_layers
    model = f"the model has {encoder_layers} encoder + {decoder_layers} decoder = {layer_count} layers"
    chunks, by_hand = settings.parallel.chunks(pp), settings.parallel.stages
    count, in_chunks = pp * chunks, f" of {chunks} chunks" if chunks > 1 else ""
    if not by_hand:
        if count > layer_count + 1:
            raise RefusedLayoutError(
                f"pp = {pp} stages{in_chunks} cannot all get a part: {model}, and a head",
                hint=f"--pp {max((layer_count + 1) // chunks, 1)} at most, or more layers (--set model.encoder_layers=N)",
            )
        costs = part_costs(settings)
        layers = [costs.encoder_layer] * encoder_layers + [costs.decoder_layer] * decoder_layers
        *counts, last = cut_by_cost([costs.embeddings + layers[0], *layers[1:], costs.head], count)
        return stages_of((*counts, last - 1), encoder_layers)
    written = f"parallel.stages = {list(by_hand)}"
    if len(by_hand) != count:
        raise RefusedLayoutError(
            f"{written} has {len(by_hand)} stages, but pp = {pp}{in_chunks}",
            hint=_pp_for(by_hand, settings) or f"give {count} numbers",
        )
    if sum(by_hand) != layer_count:
        raise RefusedLayoutError(
            f"{written} has {sum(by_hand)} layers, but {model}", hint="--set parallel.stages=[]: cut by cost"
        )
    return stages_of(by_hand, encoder_layers)


def _pp_for(by_hand: Sequence[int], settings: TransformerSettings) -> str | None:
    """Return the number of stages that these numbers of layers are for; None where there is none."""
    for pp in (len(by_hand), len(by_hand) // settings.parallel.interleave):
        if pp > 0 and pp * settings.parallel.chunks(pp) == len(by_hand):
            return f"--pp {pp}"
    return None


def stage_costs(settings: TransformerSettings, stages: Sequence[Stage]) -> tuple[int, ...]:
    """Return what each stage costs, in the unit of `PartCosts`."""
    costs = part_costs(settings)
    return tuple(
        costs.embeddings * stage.is_first
        + costs.encoder_layer * len(stage.encoder_layers)
        + costs.decoder_layer * len(stage.decoder_layers)
        + costs.head * stage.is_last
        for stage in stages
    )


def rank_costs(settings: TransformerSettings, pp: int) -> tuple[int, ...]:
    """Return what the stages of each of `pp` pipeline-parallel ranks cost together."""
    costs = stage_costs(settings, pipeline_stages(settings, pp))
    return tuple(sum(costs[index::pp]) for index in range(pp))


def predicted_busy(settings: TransformerSettings, pp: int, micro_batches: int) -> tuple[float, ...]:
    """Return the share of a step that each of `pp` pipeline-parallel ranks should work."""
    return busy_shares(rank_costs(settings, pp), micro_batches, chunks=settings.parallel.chunks(pp))
