"""The parallel plan of the Transformer, in the order it is applied: stage, model parallelism, initial weights.

Model parallelism follows Megatron-LM (Shoeybi et al. 2019, arXiv:1909.08053): a pair of linear layers is split by
output features, then by input features, so that one sum per pair is all that ranks exchange. The vocabulary is split
by rows for both embeddings, the output head and the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.nn import functional

from launcher.core.frozen import frozen
from launcher.mesh.stages import Stage
from launcher.trainer.collectives import Group, enter_model_parallel, leave_model_parallel
from launcher.trainer.initial import initial_weight
from launcher.trainer.model import Transformer


@frozen
class Placement:
    """The part of a parameter of the single-device model that this rank holds."""

    full_shape: torch.Size
    dim: int | None = None  # the tensor dim that model parallelism splits; None: every rank holds all of it
    start: int = 0
    stop: int = 0  # Invariant: start < stop <= full_shape[dim] where dim is not None

    def part_of(self, full: Tensor) -> Tensor:
        return full if self.dim is None else full.narrow(self.dim, self.start, self.stop - self.start)

    @property
    def shape(self) -> torch.Size:
        """The shape of this rank's part."""
        sizes = list(self.full_shape)
        if self.dim is not None:
            sizes[self.dim] = self.stop - self.start
        return torch.Size(sizes)


# 1. How each kind of module is changed: `dims` says which dim of which parameter is split, `rebuild` adds the
#    communication. A width that the ranks do not divide is split as evenly as whole rows allow.


@frozen
class Style:
    dims: dict[str, int]
    rebuild: Callable[[nn.Module, Group], None]


class _InputFeatureShard(nn.Linear):
    """A linear layer over this rank's input features: partial products are summed before the bias is added."""

    group: Group

    def forward(self, hidden_BTE: Tensor) -> Tensor:
        partial_BTD = functional.linear(hidden_BTE, self.weight)
        return leave_model_parallel(partial_BTD, self.group) + self.bias


class _VocabularyShard(nn.Embedding):
    """An embedding of this rank's ids: other ids give zero, and the sum over ranks is the whole embedding."""

    group: Group
    first_id: int

    def forward(self, ids_BT: Tensor) -> Tensor:
        local_BT = ids_BT - self.first_id
        is_here_BT = (local_BT >= 0) & (local_BT < self.weight.shape[0])
        partial_BTD = functional.embedding(local_BT.where(is_here_BT, torch.zeros_like(local_BT)), self.weight)
        return leave_model_parallel(partial_BTD * is_here_BT[..., None], self.group)


def _enter_here(module: nn.Module, group: Group) -> None:
    def enter(_module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if all(tensor is inputs[0] for tensor in inputs):  # self-attention: one tensor, one sum of its gradient
            return (enter_model_parallel(inputs[0], group),) * len(inputs)
        return tuple(enter_model_parallel(tensor, group) for tensor in inputs)

    module.register_forward_pre_hook(enter)


def _sum_before_bias(module: nn.Module, group: Group) -> None:
    module.__class__ = _InputFeatureShard
    module.group = group  # type: ignore[assignment]


def _own_ids_only(module: nn.Module, group: Group) -> None:
    vocabulary_size = module.num_embeddings
    module.__class__ = _VocabularyShard
    module.group = group  # type: ignore[assignment]
    module.first_id = part_bounds(vocabulary_size, group)[0]  # type: ignore[assignment,arg-type]


def _nothing_more(_module: nn.Module, _group: Group) -> None:
    """Do nothing: a layer split by output features needs no communication of its own, its block's entry has it."""


BLOCK = Style({}, _enter_here)
OUTPUT_FEATURES = Style({"weight": 0, "bias": 0}, _nothing_more)
INPUT_FEATURES = Style({"weight": 1}, _sum_before_bias)
VOCABULARY_ROWS = Style({"weight": 0}, _own_ids_only)
VOCABULARY_HEAD = Style({"weight": 0}, _enter_here)

# 2. The plan itself.
PLAN: tuple[tuple[str, Style], ...] = (
    ("*_embedding.word", VOCABULARY_ROWS),
    ("*attention", BLOCK),
    ("*attention.query", OUTPUT_FEATURES),
    ("*attention.key", OUTPUT_FEATURES),
    ("*attention.value", OUTPUT_FEATURES),
    ("*attention.output", INPUT_FEATURES),
    ("*feed_forward", BLOCK),
    ("*feed_forward.expand", OUTPUT_FEATURES),
    ("*feed_forward.contract", INPUT_FEATURES),
    ("head", VOCABULARY_HEAD),
)


def part_bounds(size: int, group: Group) -> tuple[int, int]:
    """Return this rank's part [start, stop) of `size` rows: 65 rows over 2 ranks are 0..31 and 32..64.

    start = floor(size * index / ranks), so parts differ by one row at most and none is empty while ranks <= size.
    """
    return size * group.index // group.size, size * (group.index + 1) // group.size


def placements(model: Transformer, model_parallel: Group) -> dict[str, Placement]:
    """Return the placement of every parameter of `model` (all its parts, or those of one stage) on this rank."""
    styles = dict(_planned(model))
    found = {}
    for name, parameter in model.named_parameters():
        module_name, _, own_name = name.rpartition(".")
        dim = styles[module_name].dims.get(own_name) if module_name in styles else None
        if dim is None or model_parallel.size == 1:
            found[name] = Placement(parameter.shape)
        else:
            found[name] = Placement(parameter.shape, dim, *part_bounds(parameter.shape[dim], model_parallel))
    return found


def apply_plan(
    model: Transformer, stage: Stage, model_parallel: Group, *, seed: int, device: torch.device, dtype: torch.dtype
) -> dict[str, Placement]:
    """Turn a whole `model` on the meta device into this rank's part of it, with initial weights, on `device`.

    The weights are those that one process would start with, whatever the layout.
    """
    keep_stage(model, stage)
    placed = placements(model, model_parallel)
    if model_parallel.size > 1:
        for name, style in _planned(model):
            style.rebuild(model.get_submodule(name), model_parallel)
    for name, placement in placed.items():
        full = initial_weight(name, placement.full_shape, seed)
        replace_parameter(model, name, placement.part_of(full).to(device=device, dtype=dtype).contiguous())
    return placed


def keep_stage(model: Transformer, stage: Stage) -> None:
    """Take away from a whole model what other pipeline stages compute."""
    if not stage.is_first:
        del model.source_embedding, model.target_embedding
    if not stage.closes_encoder:
        model.encoder_norm = None
    if not stage.is_last:
        del model.decoder_norm
        model.head = None
    for layers, kept in ((model.encoder, stage.encoder_layers), (model.decoder, stage.decoder_layers)):
        for key in [key for key in layers if int(key) not in kept]:
            del layers[key]


def replace_parameter(model: nn.Module, name: str, value: Tensor) -> None:
    """Make `value` the parameter `name` of `model`."""
    module_name, _, own_name = name.rpartition(".")
    setattr(model.get_submodule(module_name), own_name, nn.Parameter(value))


def _planned(model: Transformer) -> Iterator[tuple[str, Style]]:
    for name, _module in model.named_modules():
        for pattern, style in PLAN:
            if fnmatchcase(name, pattern):
                yield name, style
