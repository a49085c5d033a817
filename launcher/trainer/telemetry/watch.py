"""Records the operators of a model, by hooks on its modules and by intercepting calls of torch functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode

from launcher.trainer.telemetry.recording import Recorder, recording

_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@contextmanager
def watching(model: nn.Module, recorder: Recorder) -> Iterator[None]:
    """In a `with` block, record the operators of `model`, function calls between its modules, and all communication."""
    with ExitStack() as undo:
        for name, module in model.named_modules():
            is_operator = next(module.children(), None) is None
            # Runs before the hook of model parallelism (`prepend`), and after exceptions, because recompute raises one.
            entry = module.register_forward_pre_hook(partial(_begin, recorder, name, is_operator), prepend=True)
            undo.callback(entry.remove)
            leaving = module.register_forward_hook(partial(_end, recorder, name, is_operator), always_call=True)
            undo.callback(leaving.remove)
        undo.enter_context(recording(recorder))
        undo.enter_context(_Functions(recorder))
        yield


def kind_of(module: nn.Module) -> str:
    """Return the operator kind of a module: the name of its class, or of its first public base class, in snake case.

    >>> kind_of(nn.LayerNorm(2)), kind_of(nn.ReLU()), kind_of(nn.BatchNorm2d(2))
    ('layer_norm', 'relu', 'batch_norm2d')
    """
    name = next(cls.__name__ for cls in type(module).__mro__ if not cls.__name__.startswith("_"))
    return "relu" if name == "ReLU" else _WORD.sub("_", name).lower()


def _begin(recorder: Recorder, name: str, is_operator: bool, _module: nn.Module, _inputs: Any) -> None:
    if is_operator:
        scope, _, own = name.rpartition(".")
        # Recompute in backward reuses the names of forward.
        is_new = recorder.current_phase == "forward"
        recorder.begin(recorder.graph.next_name(scope, own) if is_new else name)
    else:
        recorder.graph.enter_module(name)
        recorder.begin(name, scope=name)


def _end(
    recorder: Recorder, called: str, is_operator: bool, module: nn.Module, inputs: tuple[Any, ...], output: Any
) -> None:
    name, phase = recorder.operator, recorder.current_phase
    recorder.end()
    if is_operator and phase == "forward":
        parameters = {f"{called}.{own}": value for own, value in module.named_parameters(recurse=False)}
        recorder.graph.computed(name, kind_of(module), inputs, parameters, output)


class _Functions(TorchFunctionMode):
    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, function: Callable[..., Any], _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **(kwargs or {}))
        self._recorder.called(function, (*args, *(kwargs or {}).values()), output)
        return output
