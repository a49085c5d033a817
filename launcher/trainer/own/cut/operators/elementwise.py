"""Operators that take each element on its own: any dim may be cut."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from launcher.sharding.expression import Expression
from launcher.trainer.own.cut.operators.record import Recorder, Value, broadcast_dims, everywhere, refuse, sizes_of


def unary(kind: str, function: Callable[..., Tensor]) -> Callable[..., Value]:
    """Return the description of an operator of one tensor, with the numbers and options that its function takes."""

    def describe(record: Recorder, x: Value, *numbers: Any, inplace: bool = False, **options: Any) -> Value:  # noqa: ARG001 - what is changed in place is known by `trace`
        dims = broadcast_dims(x.shape, x.shape)
        local = partial(_with_numbers, function, numbers, options) if numbers or options else function
        # Not computed on the meta device, for which torch would import its compiler: that takes a second.
        output = torch.empty_like(x.meta) if x.meta.is_floating_point() else local(x.meta)
        return record(kind, [x], Expression((dims,), dims, sizes_of(dims, x.shape)), output, everywhere(local))

    return describe


def _with_numbers(
    function: Callable[..., Tensor], numbers: tuple[Any, ...], options: dict[str, Any], x: Tensor
) -> Tensor:
    return function(x, *numbers, **options)


def binary(kind: str, function: Callable[..., Tensor]) -> Callable[..., Value]:
    """Return the description of an operator of two tensors that are broadcast, or of a tensor and a number."""

    def describe(record: Recorder, one: Value | float, other: Value | float, **options: Any) -> Value:
        if any(value not in (None, 1) for value in options.values()):
            refuse(f"{kind} with {', '.join(options)} is not known")
        if isinstance(one, Value) and isinstance(other, Value):
            output = _broadcast(function, one.meta, other.meta)
            ours, theirs = (broadcast_dims(each.shape, output.shape) for each in (one, other))
            result = broadcast_dims(output.shape, output.shape)
            expression = Expression((ours, theirs), result, sizes_of(result, output.shape))
            return record(kind, [one, other], expression, output, everywhere(function))
        if isinstance(one, Value):
            return unary(kind, lambda x: function(x, other))(record, one)
        assert isinstance(other, Value), "one of them is a tensor"
        return unary(kind, lambda x: function(_tensor_like(one, x), x))(record, other)

    return describe


def _broadcast(function: Callable[..., Tensor], one: Tensor, other: Tensor) -> Tensor:
    """Return the output on the meta device, computed there only where its type is not plain (see `unary`)."""
    if not (one.is_floating_point() and other.is_floating_point()):
        return function(one, other)
    return one.new_empty(torch.broadcast_shapes(one.shape, other.shape), dtype=torch.result_type(one, other))


def _tensor_like(number: float | Value, x: Tensor) -> Tensor:
    return torch.as_tensor(number, dtype=torch.result_type(x, cast("float", number)), device=x.device)


def power(record: Recorder, x: Value, exponent: float) -> Value:
    """Describe a power of each element."""
    if isinstance(exponent, Value):
        refuse("a power by a tensor is not known")
    return unary("square", torch.square)(record, x) if exponent == 2 else unary("pow", torch.pow)(record, x, exponent)


def bias_add(record: Recorder, x: Value, bias: Value, *, dim: int, suffix: str = "") -> Value:
    """Describe the addition of a vector along a dim of x."""
    dims = broadcast_dims(x.shape, x.shape)
    expression = Expression((dims, (dims[dim],)), dims, sizes_of(dims, x.shape))
    after = (1,) * (x.meta.dim() - 1 - dim % x.meta.dim())

    def add(x: Tensor, bias: Tensor) -> Tensor:
        return x + (bias.view(-1, *after) if after else bias)

    return record("bias_add", [x, bias], expression, torch.empty_like(x.meta), everywhere(add), suffix=suffix)


def dropout(_record: Recorder, x: Value, p: float = 0.5, training: bool = True, inplace: bool = False) -> Value:  # noqa: ARG001 - it changes nothing
    """Describe dropout where it does nothing; otherwise refuse it."""
    if p and training:
        refuse(
            f"dropout of {p:g} in training would draw other elements on each layout",
            hint="a probability of 0, or a network in evaluation (network.eval())",
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
