"""A gradient that is not a mean over rows, though the value is."""

import torch


class OverRows(torch.autograd.Function):
    """Leaves a value as it is, and divides its gradient by the rows of the batch, as a hand-written backward may."""

    @staticmethod
    def forward(ctx, hidden):
        ctx.rows = len(hidden)
        return hidden.clone()

    @staticmethod
    def backward(ctx, upstream):
        return upstream / ctx.rows
