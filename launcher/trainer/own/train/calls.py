"""Traces a network's calls in training and evaluation mode, and finds the parameters that each call uses."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, fx, nn

from launcher.core.errors import UsageError
from launcher.core.frozen import frozen
from launcher.trainer.own.divide import Rows
from launcher.trainer.own.trace import IN_PLACE, LINE, Tracing, class_name, nodes_of, text_of, variable_names
from launcher.trainer.own.train.layers import Transformer, TransformerDecoder, TransformerEncoder
from launcher.trainer.own.train.parallel_modules import AttentionMask, CrossEntropyLoss, DrawnDropout, VocabEmbedding

LAYERS = (Transformer, TransformerEncoder, TransformerDecoder)
LEAVES = (VocabEmbedding, AttentionMask, CrossEntropyLoss, *LAYERS, DrawnDropout)
INPUTS = ("encoder_inputs", "decoder_inputs")  # arguments of a Transformer that only the first stage computes
RECEIVED = "received_by_stage"  # the argument of a stage for the previous stage's output


@frozen
class Arguments:
    """The arguments of a network's forward: names for the items of a batch, and defaults for other arguments."""

    items: frozenset[str]
    defaults: Mapping[str, Any]
    variable: int = 0  # number of items in `*args`


@frozen
class TracedNetwork:
    """A traced network: its calls as torch.fx nodes, and the constants that its code uses."""

    network: nn.Module
    nodes: Sequence[fx.Node]
    constants: Mapping[str, Any]
    inputs: frozenset[str]  # names of the arguments that are items of a batch
    evaluated: TracedNetwork | None = None  # the calls in evaluation mode, if they differ

    @property
    def output(self) -> Any:
        """The node, or nodes, that the network returns."""
        return next(node for node in self.nodes if node.op == "output").args[0]

    @property
    def has_penalty(self) -> bool:
        """True if the code iterates over parameters, as for a weight penalty. torch.fx records them as constants."""
        return any(isinstance(each, Tensor) and each.requires_grad for each in self.constants.values())

    def module(self, node: fx.Node) -> nn.Module:
        return self.network.get_submodule(str(node.target))

    def parameters(self, node: fx.Node) -> Collection[Tensor]:
        if node.op == "call_module":
            return list(self.module(node).parameters())
        if node.op == "get_attr" and str(node.target) not in self.constants:
            tensor = attrgetter(str(node.target))(self.network)
            return [tensor] if isinstance(tensor, nn.Parameter) else []
        return []

    def needed(self, wanted: Iterable[Any], skipped: fx.Node | None = None) -> list[fx.Node]:
        """Return the nodes that `wanted` depends on, in trace order. At the node `skipped`, follow only mask inputs."""
        found: set[fx.Node] = set()
        collect: Callable[[fx.Node], Any] = found.add
        fx.node.map_arg(list(wanted), collect)
        for node in reversed(self.nodes):
            if node in found and node is skipped:
                fx.node.map_arg(masks_of(node), collect)
            elif node in found:
                fx.node.map_arg((node.args, dict(node.kwargs)), collect)
        return [node for node in self.nodes if node in found and node.op != "output"]

    def depends_on_parameters(self, wanted: Iterable[Any]) -> fx.Node | None:
        """Return the first node that uses parameters and that `wanted` depends on, or None if there is none."""
        return next((node for node in self.needed(wanted) if self.parameters(node)), None)

    def part(self, wanted: Any, transformer: fx.Node | None = None, *, is_first: bool = True) -> fx.GraphModule:
        """Return a module that computes the wanted nodes of the trace.

        Unless `is_first`, the call `transformer` takes the previous stage's output (RECEIVED) instead of its inputs.
        """
        graph = fx.Graph()
        copies: dict[fx.Node, Any] = {}
        for node in self.nodes:  # keep all inputs: each stage is called with the full batch
            if node.op == "placeholder" and str(node.target).strip("*") in self.inputs:
                copies[node] = graph.placeholder(str(node.target))
        skipped = None if is_first else transformer
        received = None if skipped is None else graph.placeholder(RECEIVED)
        for node in self.needed([wanted], skipped):
            if node in copies:
                continue
            if node is skipped:
                masks = fx.node.map_arg(masks_of(node), copies.__getitem__)
                options = {**masks, "encoder_inputs": None, "received": received}
                copies[node] = graph.call_module(str(node.target), (), options)
            else:
                copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(fx.node.map_arg(wanted, copies.__getitem__))
        graph.lint()
        for name, value in self.constants.items():
            setattr(self.network, name, value)
        try:
            return fx.GraphModule(self.network, graph, class_name(self.network))
        finally:
            for name in self.constants:
                delattr(self.network, name)


def traced_network(network: nn.Module, arguments: Arguments, rows: Rows, device: torch.device) -> TracedNetwork:
    """Trace a network in training and evaluation mode. `rows` is an example batch on the CPU.

    Raises:
        UsageError: the network cannot be traced. The message has the line and the reason.
    """
    how = Tracing(LEAVES, arguments.defaults, keeps_in_place=True, variable=arguments.variable)
    was_training = network.training
    calls: dict[bool, tuple[list[fx.Node], dict[str, Any]]] = {}
    try:
        for is_training in (False, True):
            network.train(is_training)
            calls[is_training] = nodes_of(network, how)
    finally:
        network.train(was_training)
    training, evaluation = (TracedNetwork(network, *calls[each], arguments.items) for each in (True, False))
    is_same = text_of(training.nodes) == text_of(evaluation.nodes)
    for found in (training,) if is_same else (training, evaluation):
        _check_in_place(found)
        _settle_types(found, rows, device)
    return training if is_same else replace(training, evaluated=evaluation)


def arguments_of(network: nn.Module, items: int) -> Arguments:
    """Match the items of a batch with the arguments of the network's forward.

    Raises:
        UsageError: the forward does not accept that number of arguments.
    """
    signature = inspect.signature(network.forward)
    try:
        bound = signature.bind(*range(items)).arguments
    except TypeError as error:
        raise UsageError(
            f"a sample has {items} items, but the forward of {class_name(network)} takes the arguments {signature}: "
            f"{error}"
        ) from error
    variable = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    others = {
        name: each.default
        for name, each in signature.parameters.items()
        if name not in bound and each.kind not in variable
    }
    [several] = [name for name in bound if signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL] or [""]
    count = len(bound[several]) if several else 0
    names = {name for name in bound if name != several}
    return Arguments(frozenset((*names, *variable_names(several, count))), others, count)


def _check_in_place(found: TracedNetwork) -> None:
    """Raise if a tensor is used after it was changed in place, since a pipeline stage could leave out the change."""
    place = {node: number for number, node in enumerate(found.nodes)}
    for node in found.nodes:
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        module = found.module(node) if node.op == "call_module" else None
        is_named_so = node.op != "call_module" and str(name).endswith("_") and not str(name).endswith("__")
        is_asked_for = node.kwargs.get("inplace") or node.kwargs.get("out") is not None
        if not (is_named_so or node.target in IN_PLACE or is_asked_for or getattr(module, "inplace", False)):
            continue
        changed = next((each for each in node.all_input_nodes), None)
        seen_later = changed is not None and any(place[user] > place[node] for user in changed.users)
        if seen_later or not node.users:
            raise UsageError(
                f"{node.meta.get(LINE, '')}: {class_name(found.network)} cannot be traced: {name or 'a module'} changes "
                "a tensor in place, but the tensor is used again later",
                hint="create a new tensor, for example `x = x + y`",
            )


def _settle_types(found: TracedNetwork, rows: Rows, device: torch.device) -> None:
    """Replace `tensor.dtype` and `tensor.device` in a trace by their values, if the tensor depends on parameters.

    A mask in the dtype of an embedding can then be computed without the embedding. A call with `rows` determines the
    values. Constants that are the CPU's device become `device`.
    """
    asking = [
        node
        for node in found.nodes
        if node.target is getattr and node.args[1] in {"dtype", "device"} and found.depends_on_parameters([node])
    ]
    with torch.no_grad():
        values = found.part(tuple(asking))(*(each.clone() for each in rows)) if asking else ()
    settled = dict(zip(asking, values, strict=True))

    def replaced(argument: Any) -> Any:
        value = settled.get(argument, argument) if isinstance(argument, fx.Node) else argument
        return device if isinstance(value, torch.device) and value.type == "cpu" else value  # traced on the CPU

    for node in found.nodes:
        node.args, node.kwargs = fx.node.map_aggregate((node.args, dict(node.kwargs)), replaced)


def masks_of(node: fx.Node) -> dict[str, Any]:
    """Return the masks of a Transformer call by argument name. Every pipeline stage computes them."""
    return {name: value for name, value in arguments_by_name(Transformer, node).items() if name not in INPUTS}


def arguments_by_name(kind: type[nn.Module], node: fx.Node) -> dict[str, Any]:
    bound = inspect.signature(kind.forward).bind(None, *node.args, **node.kwargs).arguments
    bound.pop("self")
    return dict(bound)
