"""Splits a network into pipeline stages: the code before its Transformer, the layers, and the code after it.

    first stage      computes the Transformer's inputs and masks, and the first layers
    other stages     compute the masks, and some of the layers from the previous stage's output
    last stage       like other stages; then computes the code that uses the Transformer's output, and the loss

Every stage has the full batch. Values that depend only on the batch are computed on every stage that needs them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, fx, nn

from launcher.core.errors import RefusedLayoutError, UsageError
from launcher.core.frozen import frozen
from launcher.trainer.own.trace import LINE, class_name
from launcher.trainer.own.train.calls import LAYERS, TracedNetwork, arguments_by_name, masks_of
from launcher.trainer.own.train.layers import Transformer
from launcher.trainer.own.train.parallel_modules import CrossEntropyLoss, DrawnDropout, VocabEmbedding


def stage_networks(found: TracedNetwork, count: int) -> list[fx.GraphModule]:
    """Return one module for each pipeline stage. The module computes the stage's part of a traced network.

    A module takes the network's arguments; after the first stage, it also takes the previous stage's output, RECEIVED.
    Its Transformer still has all layers.

    Raises:
        RefusedLayoutError: for several stages, the network must have exactly one Transformer, whose masks do not
            depend on parameters.
    """
    if count == 1:
        return [found.part(found.output)]
    transformer = _the_transformer(found, count)
    wanted = [*[transformer] * (count - 1), found.output]
    networks = [found.part(each, transformer, is_first=index == 0) for index, each in enumerate(wanted)]
    _check_dropouts(networks)
    needed = set(found.needed([found.output]))
    for node in found.nodes:
        module = found.module(node) if node.op == "call_module" else None
        if isinstance(module, DrawnDropout) and module.p > 0 and node not in needed:
            raise RefusedLayoutError(
                f"{node.meta.get(LINE, '')}: pp = {count}, but the output of this dropout is not used. Pipeline stages "
                "skip unused calls, so later dropout masks would differ from pp = 1",
                hint="remove this dropout call, or use `--pp 1`",
            )
    return networks


@frozen
class LossMasks:
    """Computes the masks that a network passes to its CrossEntropyLoss modules for a batch."""

    network: nn.Module
    paths: tuple[str, ...]  # the loss module of each call

    @torch.no_grad()
    def counts(self, inputs: Sequence[Tensor], dtype: torch.dtype) -> dict[str, list[Tensor]]:
        """Return the sum of each loss mask over a batch, grouped by loss module."""
        found: dict[str, list[Tensor]] = {}
        for path, mask in zip(self.paths, self.network(*(each.clone() for each in inputs)), strict=True):
            found.setdefault(path, []).append(mask.to(torch.promote_types(dtype, torch.float32)).sum())
        return found


def loss_masks(found: TracedNetwork, *, of_stages: bool) -> LossMasks | None:
    """Return the masks that a traced network passes to CrossEntropyLoss, or None if it does not use CrossEntropyLoss.

    `of_stages` excludes calls that the network's result does not need, because pipeline stages do not run them.

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
            hint="compute the mask and its shape only from the batch",
        )
    network = found.part(tuple(masks))
    return LossMasks(network, tuple(str(node.target) for node in losses))


def check_uses(found: TracedNetwork, cut: Mapping[str, Tensor], mp: int) -> None:
    """Check that sharded parameters are used only by modules that support sharding.

    Raises:
        RefusedLayoutError: other code uses an embedding's table or a layer's weight.
    """
    names = {id(parameter): name for name, parameter in cut.items()}
    for node in found.nodes:
        used = [names[id(each)] for each in found.parameters(node) if id(each) in names]
        module = found.module(node) if node.op == "call_module" else None
        if isinstance(module, VocabEmbedding):  # its second result is the table
            used = used if any(user.args[1:] != (0,) and user.users for user in node.users) else []
        elif isinstance(module, LAYERS):
            used = []
        if used:
            raise RefusedLayoutError(
                f"{node.meta.get(LINE, '')}: this code uses {used[0]}, which is sharded over mp = {mp} ranks",
                hint="set vocab_emb_dp = True so that every rank holds the full table",
            )


def _the_transformer(found: TracedNetwork, count: int) -> fx.Node:
    calls = [node for node in found.nodes if node.op == "call_module" and isinstance(found.module(node), Transformer)]
    if len(calls) != 1:
        raise RefusedLayoutError(
            f"pp = {count}, but {class_name(found.network)} calls {len(calls) or 'no'} Transformer{'s' * (len(calls) > 1)}: "
            "pipeline stages need exactly one",
            hint="use `--pp 1`, or call exactly one launcher.trainer.api.Transformer in the network",
        )
    [call] = calls
    if (node := found.depends_on_parameters(masks_of(call).values())) is not None:
        raise RefusedLayoutError(
            f"{node.meta.get(LINE, '')}: pp = {count}, but the masks of the Transformer depend on parameters of the network",
            hint="use `--pp 1`, or compute the masks and their shapes only from the batch",
        )
    return call


def _check_dropouts(networks: Sequence[fx.GraphModule]) -> None:
    """Raise if several stages call the same dropout module, since these calls would have the same dropout mask."""
    called: dict[str, int] = {}
    for index, network in enumerate(networks):
        for path, module in network.named_modules():
            if isinstance(module, DrawnDropout) and called.setdefault(path, index) != index:
                raise RefusedLayoutError(
                    f"pp = {len(networks)}, but the dropout {path} is needed both before and after the Transformer",
                    hint="use `--pp 1`, or create a separate dropout for each use; compute shapes only from the batch",
                )
