"""What a network's code does before its Transformer and after it, found by torch.fx: the parts that the stages of a pipeline compute.

    first stage      what leads to the Transformer's inputs and masks; its first layers
    other stages     what leads to the masks, once more; some of its layers, on what the stage before has sent
    last stage       its last layers; what the network does with their output, and the loss

The batch is known on all stages, so what is computed from it alone is computed wherever it is needed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from launcher.core.errors import RefusedLayoutError, UsageError
from launcher.core.frozen import frozen
from launcher.trainer.api.dropout import DrawnDropout
from launcher.trainer.api.modules import (
    AttentionMask,
    CrossEntropyLoss,
    Transformer,
    TransformerDecoder,
    TransformerEncoder,
    VocabEmbedding,
)
from launcher.trainer.shard.modules import class_name
from launcher.trainer.shard.nodes import LINE, nodes_of

LEAVES = (
    VocabEmbedding,
    AttentionMask,
    CrossEntropyLoss,
    Transformer,
    TransformerEncoder,
    TransformerDecoder,
    DrawnDropout,
)
RECEIVED = "received"  # the input of a stage that is what the stage before has sent
_INPUTS = ("encoder_inputs", "decoder_inputs")  # of a Transformer, which only the first stage computes


@frozen
class Traced:
    """A network's calls, and the constants in its code, by torch.fx's names for them."""

    network: nn.Module
    nodes: Sequence[fx.Node]
    constants: Mapping[str, Any]


def traced(network: nn.Module, device: torch.device) -> Traced:
    """Return what a network calls when it is called with tensors on a device.

    Raises:
        UsageError: it cannot be traced; the message says where and why.
    """
    nodes, constants = nodes_of(network, LEAVES)
    found = Traced(network, nodes, constants)
    _settle_types(found, device)
    for node in nodes:
        is_lost = not node.users and node.op in {"call_function", "call_method"}
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if is_lost and str(name).endswith("_") and not str(name).endswith("__"):
            raise UsageError(
                f"{node.meta.get(LINE, '')}: {class_name(network)} cannot be traced: {name} changes a tensor in place, and "
                "what it returns is not used",
                hint=f"x = x.{name}(...)",
            )
    return found


def _settle_types(found: Traced, device: torch.device) -> None:
    """Put the type and the device of what depends on parameters in the place of `tensor.dtype` and `tensor.device`.

    So a mask in the type of an embedding can be computed without the embedding.
    """
    known: dict[Any, Any] = {"dtype": next(found.network.parameters()).dtype, "device": device}
    for node in found.nodes:
        if node.op != "call_function" or node.target is not getattr or node.args[1] not in known:
            continue
        if not any(_parameters(found, each) for each in _needed([node], found.nodes)):
            continue
        for user in list(node.users):
            settled = partial(_instead, node, known[node.args[1]])
            user.args, user.kwargs = fx.node.map_arg((user.args, dict(user.kwargs)), settled)


def _instead(node: fx.Node, value: Any, each: fx.Node) -> Any:
    return value if each is node else each


def stage_networks(found: Traced, count: int) -> list[fx.GraphModule]:
    """Return the network that each of `count` stages of a pipeline computes, made of the network's own modules.

    It is called as the network, on all stages but the first with `received` besides. Its Transformer has all layers still.

    Raises:
        RefusedLayoutError: the network has not one Transformer, or its masks depend on what the first stage computes.
    """
    transformer = _the_transformer(found, count)
    output = next(node for node in found.nodes if node.op == "output")
    networks = []
    for index in range(count):
        wanted = output.args[0] if index == count - 1 else transformer
        networks.append(_part(found, wanted, transformer, is_first=index == 0))
    _check_dropouts(networks)
    return networks


def _check_dropouts(networks: Sequence[fx.GraphModule]) -> None:
    """Refuse a dropout that several stages call: by its calls its masks are told apart."""
    called: dict[str, int] = {}
    for index, network in enumerate(networks):
        for path, module in network.named_modules():
            if isinstance(module, DrawnDropout) and called.setdefault(path, index) != index:
                raise RefusedLayoutError(
                    f"pp = {len(networks)}, and the dropout {path} is called both before and after the Transformer",
                    hint="--pp 1, or a dropout for each",
                )


def mask_network(found: Traced) -> tuple[fx.GraphModule, tuple[str, ...]] | None:
    """Return what computes the masks of the network's cross entropies from its inputs alone, and the paths of these; None if there are none.

    Raises:
        UsageError: a mask depends on parameters.
    """
    losses = [
        node for node in found.nodes if node.op == "call_module" and isinstance(_module(found, node), CrossEntropyLoss)
    ]
    if not losses:
        return None
    masks = [_arguments(CrossEntropyLoss, node)["input_mask"] for node in losses]
    for node in _needed(masks, found.nodes):
        if _parameters(found, node):
            raise UsageError(
                f"{node.meta.get(LINE, '')}: the mask of a CrossEntropyLoss depends on parameters",
                hint="a mask that is computed from the batch alone",
            )
    return _part(found, tuple(masks), None, is_first=True), tuple(str(node.target) for node in losses)


def check_tables(found: Traced, mp: int) -> None:
    """Refuse the use of a table that model-parallel ranks have cut by rows.

    Raises:
        RefusedLayoutError: a network does something with such a table besides looking up words.
    """
    for node in found.nodes if mp > 1 else ():
        module = _module(found, node) if node.op == "call_module" else None
        if not isinstance(module, VocabEmbedding) or module.parallel_config.vocab_emb_dp:
            continue
        users = [user for user in node.users if user.args[1:] != (0,) and user.users]
        if users:
            raise RefusedLayoutError(
                f"{users[0].meta.get(LINE, '')}: mp = {mp}, and the table of {node.target} is used, of which each rank has some rows",
                hint="vocab_emb_dp = True: every rank has the whole table",
            )


def _the_transformer(found: Traced, count: int) -> fx.Node:
    calls = [node for node in found.nodes if node.op == "call_module" and isinstance(_module(found, node), Transformer)]
    if len(calls) != 1:
        raise RefusedLayoutError(
            f"pp = {count}, and {class_name(found.network)} calls {len(calls) or 'no'} Transformer{'s' * (len(calls) > 1)}: stages are "
            "made of the layers of one",
            hint="--pp 1, or a network with one launcher.trainer.api.Transformer",
        )
    [call] = calls
    arguments = _arguments(Transformer, call)
    for name in _INPUTS:
        arguments.pop(name, None)
    for node in _needed(arguments.values(), found.nodes):
        if _parameters(found, node):
            raise RefusedLayoutError(
                f"{node.meta.get(LINE, '')}: pp = {count}, and the masks of the Transformer depend on parameters",
                hint="--pp 1, or masks that are computed from the batch alone",
            )
    return call


def _part(found: Traced, wanted: Any, transformer: fx.Node | None, *, is_first: bool) -> fx.GraphModule:
    """Return what computes `wanted`, nodes among `found`; with `transformer` on what has been received, unless it is first."""
    takes_received = transformer is not None and not is_first
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in found.nodes:
        if node.op == "placeholder":  # all of them: each stage is called with the whole batch
            copies[node] = graph.node_copy(node)
    received = graph.placeholder(RECEIVED) if takes_received else None
    skipped = transformer if takes_received else None
    for node in _needed([wanted], found.nodes, skipped):
        if node in copies:
            continue
        if node is skipped:
            own = {name: value for name, value in _arguments(Transformer, node).items() if name not in _INPUTS}
            options = fx.node.map_arg(
                {"encoder_inputs": None, **own, RECEIVED: received}, lambda each: copies.get(each, each)
            )
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


def _needed(wanted: Iterable[Any], nodes: Sequence[fx.Node], skipped: fx.Node | None = None) -> list[fx.Node]:
    """Return what has to be computed for `wanted`, in order. Of the inputs of `skipped` that are vectors, nothing is."""
    needed: set[fx.Node] = set()
    collect: Callable[[fx.Node], Any] = needed.add
    fx.node.map_arg(list(wanted), collect)
    for node in reversed(nodes):
        if node in needed and node is skipped:
            fx.node.map_arg({k: v for k, v in _arguments(Transformer, node).items() if k not in _INPUTS}, collect)
        elif node in needed:
            fx.node.map_arg((node.args, dict(node.kwargs)), collect)
    return [node for node in nodes if node in needed and node.op != "output"]


def _arguments(kind: type[nn.Module], node: fx.Node) -> dict[str, Any]:
    """Return the arguments of a call of a module by their names."""
    bound = inspect.signature(kind.forward).bind(None, *node.args, **node.kwargs).arguments
    bound.pop("self")
    return dict(bound)


def _module(found: Traced, node: fx.Node) -> nn.Module:
    return found.network.get_submodule(str(node.target))


def _parameters(found: Traced, node: fx.Node) -> Collection[Tensor]:
    """Return the parameters that a call computes with."""
    if node.op == "call_module":
        return list(_module(found, node).parameters())
    if node.op == "get_attr" and str(node.target) not in found.constants:
        path, _, name = str(node.target).rpartition(".")
        tensor = getattr(found.network.get_submodule(path), name)
        return [tensor] if isinstance(tensor, nn.Parameter) else []
    return []


def output_of(value: Any, network: str) -> Tensor:
    """Return the loss that a network of this class has returned.

    Raises:
        UsageError: it is no scalar.
    """
    if not isinstance(value, Tensor) or value.numel() != 1:
        told = f"a tensor of the shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise UsageError(f"{network} returns {told}", hint="one number: the loss")
    return value.reshape(())
