"""Formulas for the bytes that a rank holds to train the Transformer, by settings and layout.

For n parameters on the rank, p bytes each (`train.precision`), and g bytes per gradient or moment (at least float32):

                                                  weights    gradients           moments and float32 copies of weights
    dp = 1                                        n p        n g                 m n g
    sharded by dp                                 n p        n g + n g / dp      m n g / dp
    parallel.optimizer_shard = false              n p        n g                 m n g
    parallel.gradient_accumulation_shard = true   n p        n g / dp            m n g / dp

m is 2 for AdamW's moments, and 3 if weights are less precise than float32. Gradients take n g more if they are sharded
on gloo, or if they are in shared memory and the optimizer is not sharded. Sharded weights in shared memory are one copy
for all its ranks. Each parameter starts at a multiple of 64 bytes; this padding is not counted.
"""

from __future__ import annotations

from typing import Literal

from launcher.core.frozen import frozen
from launcher.core.records import Layout
from launcher.mesh.stages import Stage
from launcher.recipes.transformer.cost import pipeline_stages
from launcher.recipes.transformer.transformer_settings import TransformerSettings

ITEM_BYTES = {"float32": 4, "float64": 8, "bfloat16": 2}
MOMENTS = 2
Carrier = Literal["shared_memory", "gloo", "scattering"]


@frozen
class RankBytes:
    weights: float
    gradients: float
    state: float  # moments, and float32 copies of weights


def rank_bytes(settings: TransformerSettings, layout: Layout, pp_index: int, carrier: Carrier) -> RankBytes:
    """Return the bytes that a rank of a pipeline stage holds between steps.

    `carrier` sums gradients over data-parallel ranks: shared memory, gloo, or a backend with reduce_scatter.
    """
    parallel, dp = settings.parallel, layout.dp
    count = rank_parameters(settings, layout, pp_index)
    of_weight = ITEM_BYTES[settings.train.precision]
    of_gradient = max(of_weight, ITEM_BYTES["float32"])
    kept = MOMENTS + (of_weight < of_gradient)
    gradients = 1.0
    if dp > 1 and parallel.gradient_accumulation_shard:
        gradients = 1 / dp
    elif dp > 1 and parallel.optimizer_shard:
        gradients = 1 + 1 / dp + (carrier == "gloo")
    elif dp > 1 and carrier == "shared_memory":
        gradients = 2.0
    shares = dp if parallel.optimizer_shard else 1
    return RankBytes(
        weights=count * of_weight, gradients=count * of_gradient * gradients, state=kept * count * of_gradient / shares
    )


# The number of embedding tables that are not shared, by `model.share`.
_OWN_EMBEDDINGS = {"none": 2, "decoder": 1, "all": 0}


def rank_parameters(settings: TransformerSettings, layout: Layout, pp_index: int) -> float:
    """Return the number of parameters that a rank of a stage owns. Model-parallel ranks may differ by a table row.

    A matrix shared by embeddings and head counts on the first stage. Its copy on the last stage, and the buffers that
    transfer the copy's gradient, do not count.
    """
    return sum(
        _stage_parameters(settings, stage, layout.mp)
        for stage in pipeline_stages(settings, layout.pp)[pp_index :: layout.pp]
    )


def _stage_parameters(settings: TransformerSettings, stage: Stage, mp: int) -> float:
    model, data = settings.model, settings.data
    d, f, vocabulary = model.d_model, model.feed_forward_dim, model.vocabulary_size
    tables = 1 if settings.parallel.vocab_emb_dp else mp
    # Matrices, and biases of layers split by output features; other biases; norms.
    attention, norm = (4 * d * d + 3 * d) / mp + d, 2 * d
    feed_forward = (2 * d * f + f) / mp + d
    count = len(stage.encoder_layers) * (attention + feed_forward + 2 * norm)
    count += len(stage.decoder_layers) * (2 * attention + feed_forward + 3 * norm)
    end_norm = norm if model.norm == "pre" else 0
    if stage.is_first:
        count += _OWN_EMBEDDINGS[model.share] * vocabulary * d / tables
        count += vocabulary * d / mp if model.share != "none" else 0
        count += (data.source_length + data.target_length) * d if model.positions == "learned" else 0
    if stage.closes_encoder:
        count += end_norm
    if stage.is_last:
        count += end_norm + (vocabulary * d / mp if model.share == "none" else 0)
    return count
