"""Finds, by torch.fx, what a network's code does before its Transformer and after it: the parts that the stages of a pipeline compute.

    first stage      what leads to the Transformer's inputs and masks; its first layers
    other stages     what leads to the masks, once more; some of its layers, on what the stage before has sent
    last stage       its last layers; what the network does with their output, and the loss

The batch is known on all stages, so what is computed from it alone is computed wherever it is needed.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from launcher.core.errors import RefusedLayoutError, UsageError
from launcher.core.frozen import frozen
from launcher.trainer.api.dropout import DrawnDropout
from launcher.trainer.api.layers import Transformer, TransformerDecoder, TransformerEncoder
from launcher.trainer.api.modules import AttentionMask, CrossEntropyLoss, VocabEmbedding
from launcher.trainer.shard.modules import class_name
from launcher.trainer.shard.nodes import IN_PLACE, LINE, Tracing, nodes_of, text_of

LEAVES = (
    VocabEmbedding,
    AttentionMask,
    CrossEntropyLoss,
    Transformer,
    TransformerEncoder,
    TransformerDecoder,
    DrawnDropout,
)
RECEIVED = "received_by_stage"  # the input of a stage that is what the stage before has sent
_INPUTS = ("encoder_inputs", "decoder_inputs")  # of a Transformer, which only the first stage computes
# What gives a tensor of the type of its first argument, or of all of them, where these are of the network's type.
_KEEPS_TYPE = frozenset(
    (operator.add, operator.sub, operator.mul, operator.truediv, operator.matmul, operator.neg, operator.getitem, torch.matmul)
)  # fmt: skip
_VIEWS = frozenset(
    ("view", "reshape", "flatten", "transpose", "permute", "unsqueeze", "squeeze", "contiguous", "expand", "repeat")
)


@frozen
class Arguments:
    """The arguments of a network's forward: those that are items of a batch, and the values of the others."""

    items: frozenset[str]
    defaults: Mapping[str, Any]


@frozen
class TracedNetwork:
    """A network's calls, and the constants in its code, by torch.fx's names for them."""

    network: nn.Module
    nodes: Sequence[fx.Node]
    constants: Mapping[str, Any]
    inputs: frozenset[str]  # the names of the arguments that are items of a batch
    asks_for_training: bool  # it does something else in evaluation, besides what its modules do

    @property
    def output(self) -> Any:
        """The node, or nodes, that the network returns."""
        return next(node for node in self.nodes if node.op == "output").args[0]

    @property
    def has_penalty(self) -> bool:
        """True where its code goes over parameters, as a penalty on all of them does: each is a constant for torch.fx."""
        return any(isinstance(each, Tensor) and each.requires_grad for each in self.constants.values())

    def module(self, node: fx.Node) -> nn.Module:
        return self.network.get_submodule(str(node.target))

    def parameters(self, node: fx.Node) -> Collection[Tensor]:
        """Return the parameters that a call computes with."""
        if node.op == "call_module":
            return list(self.module(node).parameters())
        if node.op == "get_attr" and str(node.target) not in self.constants:
            path, _, name = str(node.target).rpartition(".")
            tensor = getattr(self.network.get_submodule(path), name)
            return [tensor] if isinstance(tensor, nn.Parameter) else []
        return []

    def needed(self, wanted: Iterable[Any], skipped: fx.Node | None = None) -> list[fx.Node]:
        """Return what has to be computed for `wanted`, in order. Of the vectors that go into `skipped`, nothing is."""
        found: set[fx.Node] = set()
        collect: Callable[[fx.Node], Any] = found.add
        fx.node.map_arg(list(wanted), collect)
        for node in reversed(self.nodes):
            if node in found and node is skipped:
                fx.node.map_arg({k: v for k, v in _arguments(Transformer, node).items() if k not in _INPUTS}, collect)
            elif node in found:
                fx.node.map_arg((node.args, dict(node.kwargs)), collect)
        return [node for node in self.nodes if node in found and node.op != "output"]

    def depends_on_parameters(self, wanted: Iterable[Any]) -> fx.Node | None:
        """Return the first call that computes with parameters for `wanted`; None where none does."""
        return next((node for node in self.needed(wanted) if self.parameters(node)), None)


def traced_network(network: nn.Module, arguments: Arguments, device: torch.device) -> TracedNetwork:
    """Return what a network calls when it is called with a batch on a device.

    Raises:
        UsageError: it cannot be traced; the message says where and why.
    """
    how = Tracing(LEAVES, arguments.defaults, keeps_in_place=True)
    was_training = network.training
    calls = {}
    try:
        for is_training in (False, True):
            network.train(is_training)
            calls[is_training] = nodes_of(network, how)
    finally:
        network.train(was_training)
    nodes, constants = calls[True]
    found = TracedNetwork(network, nodes, constants, arguments.items, text_of(nodes) != text_of(calls[False][0]))
    _check_in_place(found)
    _settle_types(found, device)
    return found


def arguments_of(network: nn.Module, items: int) -> Arguments:
    """Return the arguments of a network that is called with so many items of a batch.

    Raises:
        UsageError: it takes another number of them.
    """
    signature = inspect.signature(network.forward)
    try:
        bound = signature.bind(*range(items)).arguments
    except TypeError as error:
        raise UsageError(
            f"{class_name(network)} is called with the {items} items of a sample, and its forward takes {signature}: {error}"
        ) from error
    variable = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    others = {
        name: each.default
        for name, each in signature.parameters.items()
        if name not in bound and each.kind not in variable
    }
    return Arguments(frozenset(bound), others)


def stage_networks(found: TracedNetwork, count: int) -> list[fx.GraphModule]:
    """Return the network that each of `count` stages of a pipeline computes, made of the network's own modules.

    It is called as the network, on all stages but the first with RECEIVED besides. Its Transformer has all layers still.

    Raises:
        RefusedLayoutError: the network has not one Transformer, or its masks depend on what the first stage computes.
    """
    transformer = _the_transformer(found, count)
    networks = []
    for index in range(count):
        wanted = found.output if index == count - 1 else transformer
        networks.append(_part(found, wanted, transformer, is_first=index == 0))
    _check_dropouts(networks)
    return networks


def whole_network(found: TracedNetwork) -> fx.GraphModule:
    """Return the network as its calls: it has the modules and parameters that are used."""
    return _part(found, found.output, None, is_first=True)


def mask_network(found: TracedNetwork) -> tuple[fx.GraphModule, tuple[str, ...]] | None:
    """Return what computes the masks of the network's cross entropies from its inputs alone, and their paths, call by call.

    None if there are none.

    Raises:
        UsageError: a mask depends on parameters.
    """
    losses = [
        node for node in found.nodes if node.op == "call_module" and isinstance(found.module(node), CrossEntropyLoss)
    ]
    if not losses:
        return None
    masks = [_arguments(CrossEntropyLoss, node)["input_mask"] for node in losses]
    if (node := found.depends_on_parameters(masks)) is not None:
        raise UsageError(
            f"{node.meta.get(LINE, '')}: the mask of a CrossEntropyLoss depends on parameters",
            hint="a mask, and its shape, of the batch alone",
        )
    return _part(found, tuple(masks), None, is_first=True), tuple(str(node.target) for node in losses)


def check_uses(found: TracedNetwork, cut: Mapping[str, Tensor], mp: int) -> None:
    """Refuse the use of parameters that model-parallel ranks have cut, but by the modules that know it.

    Raises:
        RefusedLayoutError: a network does something else with the table of an embedding, or with a layer's weight.
    """
    names = {id(parameter): name for name, parameter in cut.items()}
    for node in found.nodes:
        used = [names[id(each)] for each in found.parameters(node) if id(each) in names]
        module = found.module(node) if node.op == "call_module" else None
        if isinstance(module, VocabEmbedding):  # of whose two results the second is the table
            used = used if any(user.args[1:] != (0,) and user.users for user in node.users) else []
        elif isinstance(module, Transformer | TransformerEncoder | TransformerDecoder):
            used = []
        if used:
            raise RefusedLayoutError(
                f"{node.meta.get(LINE, '')}: mp = {mp}, and {used[0]} is used, of which each rank has a part",
                hint="vocab_emb_dp = True: every rank has whole tables",
            )


def _the_transformer(found: TracedNetwork, count: int) -> fx.Node:
    calls = [node for node in found.nodes if node.op == "call_module" and isinstance(found.module(node), Transformer)]
    if len(calls) != 1:
        raise RefusedLayoutError(
            f"pp = {count}, and {class_name(found.network)} calls {len(calls) or 'no'} Transformer{'s' * (len(calls) > 1)}: "
            "stages are made of the layers of one",
            hint="--pp 1, or a network with one launcher.trainer.api.Transformer",
        )
    [call] = calls
    masks = [value for name, value in _arguments(Transformer, call).items() if name not in _INPUTS]
    if (node := found.depends_on_parameters(masks)) is not None:
        raise RefusedLayoutError(
            f"{node.meta.get(LINE, '')}: pp = {count}, and the masks of the Transformer depend on parameters",
            hint="--pp 1, or masks, and their shapes, of the batch alone",
        )
    return call


def _part(found: TracedNetwork, wanted: Any, transformer: fx.Node | None, *, is_first: bool) -> fx.GraphModule:
    """Return what computes `wanted`, nodes among `found`; with `transformer` on what has been received, unless it is first."""
    graph = fx.Graph()
    copies: dict[fx.Node, Any] = {}
    for node in found.nodes:  # all inputs: each stage is called with the whole batch
        if node.op == "placeholder" and str(node.target).strip("*") in found.inputs:
            copies[node] = graph.placeholder(str(node.target))
    skipped = received = None
    if transformer is not None and not is_first:
        skipped, received = transformer, graph.placeholder(RECEIVED)
    for node in found.needed([wanted], skipped):
        if node in copies:
            continue
        if node is skipped:
            own = {name: value for name, value in _arguments(Transformer, node).items() if name not in _INPUTS}
            options = {**fx.node.map_arg(own, copies.__getitem__), "encoder_inputs": None, "received": received}
            copies[node] = graph.call_module(str(node.target), (), options)
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(fx.node.map_arg(wanted, copies.__getitem__))
    graph.lint()
    for name, value in found.constants.items():
        setattr(found.network, name, value)
    try:
        return fx.GraphModule(found.network, graph, class_name(found.network))
    finally:
        for name in found.constants:
            delattr(found.network, name)


def _check_dropouts(networks: Sequence[fx.GraphModule]) -> None:
    """Refuse a dropout that several stages call: by its calls its masks are told apart."""
    called: dict[str, int] = {}
    for index, network in enumerate(networks):
        for path, module in network.named_modules():
            if isinstance(module, DrawnDropout) and called.setdefault(path, index) != index:
                raise RefusedLayoutError(
                    f"pp = {len(networks)}, and the dropout {path} is called both before and after the Transformer, or the shape of "
                    "what it gives is used after it",
                    hint="--pp 1, or a dropout for each, and shapes of the batch",
                )


def _check_in_place(found: TracedNetwork) -> None:
    """Refuse what changes a tensor that is then used under another name: parts of the code would not see the change."""
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
                f"{node.meta.get(LINE, '')}: {class_name(found.network)} cannot be traced: {name or 'a module'} changes a tensor in "
                "place, which is then used as it was called before",
                hint="a new tensor, such as x = x + y",
            )


def _settle_types(found: TracedNetwork, device: torch.device) -> None:
    """Put values in the place of `tensor.dtype` and `tensor.device` where tensors depend on parameters, and of the CPU's device.

    So a mask in the type of an embedding can be computed without the embedding.
    """
    dtype = next(found.network.parameters()).dtype
    for node in found.nodes:
        if node.op == "call_function" and node.target is getattr and node.args[1] in {"dtype", "device"}:
            value = device if node.args[1] == "device" else dtype
            is_known = node.args[1] == "device" or _is_of_network_type(found, node.args[0])
            if is_known and found.depends_on_parameters([node]) is not None:
                for user in list(node.users):
                    settled = partial(_instead, node, value)
                    user.args, user.kwargs = fx.node.map_arg((user.args, dict(user.kwargs)), settled)
        if device.type != "cpu":  # where the network was traced
            at = partial(_at_device, device)
            node.args, node.kwargs = fx.node.map_aggregate((node.args, dict(node.kwargs)), at)


def _is_of_network_type(found: TracedNetwork, value: Any) -> bool:
    """Return whether it is sure that a tensor has the type of the network's parameters; False where it may be another."""
    if not isinstance(value, fx.Node):
        return isinstance(value, int | float)
    if value.op in {"call_module", "get_attr"}:
        is_dropout = value.op == "call_module" and isinstance(found.module(value), DrawnDropout)
        return is_dropout or bool(found.parameters(value))
    if value.op == "call_method" and value.target in _VIEWS:
        return _is_of_network_type(found, value.args[0])
    if value.target is operator.getitem:
        return _is_of_network_type(found, value.args[0])
    return value.target in _KEEPS_TYPE and all(_is_of_network_type(found, each) for each in value.args)


def _instead(node: fx.Node, value: Any, each: fx.Node) -> Any:
    return value if each is node else each


def _at_device(device: torch.device, value: Any) -> Any:
    return device if isinstance(value, torch.device) and value.type == "cpu" else value


def _arguments(kind: type[nn.Module], node: fx.Node) -> dict[str, Any]:
    """Return the arguments of a call of a module by their names."""
    bound = inspect.signature(kind.forward).bind(None, *node.args, **node.kwargs).arguments
    bound.pop("self")
    return dict(bound)
