"""The model's head fused with its loss: cross entropy with label smoothing, without the logits of a full batch.

With smoothing e and vocabulary size V (Szegedy et al. 2016, arXiv:1512.00567), for a token with hidden row h, logits
z = W h and label y

    loss = log Z - h . t          log Z = log sum_v exp(z_v)          t = (1 - e) W_y + (e / V) sum_v W_v
    value = log Z - h . W_y
    d loss / d h   = sum_v p_v W_v - t                                p_v = exp(z_v) / Z
    d loss / d W_v = p_v h - (1 - e) [v = y] h - (e / V) h

Training minimises `loss`, so backward returns its gradients. Forward returns `value`, the cross entropy without
smoothing, which can be compared with the validation loss.

Only the terms in Z and p need logits. They are computed for a chunk of tokens at a time, turned into p, used for both
gradients and freed. So forward computes the gradients, and backward only returns them.

If the rows of W are sharded over ranks, each rank computes L = log sum exp(z) over its own rows, and its part of h . W_y.
Ranks exchange these two numbers per token. Then p_v = exp(z_v - L) exp(L - log Z), and d loss / d h is a sum over
ranks.

Shapes: N tokens, C tokens of a chunk, D model width, V vocabulary, W this rank's part of the vocabulary (in suffixes;
in the formulas W is the weight), R ranks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from launcher.trainer.model.linear import Linear, TiedLinear, add_product, is_fast, may_be_fast, product, row_blocks
from launcher.trainer.parallel.collectives import ALONE, Group, all_gather, all_reduce
from launcher.trainer.parallel.styles import part_bounds

# Size of the logits of a chunk. A CPU gains nothing from larger chunks; an accelerator needs them to be busy.
CPU_BYTES, ACCELERATOR_BYTES = 10 << 20, 256 << 20
CACHED_BYTES = 640 << 10  # size of the logits that fit a core's cache, for consecutive operations
MIN_CHUNK_TOKENS = 256  # for any vocabulary size, because each chunk adds to the full gradient of W
SMALLEST_BLOCK = 32  # tokens; with a large vocabulary oneDNN is worth a kernel even for small blocks


def head_loss(
    hidden_ND: Tensor,
    head: Linear | TiedLinear,
    labels_N: Tensor,
    *,
    group: Group = ALONE,
    smoothing: float = 0.0,
    scale: float = 1.0,
) -> Tensor:
    """Return the cross entropy without smoothing, summed over all N tokens and multiplied by `scale`, in float32 or wider.

    Its backward pass computes the gradients of the cross entropy with smoothing.

    The weight of `head` is this rank's shard of the rows (`part_bounds`). Every rank gets the full gradient of
    `hidden_ND`, and the gradient of its own rows. All ranks must call it with the same hidden rows and labels. Blocks
    until they have.
    """
    arguments = (hidden_ND, head.weight, labels_N, head.out_features, group, smoothing, scale)
    if torch.is_grad_enabled():
        return _HeadLoss.apply(*arguments)
    return _computed(*arguments, with_gradients=False)[0]


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        loss, *gradients = _computed(*arguments, with_gradients=True)
        ctx.save_for_backward(*gradients)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        hidden_gradient_ND, weight_gradient_WD = ctx.saved_tensors
        # On a CPU skip the multiplication by 1, the upstream gradient of a loss. On an accelerator the test would
        # block.
        if upstream[0].device.type != "cpu" or upstream[0] != 1:
            hidden_gradient_ND = hidden_gradient_ND * upstream[0]
            weight_gradient_WD = weight_gradient_WD * upstream[0]
        return hidden_gradient_ND, weight_gradient_WD, *[None] * 5


def _computed(
    hidden_ND: Tensor,
    weight_WD: Tensor,
    labels_N: Tensor,
    vocabulary_size: int,
    group: Group,
    smoothing: float,
    scale: float,
    *,
    with_gradients: bool,
) -> list[Tensor]:
    """Return the value and, if `with_gradients`, the gradients with respect to `hidden_ND` and `weight_WD`."""
    exact = torch.promote_types(hidden_ND.dtype, torch.float32)
    loss = hidden_ND.new_zeros((), dtype=exact)
    if not len(hidden_ND):
        return [loss, torch.zeros_like(hidden_ND), torch.zeros_like(weight_WD)]
    # 1. Without logits: this rank's part of h . W_y and of t.
    local_N = labels_N - part_bounds(vocabulary_size, group)[0]
    is_here_N = (local_N >= 0) & (local_N < len(weight_WD))
    local_N = local_N.where(is_here_N, torch.zeros_like(local_N))  # 0 for other ranks' labels
    is_here_N1 = is_here_N.to(hidden_ND.dtype)[:, None]
    target_ND = weight_WD[local_N] * is_here_N1
    agreement_N = torch.linalg.vecdot(hidden_ND.to(exact), target_ND.to(exact))
    sure_N1 = is_here_N1 * (1 - smoothing)
    target_ND.mul_(1 - smoothing).add_(weight_WD.sum(dim=0) * (smoothing / vocabulary_size))
    # 2. Chunk by chunk: log Z and the terms in p.
    widest = -(-vocabulary_size // group.size)  # over the ranks, because all must use the same chunks
    hidden_gradient_ND = torch.empty_like(hidden_ND)
    weight_DW, weight_gradient_DW = weight_WD.t(), torch.zeros_like(weight_WD, dtype=exact).t()
    if is_fast(hidden_ND):  # oneDNN's products read and write contiguous tensors faster
        weight_DW, weight_gradient_DW = weight_DW.contiguous(), weight_gradient_DW.contiguous()
    for chunk in _chunks(hidden_ND, widest):
        hidden_CD = hidden_ND[chunk]
        own_CW, share_C1, log_partition_C, all_agreement_C = _softmax(hidden_CD, weight_WD, agreement_N[chunk], group)
        loss += (log_partition_C - all_agreement_C).sum()
        if with_gradients:
            own_CW, share_C1 = own_CW.to(hidden_ND.dtype), share_C1 * scale
            gradient_CD = product(own_CW, weight_DW, rows=len(hidden_CD)).mul_(share_C1)
            hidden_gradient_ND[chunk] = gradient_CD.sub_(target_ND[chunk], alpha=scale)
            scaled_DC = (hidden_CD * share_C1).to(hidden_ND.dtype).t().contiguous()
            add_product(weight_gradient_DW, scaled_DC, own_CW.t(), rows=len(hidden_CD))
        del own_CW  # free it before the logits of the next chunk are allocated
    if not with_gradients:
        return [loss * scale]
    # 3. The other terms of the weight's gradient.
    evenly_D = hidden_ND.sum(dim=0, dtype=exact) * (-scale * smoothing / vocabulary_size)
    weight_gradient_WD = torch.empty_like(weight_WD, dtype=exact)
    torch.add(weight_gradient_DW.t(), evenly_D, out=weight_gradient_WD)
    weight_gradient_WD.index_add_(0, local_N, (hidden_ND * sure_N1).to(exact), alpha=-scale)
    all_reduce(hidden_gradient_ND, group, what="gradient of input 0")
    return [loss * scale, hidden_gradient_ND, weight_gradient_WD.to(weight_WD.dtype)]


def _chunks(hidden_ND: Tensor, width: int) -> list[slice]:
    """Divide the tokens, each with `width` logits, into chunks of limited size. Return one slice per chunk."""
    chunk_bytes = CPU_BYTES if hidden_ND.device.type == "cpu" else ACCELERATOR_BYTES
    exact = torch.promote_types(hidden_ND.dtype, torch.float32)
    largest = max(chunk_bytes // (width * exact.itemsize), MIN_CHUNK_TOKENS)
    if may_be_fast(hidden_ND):  # may be fast on some ranks, and all must use the same chunks
        return list(row_blocks(len(hidden_ND), largest=largest, smallest=SMALLEST_BLOCK))
    return [slice(start, start + largest) for start in range(0, len(hidden_ND), largest)]


def _softmax(
    hidden_CD: Tensor, weight_WD: Tensor, agreement_C: Tensor, group: Group
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute the softmax and the terms of the value for a chunk of tokens.

    Returns exp(z - m), exp(m - log Z), log Z, and h . W_y over all ranks, with the symbols of the module docstring. z are
    this rank's logits, and m is the maximum of each row of z. `agreement_C` is this rank's part of h . W_y.
    """
    own_CW = product(hidden_CD, weight_WD, rows=len(hidden_CD)).to(agreement_C.dtype)
    largest_C, sum_C = _exponentials_(own_CW)
    own_2C = torch.stack([largest_C + sum_C.log(), agreement_C])
    all_R2C = own_2C[None]
    if group.size > 1:
        all_R2C = own_2C.new_empty(group.size, *own_2C.shape)
        all_gather(all_R2C.flatten(0, 1), own_2C, group, what="statistics")
    log_partition_C = all_R2C[:, 0].logsumexp(dim=0)
    share_C1 = (largest_C - log_partition_C).exp()[:, None]
    return own_CW, share_C1, log_partition_C, all_R2C[:, 1].sum(dim=0)


def _exponentials_(logits_CW: Tensor) -> tuple[Tensor, Tensor]:
    """Replace each logit z by exp(z - m), where m is the maximum of its row. Return m and the new sum of each row.

    On a CPU this handles a few rows at a time, so that they stay in the cache between operations.
    """
    rows = len(logits_CW)
    if logits_CW.device.type == "cpu":
        rows = max(CACHED_BYTES // (logits_CW.shape[1] * logits_CW.element_size()), 1)
    largest, sums = [], []
    for some_RW in logits_CW.split(rows):
        largest_R1 = some_RW.amax(dim=1, keepdim=True)
        sums.append(some_RW.sub_(largest_R1).exp_().sum(dim=1))
        largest.append(largest_R1[:, 0])
    return torch.cat(largest), torch.cat(sums)
