"""Turns the full Transformer into a rank's part: stages, model-parallel shards, recompute, and initial weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from launcher.mesh.stages import Stage
from launcher.recipes.train import ParallelConfig
from launcher.trainer.model.initial import initial_weight
from launcher.trainer.model.transformer import SHARED_WEIGHT, Transformer
from launcher.trainer.parallel.collectives import Group
from launcher.trainer.parallel.placement import Placement
from launcher.trainer.parallel.recompute import recompute_in_backward
from launcher.trainer.parallel.styles import (
    BLOCK,
    DROPPED_PART,
    INPUT_FEATURES,
    OUTPUT_FEATURES,
    VOCABULARY_HEAD,
    VOCABULARY_ROWS,
    Style,
    part_bounds,
)

# The style by which each kind of module is sharded over the model-parallel ranks.
EMBEDDING_TABLES = ("*_embedding.word", VOCABULARY_ROWS)  # with `parallel.vocab_emb_dp` they are replicated instead
LAYER_PLAN: tuple[tuple[str, Style], ...] = (
    ("*attention", BLOCK),
    ("*attention.query", OUTPUT_FEATURES),
    ("*attention.key", OUTPUT_FEATURES),
    ("*attention.value", OUTPUT_FEATURES),
    ("*attention.output", INPUT_FEATURES),
    ("*feed_forward", BLOCK),
    ("*feed_forward.expand", OUTPUT_FEATURES),
    ("*attention.dropout", DROPPED_PART),
    ("*feed_forward.dropout", DROPPED_PART),
    ("*feed_forward.contract", INPUT_FEATURES),
)
PLAN: tuple[tuple[str, Style], ...] = (
    ("shared_embedding", VOCABULARY_ROWS),
    ("memory", BLOCK),
    *LAYER_PLAN,
    ("head", VOCABULARY_HEAD),
)


def placements(
    model: Transformer, model_parallel: Group, parallel: ParallelConfig | None = None
) -> dict[str, Placement]:
    """Return this rank's shard of each parameter of `model`, which may have only some of the pipeline stages."""
    styles = dict(_planned(model, parallel))
    found = {}
    for name, parameter in model.named_parameters():
        module_name, _, own_name = name.rpartition(".")
        dim = styles[module_name].dims.get(own_name) if module_name in styles else None
        found[name] = placement_of(parameter, dim, model_parallel)
    return found


def placement_of(full: Tensor, dim: int | None, model_parallel: Group) -> Placement:
    """Return this rank's shard of a parameter along `dim`, or the full parameter if `dim` is None."""
    if dim is None or model_parallel.size == 1:
        return Placement.uncut(full.shape, model_parallel)
    return Placement.cut(full.shape, dim, *part_bounds(full.shape[dim], model_parallel))


def apply_plan(
    model: Transformer,
    stages: Sequence[Stage],
    model_parallel: Group,
    *,
    seed: int,
    device: torch.device,
    dtype: torch.dtype,
    parallel: ParallelConfig | None = None,
) -> dict[str, Placement]:
    """Reduce a complete model on the meta device to this rank's part, and initialise its weights on `device`.

    The weights are the same for every layout of ranks. Returns the placement of each parameter in the part.
    """
    parallel = parallel or ParallelConfig()
    layers = (*model.encoder.values(), *model.decoder.values())
    keep_stages(model, stages)
    placed = placements(model, model_parallel, parallel)
    if model_parallel.size > 1:
        for name, style in _planned(model, parallel):
            style.rebuild(model.get_submodule(name), model_parallel)
    for number, layer in enumerate(layers):
        if parallel.recompute or number in parallel.recompute_layers:
            recompute_in_backward(layer)
    for name, placement in placed.items():
        full = initial_weight(name, placement.full_shape, seed)
        replace_parameter(model, name, placement.part_of(full).to(device=device, dtype=dtype).contiguous())
    return placed


def keep_stages(model: Transformer, stages: Sequence[Stage]) -> None:
    """Remove all layers of a complete model that do not belong to the given pipeline stages."""
    if not any(stage.is_first for stage in stages):
        del model.source_embedding, model.target_embedding
    if not any(stage.is_first or stage.is_last for stage in stages):
        model.shared_embedding = None
    if not any(stage.closes_encoder for stage in stages):
        model.encoder_norm = None
    if not any(stage.is_last for stage in stages):
        del model.decoder_norm
        model.head = None
    for layers, kept in (
        (model.encoder, {layer for stage in stages for layer in stage.encoder_layers}),
        (model.decoder, {layer for stage in stages for layer in stage.decoder_layers}),
    ):
        for key in [key for key in layers if int(key) not in kept]:
            del layers[key]


def copied(stages: Sequence[Stage]) -> frozenset[str]:
    """Return the names of parameters that the given stages use but do not own.

    The matrix shared by embeddings and head belongs to the first stage; the last stage has a copy of it.
    """
    has_first, has_last = (any(ends) for ends in zip(*((each.is_first, each.is_last) for each in stages), strict=True))
    return frozenset({SHARED_WEIGHT} if has_last and not has_first else ())


def chunk_of(held: Transformer, whole: Transformer, stage: Stage) -> Transformer:
    """Return one pipeline stage of this rank's model as a separate model with the same modules.

    `whole` is a complete model, which this modifies and returns.
    """
    keep_stages(whole, [stage])
    for layers, own in ((whole.encoder, held.encoder), (whole.decoder, held.decoder)):
        for key in layers:
            layers[key] = own[key]
    for name, _module in whole.named_children():
        if name not in {"encoder", "decoder"}:
            setattr(whole, name, getattr(held, name))
    return whole


def gives_parts(model: Transformer) -> frozenset[str]:
    """Return the names of the layers whose output features are sharded over the model-parallel ranks."""
    return frozenset(name for name, style in _planned(model, None) if style is OUTPUT_FEATURES)


def replace_parameter(model: nn.Module, name: str, value: Tensor) -> None:
    module_name, _, own_name = name.rpartition(".")
    setattr(model.get_submodule(module_name), own_name, nn.Parameter(value))


def _planned(model: Transformer, parallel: ParallelConfig | None) -> Iterator[tuple[str, Style]]:
    replicates_tables = parallel is not None and parallel.vocab_emb_dp
    plan = PLAN if replicates_tables else (EMBEDDING_TABLES, *PLAN)
    for name, _module in model.named_modules():
        for pattern, style in plan:
            if fnmatchcase(name, pattern):
                yield name, style
