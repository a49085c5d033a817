"""Finds, by torch.fx, what a network's code does before its Transformer and after it: the parts that the stages of a pipeline compute.

    first stage      what leads to the Transformer's inputs and masks; its first layers
    other stages     what leads to the masks, once more; some of its layers, on what the stage before has sent
    last stage       its last layers; what the network does with their output, and the loss

The batch is known on all stages, so what is computed from it alone is computed wherever it is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, fx, nn

from launcher.core.errors import RefusedLayoutError, UsageError
from launcher.core.frozen import frozen
from launcher.trainer.own.trace import LINE, class_name
from launcher.trainer.own.train.calls import INPUTS, TracedNetwork, arguments_by_name
from launcher.trainer.own.train.dropout import DrawnDropout
from launcher.trainer.own.train.layers import Transformer, TransformerDecoder, TransformerEncoder
from launcher.trainer.own.train.parallel_modules import CrossEntropyLoss, VocabEmbedding


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
        networks.append(found.part(wanted, transformer, is_first=index == 0))
    _check_dropouts(networks)
    needed = set(found.needed([found.output]))
    for node in found.nodes:
        module = found.module(node) if node.op == "call_module" else None
        if isinstance(module, DrawnDropout) and module.p > 0 and node not in needed:
            raise RefusedLayoutError(
                f"{node.meta.get(LINE, '')}: pp = {count}, and what the dropout gives is not used: no stage calls it, and by its calls "
                "its masks are told apart",
                hint="leave the call out, or --pp 1",
            )
    return networks


@frozen
class LossMasks:
    """Computes the masks of a network's cross entropies from the inputs of a batch alone."""

    network: nn.Module
    paths: tuple[str, ...]  # of the losses, call by call

    @torch.no_grad()
    def counts(self, inputs: Sequence[Tensor], dtype: torch.dtype) -> dict[str, list[Tensor]]:
        """Return what the masks of each loss count in the batch, call by call, in a type at least as exact as float32."""
        found: dict[str, list[Tensor]] = {}
        for path, mask in zip(self.paths, self.network(*(each.clone() for each in inputs)), strict=True):
            found.setdefault(path, []).append(mask.to(torch.promote_types(dtype, torch.float32)).sum())
        return found


def loss_masks(found: TracedNetwork, *, of_stages: bool) -> LossMasks | None:
    """Return what computes the masks of a network's cross entropies; None if it calls none.

    `of_stages`: only the calls that the network's result needs are made, as stages are made of these.

    Raises:
        UsageError: a mask depends on parameters.
    """
    called = found.needed([found.output]) if of_stages else found.nodes
    losses = [node for node in called if node.op == "call_module" and isinstance(found.module(node), CrossEntropyLoss)]
    if not losses:
        return None
    masks = [arguments_by_name(CrossEntropyLoss, node)["input_mask"] for node in losses]
    if (node := found.depends_on_parameters(masks)) is not None:
        raise UsageError(
            f"{node.meta.get(LINE, '')}: the mask of a CrossEntropyLoss depends on parameters",
            hint="a mask, and its shape, of the batch alone",
        )
    network = found.part(tuple(masks))
    return LossMasks(network, tuple(str(node.target) for node in losses))


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
    masks = [value for name, value in arguments_by_name(Transformer, call).items() if name not in INPUTS]
    if (node := found.depends_on_parameters(masks)) is not None:
        raise RefusedLayoutError(
            f"{node.meta.get(LINE, '')}: pp = {count}, and the masks of the Transformer depend on parameters",
            hint="--pp 1, or masks, and their shapes, of the batch alone",
        )
    return call


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
