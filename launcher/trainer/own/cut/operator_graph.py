"""Traces a network to a graph of operators, with torch.fx and the meta device. No values are computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, fx, nn

from launcher.core.errors import UsageError
from launcher.core.frozen import frozen
from launcher.sharding.expression import Expression, Strategy
from launcher.sharding.graph import VIEWS, Graph, Leaf, Operator
from launcher.sharding.strategy import strategy_from
from launcher.trainer.own.cut.operators import norms
from launcher.trainer.own.cut.operators.record import Local, OpContext, State, Value
from launcher.trainer.own.cut.operators.table import (
    FUNCTIONS,
    Described,
    described_function,
    described_module,
    fact_of,
    known,
)
from launcher.trainer.own.trace import LINE, OVERWRITES, Tracing, class_name, nodes_of, own_name

ATTRIBUTE = "in_strategy"  # attribute of a module, with MindSpore's name

Module = TypeVar("Module", bound=nn.Module)


def shard(module: Module, strategy: Strategy) -> Module:
    """Set the sharding strategy of an operator such as nn.Linear or nn.ReLU, and return the module.

    A strategy has the number of parts along each dim of each input. If the module has several operators, such as a
    linear layer and its bias, the strategy applies to the first.

    Raises:
        UsageError: `strategy` is not a valid strategy.
    """
    # Bypass nn.Module's setter, which looks for parameters.
    object.__setattr__(module, ATTRIBUTE, checked_strategy(strategy, f"a {type(module).__name__}"))
    return module


def checked_strategy(strategy: Any, owner: str) -> Strategy:
    """Return the strategy of an operator or module. Raises UsageError if it is not a valid one."""
    try:
        return strategy_from(strategy)
    except ValueError as error:
        raise UsageError(f"the strategy {strategy!r} of {owner} is invalid", hint=f"pass {error}") from None


class Operation(nn.Module):
    """A module without parameters that calls one torch function with fixed options."""

    function: ClassVar[Callable[..., Tensor]]

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, *inputs: Tensor) -> Tensor:
        return type(self).function(*inputs, **self.options)

    def shard(self, strategy: Strategy) -> Operation:
        """Set the number of shards along each dim of each input, and return the module."""
        return shard(self, strategy)


@frozen
class Call:
    """The computation of an operator on a rank, and the buffers that the operator updates."""

    local: Callable[[OpContext], Local]
    states: tuple[State, ...] = ()


@frozen
class Traced:
    """A traced network: its graph of operators, its parameters and buffers, and how to compute each operator."""

    graph: Graph
    calls: Mapping[str, Call]  # by operator
    inputs: tuple[str, ...]  # the network's inputs in order; some may have no consumer
    parameters: Mapping[str, nn.Parameter]  # full trained parameters
    buffers: Mapping[str, Tensor]  # full buffers, constants and states
    strategies: Mapping[str, Strategy]  # set in the network's code, by operator
    first_of: Mapping[str, str]  # the first operator of each module with several operators


def trace(network: nn.Module, example_inputs: Sequence[Tensor], *, batch_norm_is_shared: bool = True) -> Traced:
    """Trace a network. Only the shapes and dtypes of `example_inputs` matter, not their values.

    An operator's name is its module's path, followed by the function's name if the module has several operators. With
    `batch_norm_is_shared`, batch norms in training mode use the statistics of all ranks' images.

    Raises:
        UsageError: an operator is unknown, or the code depends on the values of tensors. The message has the line.
    """
    return _Trace(network, batch_norm_is_shared).of(example_inputs)


class _Trace:
    """A trace in progress, which records the operators of a network in the order of their calls."""

    def __init__(self, network: nn.Module, batch_norm_is_shared: bool) -> None:
        self._network, self._batch_norm_is_shared = network, batch_norm_is_shared
        self._operators: list[Operator] = []
        self._leaves: dict[str, Leaf] = {}
        self._calls: dict[str, Call] = {}
        self._tensors = {
            id(tensor): own_name(network, name)
            for name, tensor in (*network.named_parameters(), *network.named_buffers())
        }
        self._parameters: dict[str, nn.Parameter] = {}
        self._buffers: dict[str, Tensor] = {}
        self._taken: set[str] = set(self._tensors.values())
        self._base = ""  # prefix of the names of the operators of the current call
        self._bases: dict[str, list[str]] = {}  # prefixes by module; each call of a module has its own
        self._first_of: dict[str, str] = {}

    def of(self, example_inputs: Sequence[Tensor]) -> Traced:
        network = self._network
        nodes, constants = nodes_of(network, Tracing((Operation,)))
        values: dict[fx.Node, Any] = {}
        takes = sum(node.op == "placeholder" for node in nodes)
        if len(example_inputs) > takes:
            given = f"{len(example_inputs)} example inputs are given"
            raise UsageError(f"{class_name(network)} takes {takes} inputs, and {given}")
        examples = iter(example_inputs)
        inputs: list[str] = []
        output: Any = None
        for node in nodes:
            if node.op == "placeholder":
                example = next(examples, None)
                if example is None:
                    told = f"{class_name(network)} takes {node.target}, and example_inputs has no tensor for it"
                    raise UsageError(told)
                values[node] = self._leaf(self._free(str(node.target)), example)
                inputs.append(values[node].name)
            elif node.op == "output":
                output = fx.node.map_arg(node.args[0], values.__getitem__)
            elif node.op == "get_attr":
                path = str(node.target)
                tensor = constants[path] if path in constants else attrgetter(path)(network)
                values[node] = self._held(tensor, path.strip("_"))
            else:
                try:
                    values[node] = self._called(node, values)
                except UsageError as error:
                    line = node.meta.get(LINE, "")
                    raise UsageError(f"{line and f'{line}: '}{error.message}", hint=error.hint) from error
        if not isinstance(output, Value) or output.name not in self._calls:
            told = f"{class_name(network)} returns {type(output).__name__}"
            raise UsageError(told, hint="return the loss as one tensor")
        return self._finished(output, tuple(inputs))

    def _finished(self, output: Value, inputs: tuple[str, ...]) -> Traced:
        needed, operators = {output.name}, []
        for each in reversed(self._operators):
            if each.name in needed:
                needed.update(each.inputs)
                operators.append(each)
        leaves = tuple(leaf for leaf in self._leaves.values() if leaf.name in needed)
        graph = Graph(leaves, tuple(reversed(operators)), output.name)
        calls = {each.name: self._calls[each.name] for each in graph.operators}
        states = {state.name for call in calls.values() for state in call.states}
        strategies: dict[str, Strategy] = {}
        for module_path, module in self._network.named_modules():
            strategy, path = getattr(module, ATTRIBUTE, None), own_name(self._network, module_path)
            if strategy is None:
                continue
            if path not in self._bases:
                hint = f"set strategies on the submodules of {path} instead"
                raise UsageError(f"{path} has a sharding strategy, but is not an operator", hint=hint)
            strategies.update({self._first_of.get(base, base): strategy for base in self._bases[path]})
        return Traced(
            graph,
            calls,
            inputs,
            {name: each for name, each in self._parameters.items() if name in needed},
            {name: each for name, each in self._buffers.items() if name in needed or name in states},
            {name: strategy for name, strategy in strategies.items() if name in calls},
            self._first_of,
        )

    def _called(self, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
        """Record the operators of a call. Return its result: a Value, or a number or shape that tracing knows."""
        arguments, options = fx.node.map_arg((node.args, dict(node.kwargs)), values.__getitem__)
        if "input" in options:  # always the first argument of torch's functions
            arguments, options = (options["input"], *arguments), {k: v for k, v in options.items() if k != "input"}
        if node.op == "call_module":
            module = self._network.get_submodule(str(node.target))
            description, more = self._module(module, own_name(self._network, str(node.target)))
            changes = getattr(module, "inplace", False)
            arguments = (*arguments, *more)
            if isinstance(module, Operation):
                options = {**module.options, **options}
        else:
            target: Any = node.target
            if not any(isinstance(each, Value) for each in _flat((arguments, options))):  # only numbers and shapes
                function = getattr(type(arguments[0]), target) if isinstance(target, str) else target
                return function(*arguments, **options)
            fact = fact_of(target, arguments)
            if fact is not None:
                return fact[0]
            told = target if isinstance(target, str) else getattr(target, "__name__", str(target))
            stack = list(node.meta.get("nn_module_stack", {}).values())
            within = (
                own_name(self._network, f"{stack[-1][0]}.") if stack else ""
            )  # the module whose code makes the call
            self._base = self._free(f"{within}{told.strip('_')}".lstrip("."))
            described = described_function(target, arguments)
            if described is None:
                raise UsageError(f"{self._base}: {told} is not a known operator", hint=f"use one of {known()}")
            description, changes = described
            changes = changes or options.get("inplace", False)
        try:
            resolved = [self._held(each) if isinstance(each, Tensor) else each for each in arguments]
            value = description(self._record, *resolved, **options)
        except UsageError as error:
            raise UsageError(f"{self._base}: {error.message}", hint=error.hint) from error
        except (TypeError, RuntimeError, ValueError, IndexError, AttributeError) as error:
            first = str(error).partition("\n")[0]
            raise UsageError(f"{self._base} is called with unsupported arguments: {first}") from error
        taken: Any = arguments[0]
        if (changes or node.meta.get(OVERWRITES)) and isinstance(taken, Value) and value is not taken:
            self._changed_in_place(node, value, values)
        return value

    def _changed_in_place(self, node: fx.Node, value: Any, values: dict[fx.Node, Any]) -> None:
        """Make later calls use `value` for a tensor changed in place. Raise if the tensor is an input or a view.

        After `x += y`, raise only for parameters and if a later call uses a tensor that x is a view of, or a view of x.
        """
        changed = node.args[0] if node.args else node.kwargs["input"]
        assert isinstance(changed, fx.Node), "a tensor"
        name = values[changed].name
        own = next((each for each in self._operators if each.name == name), None)
        related = {name}
        for each in reversed(self._operators):
            if each.kind in VIEWS and each.name in related:
                related.update(each.inputs)
        for each in self._operators:
            if each.kind in VIEWS and not related.isdisjoint(each.inputs):
                related.add(each.name)
        if node.meta.get(OVERWRITES):
            others = related - {name}
            of_related = [each for each, held in values.items() if getattr(held, "name", "") in others]
            is_refused = changed.op == "get_attr" or any(
                each.users.keys() - values.keys() - {node} for each in of_related
            )
        else:
            is_refused = own is None or len(related) > 1
        if is_refused:
            raise UsageError(
                f"{self._base} changes a tensor in place, but the tensor is an input or a parameter, or shares "
                "memory with another tensor",
                hint="use an operator that returns a new tensor, for example `x = x + y` instead of `x += y`",
            )
        before = values[changed]
        for other, held in values.items():
            if held is before and other is not node:
                values[other] = value

    def _module(self, module: nn.Module, path: str) -> Described:
        """Return the function for recording a call of `module`, and this function's extra arguments."""
        self._base = self._free(path)
        self._bases.setdefault(path, []).append(self._base)
        if isinstance(module, Operation):
            return FUNCTIONS[type(module).function], ()
        if isinstance(module, nn.BatchNorm2d):
            return self._batch_norm(module)
        found = described_module(module)
        if found is None:
            told = f"{path}, a {type(module).__name__}, is not a known operator"
            raise UsageError(told, hint=f"use one of {known()}")
        return found

    def _batch_norm(self, module: nn.BatchNorm2d) -> Described:
        states = []
        for tensor, like in ((module.running_mean, 1), (module.running_var, 1), (module.num_batches_tracked, None)):
            if tensor is not None:
                name = self._tensors[id(tensor)]
                self._buffers[name] = tensor
                states.append(State(name, tensor.to("meta"), like))
        describe = partial(
            norms.batch_norm,
            uses_batch=module.training or not states,
            is_shared=self._batch_norm_is_shared,
            momentum=module.momentum,
            eps=module.eps,
        )
        return describe, (states, module.weight, module.bias)

    def _record(
        self,
        kind: str,
        inputs: Sequence[Value],
        expression: Expression,
        output: Tensor,
        local: Callable[[OpContext], Local],
        *,
        flops: int = 0,
        suffix: str = "",
        states: Sequence[State] = (),
    ) -> Value:
        name = f"{self._base}.{suffix}" if suffix else self._base
        if suffix:
            self._first_of.setdefault(self._base, name)
        self._taken.update((name, self._base))
        names = tuple(each.name for each in inputs)
        made = Operator(name, kind, names, tuple(output.shape), expression, flops, output.element_size())
        self._operators.append(made)
        self._calls[name] = Call(local, tuple(states))
        return Value(name, output)

    def _leaf(self, name: str, tensor: Tensor, *, is_parameter: bool = False) -> Value:
        self._taken.add(name)
        self._leaves[name] = Leaf(name, tuple(tensor.shape), is_parameter, tensor.element_size())
        return Value(name, torch.empty_like(tensor, device="meta"))

    def _held(self, tensor: Tensor, path: str = "constant") -> Value:
        """Record a parameter, a buffer or a constant of the network, and return its Value."""
        name = self._tensors.setdefault(id(tensor), path)
        if isinstance(tensor, nn.Parameter) and tensor.requires_grad:
            self._parameters[name] = tensor
            return self._leaf(name, tensor, is_parameter=True)
        self._buffers[name] = tensor
        return self._leaf(name, tensor)

    def _free(self, name: str) -> str:
        """Return `name`. If an operator or tensor already has that name, append a number."""
        number, free = 0, name
        while free in self._taken:
            number += 1
            free = f"{name}_{number}"
        return free


def _flat(arguments: Any) -> list[Any]:
    if isinstance(arguments, Mapping):
        return [found for each in arguments.values() for found in _flat(each)]
    if isinstance(arguments, list | tuple):
        return [found for each in arguments for found in _flat(each)]
    return [arguments]
