"""The bytes that a rank holds of the Transformer and its training, as formulas of settings and layout.

Of n parameters on the rank, p bytes each (of `train.precision`) and g bytes in gradients and moments (float32 at least):

                                                  weights    gradients           moments and copies of weights in float32
    dp = 1                                        n p        n g                 m n g
    sharded by dp                                 n p        n g + n g / dp      m n g / dp
    parallel.optimizer_shard = false              n p        n g                 m n g
    parallel.gradient_accumulation_shard = true   n p        n g / dp            m n g / dp

m is 2 for AdamW's moments, and 3 where weights are less precise than float32. Sharded on gloo, gradients take n g more, and so they do
in shared memory where the optimizer is not sharded. Weights that are sharded in shared memory are one copy for all of its ranks.
Each parameter begins at a multiple of 64 bytes, which is not counted here.
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
    state: float  # moments, and copies of weights in float32


def rank_bytes(settings: TransformerSettings, layout: Layout, pp_index: int, carrier: Carrier) -> RankBytes:
    """Return the bytes that a rank of a pipeline stage holds between steps.

    `carrier` is what sums gradients over data-parallel ranks: shared memory, gloo, or a backend with a reduce_scatter.
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
        weights=count * of_weight,
        gradients=count * of_gradient * gradients,
        state=kept * count * of_gradient / shares,
    )


# The embedding tables that are no other one's, by `model.share`.
_OWN_EMBEDDINGS = {"none": 2, "decoder": 1, "all": 0}


def rank_parameters(settings: TransformerSettings, layout: Layout, pp_index: int) -> float:
    """Return the number of parameters that a rank of a pipeline stage owns; model-parallel ranks may differ by a row of a table.

    A matrix that embeddings and head share is the first stage's. The copy on the last one is not counted, nor the tensor on
    either in which the copy's gradient is sent.
    """
    return sum(
        _stage_parameters(settings, stage, layout.mp)
        for stage in pipeline_stages(settings, layout.pp)[pp_index :: layout.pp]
    )


def _stage_parameters(settings: TransformerSettings, stage: Stage, mp: int) -> float:
    model, data = settings.model, settings.data
    d, f, vocabulary = model.d_model, model.feed_forward_dim, model.vocabulary_size
    tables = 1 if settings.parallel.vocab_emb_dp else mp
    # Matrices and the biases of what is split by output features; other biases; norms.
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
