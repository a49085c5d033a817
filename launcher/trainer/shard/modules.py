"""Operators as modules with MindSpore's names. Set a strategy by `shard`: `net.matmul.shard(((2, 4), (4, 1)))`."""

from __future__ import annotations

import torch
from torch.nn import functional

from launcher.trainer.own.cut.operator_graph import Operation, shard
from launcher.trainer.own.trace import WithLoss

__all__ = [
    "Add", "BatchMatMul", "Div", "GeLU", "MatMul", "Mul", "Operation", "ReLU", "ReduceMean", "ReduceSum", "Sigmoid", "Softmax",
    "Square", "Sub", "Tanh", "Transpose", "WithLoss", "shard",
]  # fmt: skip


class MatMul(Operation):
    function = staticmethod(torch.matmul)


class BatchMatMul(Operation):
    function = staticmethod(torch.matmul)


class Add(Operation):
    function = staticmethod(torch.add)


class Sub(Operation):
    function = staticmethod(torch.sub)


class Mul(Operation):
    function = staticmethod(torch.mul)


class Div(Operation):
    function = staticmethod(torch.div)


class Square(Operation):
    function = staticmethod(torch.square)


class ReLU(Operation):
    function = staticmethod(torch.relu)


class GeLU(Operation):
    function = staticmethod(functional.gelu)


class Sigmoid(Operation):
    function = staticmethod(torch.sigmoid)


class Tanh(Operation):
    function = staticmethod(torch.tanh)


class Softmax(Operation):
    """Softmax along `dim`."""

    function = staticmethod(torch.softmax)

    def __init__(self, dim: int = -1) -> None:
        super().__init__(dim=dim)


class ReduceMean(Operation):
    """The mean over `dim`, or over all dims."""

    function = staticmethod(torch.mean)


class ReduceSum(Operation):
    """The sum over `dim`, or over all dims."""

    function = staticmethod(torch.sum)


class Transpose(Operation):
    """A permutation of dims."""

    function = staticmethod(torch.permute)

    def __init__(self, *order: int) -> None:
        super().__init__(dims=order)
