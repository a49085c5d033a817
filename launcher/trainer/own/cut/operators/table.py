"""The descriptions of torch's functions, methods and modules.

Methods and modules have the description of the function that they call. A module's parameters are the function's
arguments after its input.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from launcher.trainer.own.cut.operators import elementwise, norms, products, reductions, shapes
from launcher.trainer.own.cut.operators.record import Value, refuse

Description = Callable[..., Value]  # called with a Recorder, then with the described function's arguments
Described = tuple[Description, tuple[Any, ...]]  # a module's description, and its arguments after the inputs

_ELEMENTWISE: dict[str, Description] = {
    **{kind: elementwise.unary(kind, function) for kind, function in elementwise.UNARY.items()},
    **{kind: elementwise.binary(kind, function) for kind, function in elementwise.BINARY.items()},
    "pow": elementwise.power,
}
# By the function's names in torch, torch.nn.functional, operator and torch.Tensor.
_BY_NAME: dict[str, Description] = {
    **_ELEMENTWISE,
    "true_divide": _ELEMENTWISE["div"],
    "truediv": _ELEMENTWISE["div"],
    "multiply": _ELEMENTWISE["mul"],
    "subtract": _ELEMENTWISE["sub"],
    "negative": _ELEMENTWISE["neg"],
    "matmul": products.matmul,
    "mm": products.matmul,
    "bmm": products.matmul,
    "linear": products.linear,
    "conv2d": products.conv2d,
    "embedding": products.embedding,
    "softmax": norms.along_dim("softmax", torch.softmax),
    "log_softmax": norms.along_dim("log_softmax", torch.log_softmax),
    "layer_norm": norms.layer_norm,
    "mean": reductions.reduction("mean"),
    "sum": reductions.reduction("sum"),
    "mse_loss": reductions.mse_loss,
    "cross_entropy": reductions.cross_entropy,
    "max_pool2d": reductions.max_pool2d,
    "avg_pool2d": reductions.avg_pool2d,
    "adaptive_avg_pool2d": reductions.adaptive_avg_pool2d,
    "transpose": shapes.transpose,
    "swapaxes": shapes.transpose,
    "permute": shapes.permute,
    "t": shapes.matrix_transpose,
    "reshape": shapes.reshape,
    "view": shapes.reshape,
    "flatten": shapes.flatten,
    "unflatten": shapes.unflatten,
    "unsqueeze": shapes.unsqueeze,
    "squeeze": shapes.squeeze,
    "dropout": elementwise.dropout,
}
FUNCTIONS: Mapping[Any, Description] = MappingProxyType(
    {
        getattr(home, name): description
        for home in (torch, functional, operator)
        for name, description in _BY_NAME.items()
        if hasattr(home, name)
    }
)
# Functions that change their first input in place. Methods that do so end with "_".
IN_PLACE: Mapping[Any, Description] = MappingProxyType(
    {
        **{getattr(operator, f"i{name}"): _BY_NAME[name] for name in ("add", "sub", "mul", "truediv")},
        **{
            getattr(home, f"{name}_"): description
            for home in (torch, functional)
            for name, description in _BY_NAME.items()
            if hasattr(home, f"{name}_")
        },
    }
)


def _conv2d(module: nn.Conv2d) -> Described:
    if module.padding_mode != "zeros":
        refuse(f"padding_mode={module.padding_mode!r} is not supported", hint="use padding_mode='zeros'")
    options = (module.stride, module.padding, module.dilation, module.groups)
    return products.conv2d, (module.weight, module.bias, *options)


def _with(name: str, *attributes: str, options: Sequence[str] = ()) -> Callable[[Any], Described]:
    """Return a function that describes a module as a call of function `name`, with module attributes as arguments."""

    def describe(module: Any) -> Described:
        description = partial(_BY_NAME[name], **{option: getattr(module, option) for option in options})
        return description, tuple(getattr(module, attribute) for attribute in attributes)

    return describe


_POOL = ("kernel_size", "stride", "padding")
_EMBEDDING = ("weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
_CROSS_ENTROPY = ("weight", "ignore_index", "reduction", "label_smoothing")
MODULES: Mapping[type[nn.Module], Callable[[Any], Described]] = MappingProxyType(
    {
        nn.Linear: _with("linear", "weight", "bias"),
        nn.Conv2d: _conv2d,
        nn.Embedding: _with("embedding", *_EMBEDDING),
        nn.LayerNorm: _with("layer_norm", "normalized_shape", "weight", "bias", "eps"),
        nn.MaxPool2d: _with("max_pool2d", *_POOL, "dilation", "ceil_mode", "return_indices"),
        nn.AvgPool2d: _with("avg_pool2d", *_POOL, "ceil_mode", "count_include_pad", "divisor_override"),
        nn.AdaptiveAvgPool2d: _with("adaptive_avg_pool2d", "output_size"),
        nn.ReLU: _with("relu"),
        nn.GELU: _with("gelu", options=["approximate"]),
        nn.SiLU: _with("silu"),
        nn.Sigmoid: _with("sigmoid"),
        nn.Tanh: _with("tanh"),
        nn.Softmax: _with("softmax", "dim"),
        nn.LogSoftmax: _with("log_softmax", "dim"),
        nn.Flatten: _with("flatten", "start_dim", "end_dim"),
        nn.Unflatten: _with("unflatten", "dim", "unflattened_size"),
        nn.Dropout: _with("dropout", "p", "training"),
        nn.Identity: lambda _module: (lambda _record, x: x, ()),
        nn.MSELoss: _with("mse_loss", options=["reduction"]),
        nn.CrossEntropyLoss: _with("cross_entropy", options=_CROSS_ENTROPY),
    }
)


def described_function(target: Any, arguments: Sequence[Any]) -> tuple[Description, bool] | None:
    """Return the function that records calls of `target`, and a flag: True if the calls change an input in place.

    `target` is a function or a method's name. Return None if it is unknown.
    """
    if isinstance(target, str):
        name = target.removesuffix("_")
        found = _BY_NAME.get(name)
        return None if found is None else (found, target != name)
    if target is getattr and arguments[1] in {"T", "mT"}:
        return (lambda record, x, _name: shapes.transpose(record, x, -2, -1)), False
    if target in IN_PLACE:
        return IN_PLACE[target], True
    return (FUNCTIONS[target], False) if target in FUNCTIONS else None


def described_module(module: nn.Module) -> Described | None:
    """Return the function that records calls of `module`, and its extra arguments. Return None for unknown modules."""
    return next((arguments(module) for kind, arguments in MODULES.items() if isinstance(module, kind)), None)


def fact_of(target: Any, arguments: Sequence[Any]) -> tuple[Any] | None:
    """Return (result,) if tracing knows the result of a call, for example a shape. Otherwise return None.

    Calls that return the tensor itself, such as `contiguous`, are also known.
    """
    first = arguments[0] if arguments else None
    if not isinstance(first, Value):
        return None
    if target is getattr and arguments[1] in {"shape", "ndim", "dtype", "device"}:
        return (getattr(first.meta, arguments[1]),)
    if target in {"size", "dim", "numel"}:
        return (getattr(first.meta, target)(*arguments[1:]),)
    is_itself = target == "contiguous" or (target == "float" and first.meta.dtype == torch.float32)
    return (first,) if is_itself else None


def known() -> str:
    """Return the names of all supported operators, separated by commas."""
    return ", ".join(sorted({*_BY_NAME, "batch_norm"}))
