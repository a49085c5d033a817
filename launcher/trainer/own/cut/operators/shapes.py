"""Operators that change a tensor's shape without moving elements between ranks.

If dims are merged or split, the outermost can be sharded: its parts are consecutive elements in both shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import gcd, prod
from typing import Any

import torch
from torch import Tensor

from launcher.sharding.expression import Expression
from launcher.trainer.own.cut.operators.record import (
    ELEMENTS,
    Dims,
    Local,
    OpContext,
    Recorder,
    Value,
    broadcast_dims,
    everywhere,
    refuse,
    sizes_of,
)


def permute(record: Recorder, x: Value, *order: Any) -> Value:
    dims = [dim % x.meta.dim() for dim in _flat(order)]
    ours = broadcast_dims(x.shape, x.shape)
    expression = Expression((ours,), tuple(ours[dim] for dim in dims), sizes_of(ours, x.shape))
    return record("transpose", [x], expression, x.meta.permute(dims), everywhere(partial(torch.permute, dims=dims)))


def transpose(record: Recorder, x: Value, dim0: int, dim1: int) -> Value:
    order = list(range(x.meta.dim()))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return permute(record, x, order)


def matrix_transpose(record: Recorder, x: Value) -> Value:
    if x.meta.dim() != 2:
        told = f"`t` of a tensor with {x.meta.dim()} dims is not supported"
        refuse(told, hint="pass a matrix, or call transpose(dim0, dim1)")
    return permute(record, x, 1, 0)


def reshape(record: Recorder, x: Value, *shape: Any) -> Value:
    return _reshaped(record, x, x.meta.reshape(_flat(shape)))


def flatten(record: Recorder, x: Value, start_dim: int = 0, end_dim: int = -1) -> Value:
    return _reshaped(record, x, x.meta.flatten(start_dim, end_dim))


def unflatten(record: Recorder, x: Value, dim: int, sizes: Sequence[int]) -> Value:
    return _reshaped(record, x, x.meta.unflatten(dim, tuple(sizes)))


def unsqueeze(record: Recorder, x: Value, dim: int) -> Value:
    return _reshaped(record, x, x.meta.unsqueeze(dim))


def squeeze(record: Recorder, x: Value, *dims: Any) -> Value:
    return _reshaped(record, x, x.meta.squeeze(_flat(dims)) if dims else x.meta.squeeze())


def _reshaped(record: Recorder, x: Value, output: Tensor) -> Value:
    def local(site: OpContext) -> Local:
        return partial(torch.reshape, shape=site.local_shape)

    ours, theirs, sizes = reshape_dims(x.shape, output.shape)
    return record("reshape", [x], Expression((ours,), theirs, sizes), output, local)


def reshape_dims(source: Sequence[int], target: Sequence[int]) -> tuple[Dims, Dims, dict[str, int]]:
    """Label the dims of a tensor before and after a reshape with index letters, as in einsum.

    Runs of dims with the same product correspond, and their outermost dims share an index, along which both can be
    sharded. The size of the index is the greatest common divisor of both dims.

    >>> reshape_dims((4, 6, 10), (24, 2, 5))
    (('i', None, 'j'), ('i', 'j', None), {'i': 4, 'j': 2})
    """
    ours: list[str | None] = [None] * len(source)
    theirs: list[str | None] = [None] * len(target)
    sizes: dict[str, int] = {}
    mine, its = _larger(source), _larger(target)
    while mine and its:
        taken, given = [mine.pop(0)], [its.pop(0)]
        while (left := prod(source[dim] for dim in taken)) != (right := prod(target[dim] for dim in given)):
            if left < right:
                taken.append(mine.pop(0))
            else:
                given.append(its.pop(0))
        index = ELEMENTS[len(sizes)]
        ours[taken[0]] = theirs[given[0]] = index
        sizes[index] = gcd(source[taken[0]], target[given[0]])
    return tuple(ours), tuple(theirs), sizes


def _larger(shape: Sequence[int]) -> list[int]:
    return [dim for dim, size in enumerate(shape) if size > 1]


def _flat(values: tuple[Any, ...]) -> tuple[int, ...]:
    """Return sizes or dims as one tuple. As in torch, callers may pass them separately or as one sequence."""
    return tuple(values[0]) if len(values) == 1 and isinstance(values[0], tuple | list | torch.Size) else values
