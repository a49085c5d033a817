"""The tensor-parallel styles of modules: which dim of each parameter is sharded, and which communication is added.

Model parallelism follows Megatron-LM (Shoeybi et al. 2019, arXiv:1909.08053). In a pair of linear layers the first is
sharded by output features and the second by input features, so ranks exchange only one sum per pair. A vocabulary whose
size is not divisible by the number of ranks is sharded as evenly as possible.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from launcher.core.frozen import frozen
from launcher.trainer.model.linear import Linear, linear
from launcher.trainer.parallel.collectives import Group, enter_model_parallel, leave_model_parallel


def part_bounds(size: int, group: Group) -> tuple[int, int]:
    """Return the bounds [start, stop) of this rank's rows when `size` rows are divided over the group.

    start = floor(size * index / ranks). So the parts differ by at most one row, and none is empty if ranks <= size.
    """
    return size * group.index // group.size, size * (group.index + 1) // group.size


@frozen
class Style:
    dims: dict[str, int]
    rebuild: Callable[[nn.Module, Group], None] = lambda _module, _group: None


class _InputFeatureShard(Linear):
    """A linear layer sharded by input features. It sums the ranks' partial products, then adds the bias."""

    group: Group

    def forward(self, hidden_BTE: Tensor) -> Tensor:
        # Flattened, so that the product is not a view: the sum overwrites it in place.
        partial_ND = linear(hidden_BTE.flatten(0, -2), self.weight)
        whole_ND = leave_model_parallel(partial_ND, self.group).add_(self.bias)
        return whole_ND.view(*hidden_BTE.shape[:-1], -1)


class _VocabularyShard(nn.Embedding):
    """An embedding table sharded by rows. A rank returns zeros for ids outside its rows, and the results are summed."""

    group: Group
    first_id: int

    def forward(self, ids_BT: Tensor) -> Tensor:
        local_BT = ids_BT - self.first_id
        is_here_BT = (local_BT >= 0) & (local_BT < self.weight.shape[0])
        partial_BTD = functional.embedding(local_BT.where(is_here_BT, torch.zeros_like(local_BT)), self.weight)
        return leave_model_parallel(partial_BTD.mul_(is_here_BT[..., None]), self.group)


def _enter_model_parallel(module: nn.Module, group: Group) -> None:
    def enter(_module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        # The second input of cross attention is the output of the `memory` module, which has this style itself.
        return enter_model_parallel(inputs[0], group), *inputs[1:]

    module.register_forward_pre_hook(enter)


def _sum_before_bias(module: nn.Module, group: Group) -> None:
    module.__class__ = _InputFeatureShard
    module.group = group  # type: ignore[assignment]


def _own_ids_only(module: nn.Module, group: Group) -> None:
    vocabulary_size = module.num_embeddings
    module.__class__ = _VocabularyShard
    module.group = group  # type: ignore[assignment]
    module.first_id = part_bounds(vocabulary_size, group)[0]  # type: ignore[assignment,arg-type]


def _own_part(module: nn.Module, group: Group) -> None:
    module.part, module.parts = group.index, group.size  # type: ignore[assignment]


BLOCK = Style({}, _enter_model_parallel)
OUTPUT_FEATURES = Style({"weight": 0, "bias": 0})  # its block's entry hook communicates
INPUT_FEATURES = Style({"weight": 1}, _sum_before_bias)
VOCABULARY_ROWS = Style({"weight": 0}, _own_ids_only)
VOCABULARY_HEAD = Style({"weight": 0})  # `head_loss` communicates
DROPPED_PART = Style({}, _own_part)  # dropout between layers sharded by output features and by input features
