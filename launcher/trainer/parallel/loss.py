"""Label-smoothed cross entropy, summed over tokens, on whole logits or on a shard of the vocabulary.

With smoothing e over a vocabulary of V (Szegedy et al. 2016, arXiv:1512.00567), the loss of a token with logits z and
label t is

    loss = log Z - (1 - e) z_t - (e / V) sum_v z_v        log Z = log sum_v exp(z_v)
    d loss / d z_v = exp(z_v) / Z - (1 - e) [v = t] - e / V

so three sums over the vocabulary are all that ranks must exchange: of exp(z), of z_t (one rank holds it) and of z.

Shapes: N tokens (sentences and positions flattened), V vocabulary, W this rank's part of it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from launcher.trainer.model.transformer import PAD
from launcher.trainer.parallel.collectives import Group, all_reduce


def token_loss_sum(logits_NV: Tensor, labels_N: Tensor, smoothing: float) -> Tensor:
    """Return the loss of one device that holds all logits: a scalar, the sum over all labels but PAD."""
    return functional.cross_entropy(logits_NV, labels_N, ignore_index=PAD, label_smoothing=smoothing, reduction="sum")


def vocabulary_parallel_token_loss_sum(
    logits_NW: Tensor, labels_N: Tensor, smoothing: float, *, first_id: int, vocabulary_size: int, group: Group
) -> Tensor:
    """Return the same sum on a rank that holds only the logits of ids `first_id` .. `first_id` + W - 1.

    Every rank of `group` gets the whole sum, and the gradient of its own logits. Blocks until all have called it.
    """
    return _VocabularyParallelLoss.apply(logits_NW, labels_N, smoothing, first_id, vocabulary_size, group)


class _VocabularyParallelLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits_NW: Tensor,
        labels_N: Tensor,
        smoothing: float,
        first_id: int,
        vocabulary_size: int,
        group: Group,
    ) -> Tensor:
        # 1. The largest logit of each token over the whole vocabulary keeps exp() in range.
        largest_N1 = all_reduce(logits_NW.amax(dim=1, keepdim=True), group, "max")
        shifted_NW = logits_NW - largest_N1
        # 2. One exchange for the three sums.
        local_N = labels_N - first_id
        is_here_N = (local_N >= 0) & (local_N < logits_NW.shape[1])
        index_N1 = local_N.where(is_here_N, torch.zeros_like(local_N))[:, None]
        exponentials_NW = shifted_NW.exp()
        of_label_N = shifted_NW.gather(1, index_N1)[:, 0] * is_here_N
        sums_3N = torch.stack([exponentials_NW.sum(dim=1), of_label_N, shifted_NW.sum(dim=1)])
        partition_N, label_logit_N, logit_sum_N = all_reduce(sums_3N, group)
        # 3. The loss of each token that counts; the shift by the largest logit cancels.
        counts_N = labels_N != PAD
        loss_N = partition_N.log() - (1 - smoothing) * label_logit_N - smoothing / vocabulary_size * logit_sum_N
        probabilities_NW = exponentials_NW.div_(partition_N[:, None])
        ctx.save_for_backward(probabilities_NW, index_N1, is_here_N, counts_N)
        ctx.smoothing, ctx.vocabulary_size = smoothing, vocabulary_size
        return (loss_N * counts_N).sum()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        probabilities_NW, index_N1, is_here_N, counts_N = ctx.saved_tensors
        gradient_NW = probabilities_NW - ctx.smoothing / ctx.vocabulary_size
        at_label_N1 = -(1 - ctx.smoothing) * is_here_N[:, None].to(gradient_NW.dtype)
        gradient_NW.scatter_add_(1, index_N1, at_label_N1)
        return gradient_NW * (counts_N[:, None] * upstream[0]), None, None, None, None, None
