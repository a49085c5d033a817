"""The cost of the Transformer's parts: FLOPs of a training step, and pipeline stages balanced by cost.

FLOPs count multiply-adds of matrix products and attention: n per position for a weight matrix with n elements. Norms,
biases, dropout, softmax and embeddings count as 0. Stage costs (`part_costs`) are times and include these operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul

from launcher.core.errors import RefusedLayoutError
from launcher.core.frozen import frozen
from launcher.mesh.stages import Stage, busy_shares, cut_by_cost, stages_of
from launcher.recipes.transformer.transformer_settings import ModelConfig, TransformerSettings

# FLOPs per multiply-add in training: 2 forward, 4 backward (gradients of weights and of inputs).
FLOPS_PER_MULTIPLY_ADD = 6

# Speeds of the parts: FLOPs per nanosecond of matrix products in layers (LAYER_RATE) and in the head (HEAD_RATE);
# nanoseconds per position for the norm, dropout and softmax of a block (BLOCK_NS); and nanoseconds per element of an
# embedding (EMBEDDING_NS). A block is attention, cross attention or feed-forward.
# Measured as CPU time of one thread on an AMD EPYC (torch 2.13, float32, micro batches of 1,024 tokens, little padding).
# For widths d = 128, 256 and 512, products reached 144, 166 and 178, and a block took another 1,400, 1,500 and 1,300.
# The head reached 162 (V = 20,000, d = 128), and a sixth less in pipelines of two ranks. The predicted share of a stage
# was then within 0.01 of the measurement (V = 10,000, 4 + 4 layers, f = 256), or 0.07 for a stage with only the head
# (V = 20,000, 1 + 1 layers).
LAYER_RATE, HEAD_RATE, BLOCK_NS, EMBEDDING_NS = 140, 135, 1500, 7
ENCODER_BLOCKS, DECODER_BLOCKS = 2, 3


@frozen
class PartCosts:
    """The cost of each model part, forward and backward, for a sentence pair of maximum length. Only ratios matter."""

    embeddings: int
    encoder_layer: int
    decoder_layer: int
    head: int


def encoder_layer(model: ModelConfig, sources: int, attended: int) -> int:
    """Return the number of multiply-adds in the forward pass of an encoder layer. `attended` counts query-key pairs."""
    return sources * model.d_model * (4 * model.d_model + 2 * model.feed_forward_dim) + 2 * attended * model.d_model


def decoder_layer(model: ModelConfig, targets: int, sources: int, attended: int) -> int:
    """Return the number of multiply-adds in the forward pass of a decoder layer. Cross attention is in `attended`."""
    of_targets = targets * model.d_model * (6 * model.d_model + 2 * model.feed_forward_dim)
    return of_targets + 2 * sources * model.d_model**2 + 2 * attended * model.d_model


def head(model: ModelConfig, targets: int) -> int:
    return targets * model.d_model * model.vocabulary_size


def training_flops(model: ModelConfig, sources: Sequence[int], targets: Sequence[int]) -> int:
    """Return the FLOPs of a training step (forward and backward) on sentence pairs with the given lengths in tokens.

    These are model FLOPs as in Chowdhery et al. 2022 (PaLM, arXiv:2204.02311, appendix B), for an encoder and a
    decoder: 6 per multiply-add of matrix products and attention, masked or not. Work for padding and for
    `parallel.recompute` is not counted.
    """
    own = sum(map(mul, sources, sources)), sum(map(mul, targets, targets))
    source_count, target_count = sum(sources), sum(targets)
    layers = model.encoder_layers * encoder_layer(model, source_count, own[0])
    layers += model.decoder_layers * decoder_layer(
        model, target_count, source_count, own[1] + sum(map(mul, sources, targets))
    )
    return FLOPS_PER_MULTIPLY_ADD * (layers + head(model, target_count))


def part_costs(settings: TransformerSettings) -> PartCosts:
    """Return the costs of the model's parts, which are used to balance pipeline stages."""
    model, sources, targets = settings.model, settings.data.source_length, settings.data.target_length
    of_encoder = encoder_layer(model, sources, sources**2)
    of_decoder = decoder_layer(model, targets, sources, targets**2 + sources * targets)
    return PartCosts(
        embeddings=1000 * EMBEDDING_NS * (sources + targets) * model.d_model,
        encoder_layer=1000 * FLOPS_PER_MULTIPLY_ADD * of_encoder // LAYER_RATE
        + 1000 * BLOCK_NS * ENCODER_BLOCKS * sources,
        # Cross attention also processes the sources.
        decoder_layer=1000 * FLOPS_PER_MULTIPLY_ADD * of_decoder // LAYER_RATE
        + 1000 * BLOCK_NS * (DECODER_BLOCKS * targets + sources),
        head=1000 * FLOPS_PER_MULTIPLY_ADD * head(model, targets) // HEAD_RATE,
    )


def pipeline_stages(settings: TransformerSettings, pp: int) -> tuple[Stage, ...]:
    """Return the pipeline stages for `pp` ranks: as set in `parallel.stages` or, if it is empty, balanced by cost.

    With v chunks of layers per rank there are v `pp` stages, and rank i has the stages i, `pp` + i, 2 `pp` + i, ...
    Raises RefusedLayoutError if there are fewer parts than stages, or `parallel.stages` does not fit.
    """
    encoder_layers, decoder_layers = settings.model.encoder_layers, settings.model.decoder_layers
    layer_count = encoder_layers + decoder_layers
    model = f"the model has {encoder_layers} encoder + {decoder_layers} decoder = {layer_count} layers"
    chunks, by_hand = settings.parallel.chunks(pp), settings.parallel.stages
    count, in_chunks = pp * chunks, f" of {chunks} chunks" if chunks > 1 else ""
    if not by_hand:
        if count > layer_count + 1:
            raise RefusedLayoutError(
                f"the model has too few layers for pp = {pp} stages{in_chunks}: {model} and a head",
                hint=f"use at most `--pp {max((layer_count + 1) // chunks, 1)}`, or add layers: `--set model.encoder_layers=N`",
            )
        costs = part_costs(settings)
        layers = [costs.encoder_layer] * encoder_layers + [costs.decoder_layer] * decoder_layers
        *counts, last = cut_by_cost([costs.embeddings + layers[0], *layers[1:], costs.head], count)
        return stages_of((*counts, last - 1), encoder_layers)
    written = f"parallel.stages = {list(by_hand)}"
    if len(by_hand) != count:
        possible = (len(by_hand), len(by_hand) // settings.parallel.interleave)
        fitting = (each for each in possible if each and each * settings.parallel.chunks(each) == len(by_hand))
        hint = next((f"use `--pp {each}`" for each in fitting), f"give {count} numbers")
        raise RefusedLayoutError(f"{written} has {len(by_hand)} stages, but pp = {pp}{in_chunks}", hint=hint)
    if sum(by_hand) != layer_count:
        raise RefusedLayoutError(
            f"{written} has {sum(by_hand)} layers, but {model}",
            hint="use `--set parallel.stages=[]` to balance stages by cost",
        )
    return stages_of(by_hand, encoder_layers)


def stage_costs(settings: TransformerSettings, stages: Sequence[Stage]) -> tuple[int, ...]:
    """Return the cost of each stage, in the unit of `PartCosts`."""
    costs = part_costs(settings)
    return tuple(
        costs.embeddings * stage.is_first
        + costs.encoder_layer * len(stage.encoder_layers)
        + costs.decoder_layer * len(stage.decoder_layers)
        + costs.head * stage.is_last
        for stage in stages
    )


def rank_costs(settings: TransformerSettings, pp: int) -> tuple[int, ...]:
    """Return the cost of each pipeline-parallel rank, summed over the stages that it runs."""
    costs = stage_costs(settings, pipeline_stages(settings, pp))
    return tuple(sum(costs[index::pp]) for index in range(pp))


def predicted_busy(settings: TransformerSettings, pp: int, micro_batches: int) -> tuple[float, ...]:
    """Predict the fraction of a training step during which each of the `pp` pipeline-parallel ranks is busy."""
    return busy_shares(rank_costs(settings, pp), micro_batches, chunks=settings.parallel.chunks(pp))
