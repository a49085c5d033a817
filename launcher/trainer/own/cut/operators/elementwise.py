"""Elementwise operators. They can be sharded along any dim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from launcher.sharding.expression import Expression
from launcher.trainer.own.cut.operators.record import Recorder, Value, broadcast_dims, everywhere, refuse, sizes_of


def unary(kind: str, function: Callable[..., Tensor]) -> Callable[..., Value]:
    """Return a function that records calls of an elementwise `function` on one tensor in a trace."""

    def describe(record: Recorder, x: Value, *numbers: Any, inplace: bool = False, **options: Any) -> Value:  # noqa: ARG001 - for `trace`
        dims = broadcast_dims(x.shape, x.shape)

        def local(x: Tensor) -> Tensor:
            return function(x, *numbers, **options)

        # Not computed on the meta device: torch would import its compiler, which takes a second.
        output = torch.empty_like(x.meta) if x.meta.is_floating_point() else local(x.meta)
        return record(kind, [x], Expression((dims,), dims, sizes_of(dims, x.shape)), output, everywhere(local))

    return describe


def binary(kind: str, function: Callable[..., Tensor]) -> Callable[..., Value]:
    """Return a function that records calls of an elementwise `function` on two tensors, or a tensor and a number."""

    def describe(record: Recorder, one: Value | float, other: Value | float, **options: Any) -> Value:
        if any(value not in (None, 1) for value in options.values()):
            refuse(f"{kind} with {', '.join(options)} is not supported")
        if isinstance(one, Value) and isinstance(other, Value):
            metas = (one.meta, other.meta)
            if all(each.is_floating_point() for each in metas):  # not computed, as in `unary`
                shape = torch.broadcast_shapes(one.shape, other.shape)
                output = one.meta.new_empty(shape, dtype=torch.result_type(*metas))
            else:
                output = function(*metas)
            ours, theirs = (broadcast_dims(each.shape, output.shape) for each in (one, other))
            result = broadcast_dims(output.shape, output.shape)
            expression = Expression((ours, theirs), result, sizes_of(result, output.shape))
            return record(kind, [one, other], expression, output, everywhere(function))
        if isinstance(one, Value):
            return unary(kind, lambda x: function(x, other))(record, one)
        assert isinstance(other, Value), "one of them is a tensor"
        number: float = one

        def of_number(x: Tensor) -> Tensor:
            return function(torch.as_tensor(number, dtype=torch.result_type(x, number), device=x.device), x)

        return unary(kind, of_number)(record, other)

    return describe


def power(record: Recorder, x: Value, exponent: float) -> Value:
    """Record the power of a tensor with a fixed exponent, and return the output."""
    if isinstance(exponent, Value):
        refuse("a power with a tensor as its exponent is not supported", hint="use a number as the exponent")
    return unary("square", torch.square)(record, x) if exponent == 2 else unary("pow", torch.pow)(record, x, exponent)


def bias_add(record: Recorder, x: Value, bias: Value, *, dim: int, suffix: str = "") -> Value:
    """Record the addition of a bias along `dim` of x, and return the output."""
    dims = broadcast_dims(x.shape, x.shape)
    expression = Expression((dims, (dims[dim],)), dims, sizes_of(dims, x.shape))
    after = (1,) * (x.meta.dim() - 1 - dim % x.meta.dim())

    def add(x: Tensor, bias: Tensor) -> Tensor:
        return x + (bias.view(-1, *after) if after else bias)

    return record("bias_add", [x, bias], expression, torch.empty_like(x.meta), everywhere(add), suffix=suffix)


def dropout(_record: Recorder, x: Value, p: float = 0.5, training: bool = True, inplace: bool = False) -> Value:  # noqa: ARG001 - it changes nothing
    """Return x unchanged. Raise a UsageError if the dropout would drop elements."""
    if p and training:
        told = f"dropout with p = {p:g} in training mode is not supported"
        refuse(
            f"{told}: it would drop different elements on each layout",
            hint="set p = 0, or call network.eval()",
        )
    return x


UNARY: dict[str, Callable[..., Tensor]] = {
    "clone": torch.clone,
    "relu": torch.relu,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "square": torch.square,
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "abs": torch.abs,
    "neg": torch.neg,
}
BINARY: dict[str, Callable[..., Tensor]] = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div}
