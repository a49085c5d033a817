"""The parallel plan of the Transformer, in the order it is applied: stage, model parallelism, recompute, initial weights."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from launcher.mesh.stages import Stage
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

# How each kind of module is split over the model-parallel ranks.
PLAN: tuple[tuple[str, Style], ...] = (
    ("shared_embedding", VOCABULARY_ROWS),
    ("*_embedding.word", VOCABULARY_ROWS),
    ("memory", BLOCK),
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
    ("head", VOCABULARY_HEAD),
)


def placements(model: Transformer, model_parallel: Group) -> dict[str, Placement]:
    """Return the placement of every parameter of `model` (all its parts, or those of one stage) on this rank."""
    styles = dict(_planned(model))
    found = {}
    for name, parameter in model.named_parameters():
        module_name, _, own_name = name.rpartition(".")
        dim = styles[module_name].dims.get(own_name) if module_name in styles else None
        if dim is None or model_parallel.size == 1:
            found[name] = Placement.uncut(parameter.shape, model_parallel)
        else:
            found[name] = Placement.cut(parameter.shape, dim, *part_bounds(parameter.shape[dim], model_parallel))
    return found


def apply_plan(
    model: Transformer,
    stage: Stage,
    model_parallel: Group,
    *,
    seed: int,
    device: torch.device,
    dtype: torch.dtype,
    recompute: bool = False,
) -> dict[str, Placement]:
    """Turn a whole `model` on the meta device into this rank's part of it, with initial weights, on `device`.

    The weights are those that one process would start with, whatever the layout. With `recompute`, backward computes the
    activations of each layer again.
    """
    keep_stage(model, stage)
    placed = placements(model, model_parallel)
    if model_parallel.size > 1:
        for name, style in _planned(model):
            style.rebuild(model.get_submodule(name), model_parallel)
    if recompute:
        for layer in (*model.encoder.values(), *model.decoder.values()):
            recompute_in_backward(layer)
    for name, placement in placed.items():
        full = initial_weight(name, placement.full_shape, seed)
        replace_parameter(model, name, placement.part_of(full).to(device=device, dtype=dtype).contiguous())
    return placed


def keep_stage(model: Transformer, stage: Stage) -> None:
    """Take away from a whole model what other pipeline stages compute."""
    if not stage.is_first:
        del model.source_embedding, model.target_embedding
    if not (stage.is_first or stage.is_last):
        model.shared_embedding = None
    if not stage.closes_encoder:
        model.encoder_norm = None
    if not stage.is_last:
        del model.decoder_norm
        model.head = None
    for layers, kept in ((model.encoder, stage.encoder_layers), (model.decoder, stage.decoder_layers)):
        for key in [key for key in layers if int(key) not in kept]:
            del layers[key]


def copied(stage: Stage) -> frozenset[str]:
    """Return the names of the parameters that a stage computes with as well, but that another one owns.

    The matrix that embeddings and head share belongs to the first stage, and the last one has a copy of it.
    """
    return frozenset({SHARED_WEIGHT} if stage.is_last and not stage.is_first else ())


def gives_parts(model: Transformer) -> frozenset[str]:
    """Return the names of the layers whose output features lie on the model-parallel ranks."""
    return frozenset(name for name, style in _planned(model) if style is OUTPUT_FEATURES)


def replace_parameter(model: nn.Module, name: str, value: Tensor) -> None:
    """Make `value` the parameter `name` of `model`."""
    module_name, _, own_name = name.rpartition(".")
    setattr(model.get_submodule(module_name), own_name, nn.Parameter(value))


def _planned(model: Transformer) -> Iterator[tuple[str, Style]]:
    for name, _module in model.named_modules():
        for pattern, style in PLAN:
            if fnmatchcase(name, pattern):
                yield name, style
