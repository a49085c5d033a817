"""Collects the graph of a model's operators in one training step, with the names and shapes of their tensors.

An operator is a module without submodules, named as in the model, or a computing function called between such modules.
As in torch.fx, a function is named after the calling module: `encoder.0.add`, `encoder.0.add_1`. Functions that only
move or slice a tensor (`view`, `transpose`, `split`) are not operators. Their results keep the tensor's origin, the
operator that computed it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from launcher.core.frozen import frozen

# Function name -> kind of operator. Other functions are not operators.
FUNCTIONS = {
    **dict.fromkeys(("add", "add_", "__add__", "__radd__", "__iadd__"), "add"),
    **dict.fromkeys(("sub", "sub_", "__sub__", "__rsub__", "__isub__"), "sub"),
    **dict.fromkeys(("mul", "mul_", "__mul__", "__rmul__", "__imul__"), "mul"),
    **dict.fromkeys(("div", "div_", "true_divide", "__truediv__", "__rtruediv__"), "div"),
    **dict.fromkeys(("matmul", "__matmul__", "mm", "bmm"), "matmul"),
    **{name: name for name in ("relu", "gelu", "sigmoid", "tanh", "square", "softmax", "log_softmax", "mean", "sum")},
    **{name: name for name in ("linear", "conv2d", "batch_norm", "layer_norm", "embedding", "max_pool2d", "avg_pool2d")},
    **{name: name for name in ("adaptive_avg_pool2d", "cross_entropy", "mse_loss")},
    "scaled_dot_product_attention": "attention",
}  # fmt: skip
CONSTANT = "constant"  # the name of tensors without a known origin


@frozen
class SeenTensor:
    name: str  # its origin: an operator, a parameter, the data
    size: tuple[int, ...]
    is_parameter: bool = False


@dataclass
class SeenOperator:
    name: str
    kind: str
    inputs: tuple[SeenTensor, ...]
    size: tuple[int, ...]  # of its output
    calls: int = 1


class OperatorGraph:
    """The operators of a step, in the order of their first calls."""

    def __init__(self) -> None:
        self.operators: dict[str, SeenOperator] = {}
        self._origins = WeakTensorKeyDictionary()
        self._used: dict[str, Counter[str]] = {}  # by module: how often each name was used in this pass

    def enter_module(self, scope: str) -> None:
        """Record the start of a call of the module `scope`, and restart the numbering of its operators."""
        inside = f"{scope}." if scope else ""
        self._used = {name: used for name, used in self._used.items() if name != scope and not name.startswith(inside)}

    def next_name(self, scope: str, own: str) -> str:
        """Return a new operator name in the module `scope`: "scope.own", then "scope.own_1", and so on."""
        used = self._used.setdefault(scope, Counter())
        number, used[own] = used[own], used[own] + 1
        name = own if number == 0 else f"{own}_{number}"
        return f"{scope}.{name}" if scope else name

    def name_tensors(self, tensors: Mapping[str, Tensor | None]) -> None:
        """Name the tensors that no recorded operator computes, for example the input data."""
        for name, tensor in tensors.items():
            if tensor is not None:
                self._origins[tensor] = name

    def computed(
        self, name: str, kind: str, taken: Sequence[Any], parameters: Mapping[str, Tensor], output: Any
    ) -> None:
        """Record an operator that computed `output` from the tensors in `taken` and from `parameters`."""
        if not isinstance(output, Tensor):
            return
        if name in self.operators:
            self.operators[name].calls += 1
        else:
            inputs = [SeenTensor(self._origins.get(one, CONSTANT), tuple(one.shape)) for one in _tensors(taken)]
            inputs += [SeenTensor(own, tuple(one.shape), is_parameter=True) for own, one in parameters.items()]
            self.operators[name] = SeenOperator(name, kind, tuple(inputs), tuple(output.shape))
        self._origins[output] = name

    def called(self, function: Callable[..., Any], scope: str | None, taken: Sequence[Any], output: Any) -> None:
        """Record a torch function called in the module `scope`. If `scope` is None, the call is not an operator."""
        kind = FUNCTIONS.get(getattr(function, "__name__", ""))
        tensors = _tensors(taken)
        if kind is not None and scope is not None and tensors:
            own = "sdpa" if kind == "attention" else kind
            self.computed(self.next_name(scope, own), kind, tensors, {}, output)
            return
        origin = next((self._origins[one] for one in tensors if one in self._origins), None)
        for one in _tensors([output]):
            if origin is not None and one not in self._origins:
                self._origins[one] = origin


def _tensors(values: Sequence[Any]) -> list[Tensor]:
    """Return the tensors in `values`, including those in its lists and tuples."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += [one for one in value if isinstance(one, Tensor)]
    return found
