"""A network that is executed as its sharding plan says: this rank's parts of parameters, and its work for each operator.

All that can be known before a step is worked out when the network is made: groups, boxes, and for each operator one function
from the values of its inputs to that of its output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from launcher.core.errors import UsageError
from launcher.mesh.boxes import Box, full_box
from launcher.sharding.expression import Strategy
from launcher.sharding.layout import replicated
from launcher.sharding.plan import ShardingPlan
from launcher.sharding.redistribution import steps_between
from launcher.trainer.own.cut.communication import redistribution
from launcher.trainer.own.cut.execution import places_of, stages_of
from launcher.trainer.own.cut.groups import Groups
from launcher.trainer.own.cut.operator_graph import Traced
from launcher.trainer.parallel.collectives import Group, all_reduce


class ShardedNetwork(nn.Module):
    """This rank's part of a network. Parameters and buffers have the names that they have in the network.

    `weights` gives whole tensors by name; without it, they are those of the network that was traced. What `shares` holds of
    the same name and part is taken from there, and not copied: so the same weights are trained and evaluated, or trained on
    batches of several sizes. All ranks must make it, and call it, in the same order. A parameter that no operator takes is
    not held. With several copies of the plan, `sum_gradients` takes the mean over them as well. `sums_copies` is off if the
    optimizer does that; it must begin each step with gradients of zero.
    """

    def __init__(
        self,
        traced: Traced,
        plan: ShardingPlan,
        groups: Groups,
        *,
        device: torch.device,
        weights: Callable[[str], Tensor] | None = None,
        shares: ShardedNetwork | None = None,
        sums_copies: bool = True,
    ) -> None:
        super().__init__()
        self._sums_copies = sums_copies
        assert plan.ranks == groups.ranks, "the groups are of this plan"
        self._traced, self._plan, self._groups, self._device = traced, plan, groups, device
        self._places = places_of(plan.graph)
        sources = {**traced.parameters, **traced.buffers}
        given = weights or sources.__getitem__
        self._held: dict[str, Tensor] = {}
        self._boxes = dict(self._boxes_held())
        for name, box in self._boxes.items():
            shared = None if shares is None else shares.part_held(name, box)
            if shared is not None:
                self._held[name] = shared
            else:
                assert shares is None or name not in traced.parameters, f"both hold the same part of {name}"
                part = given(name).detach()[box.within(full_box(sources[name].shape))].to(device)
                part = part.clone(memory_format=torch.contiguous_format)
                self._held[name] = nn.Parameter(part) if name in traced.parameters else part
            _hold(self, name, self._held[name])
        self._stages = stages_of(traced, plan, groups, self._held)
        self._sums = self._made_sums()
        self._unsummed: list[int] | None = None  # the parameters' versions at a backward that no sum has followed
        # Gradients that are already summed, with a copy: backward adds to them from zero, and the next sum adds the copy again.
        self._set_aside: dict[nn.Parameter, tuple[Tensor, Tensor]] = {}
        self.before_first: Callable[[Sequence[Tensor]], None] | None = None  # is called with the first inputs
        self._inputs = [
            (self._places[name], *self._input(name)) if name in self._places else None for name in traced.inputs
        ]

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return this rank's part of the output: the loss, which every rank has whole.

        Each input is the whole batch's, or this rank's part of it (`input_boxes`). Where there are several copies of the
        plan, it may be that of all copies, one after another.

        Raises:
            UsageError: an input has another shape than either, or weights were changed by gradients that were not summed.
        """
        self._check_call(inputs)
        values: list[Tensor | None] = [None] * len(self._places)
        for name, tensor in self._held.items():
            place = self._places.get(name)
            if place is not None:
                values[place] = tensor
        for tensor, wanted in zip(inputs, self._inputs, strict=True):
            if wanted is not None:
                place, shape, box = wanted
                values[place] = _part_of(self._of_copy(tensor, shape), shape, box)
        output: Tensor | None = None
        for stage in self._stages:
            output = stage.compute(*[values[place] for place in stage.inputs])
            values[stage.output] = output
            for place in stage.last_used:
                values[place] = None
        assert output is not None, "a graph has an operator"
        if self._sums and output.requires_grad:
            output.register_hook(self._after_backward)
        return output

    def _check_call(self, inputs: Sequence[Tensor]) -> None:
        if self._unsummed not in (None, self._versions()):
            raise UsageError(
                "the weights were changed after backward, and the ranks' gradients had not been summed",
                hint="network.sum_gradients() after loss.backward()",
            )
        if self.before_first is not None:
            self.before_first(inputs)
            self.before_first = None
        if len(inputs) != len(self._inputs):
            raise UsageError(f"the network takes {len(self._inputs)} inputs, and it is called with {len(inputs)}")

    def _after_backward(self, _gradient: Tensor) -> None:
        is_first, self._unsummed = self._unsummed is None, self._versions()
        if not is_first or not self._sums_copies:
            return
        for gradient, parameter in ((each.grad, each) for _, parameters in self._sums for each in parameters):
            if gradient is not None:
                self._set_aside[parameter] = gradient, gradient.clone()
                gradient.zero_()

    def _versions(self) -> list[int]:
        return [parameter._version for _, group in self._sums for parameter in group]  # noqa: SLF001 - as autograd counts changes

    def _of_copy(self, tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return this copy's rows of a batch of all copies, or the tensor as it is."""
        groups = self._groups
        if groups.copies == 1 or not shape or tuple(tensor.shape) != (groups.copies * shape[0], *shape[1:]):
            return tensor
        return tensor[groups.copy * shape[0] :][: shape[0]]

    @property
    def strategies(self) -> dict[str, Strategy]:
        """The strategy of each operator, by its name, in the order in which they are computed."""
        return {each.operator.name: each.cutting.strategy for each in self._plan.operators}

    def sum_gradients(self) -> None:
        """Sum the parameters' gradients, after backward, where ranks have parts of them, in one message for each set of ranks.

        Where there are several copies of the plan, the mean of their gradients is taken, if this network `sums_copies`. What an
        earlier call has summed is not summed again: several backward passes may have one call, or each its own.
        """
        if self._unsummed is None:  # no backward since the last sum
            return
        self._unsummed = None
        copies = self._groups.copies if self._sums_copies else 1
        for group, parameters in self._sums:
            gradients = [_gradient_of(parameter) for parameter in parameters]
            flat = gradients[0] if len(gradients) == 1 else torch.cat([each.reshape(-1) for each in gradients])
            flat = all_reduce(flat.contiguous(), group)
            if copies > 1:
                flat.div_(copies)
            parts = flat.view(-1).split([each.numel() for each in gradients])
            for parameter, gradient, part in zip(parameters, gradients, parts, strict=True):
                # Who has given a parameter its gradient's storage looks for it there; what autograd has made may be replaced.
                if gradient._is_view():  # noqa: SLF001 - torch has no other name for it
                    if gradient.data_ptr() != part.data_ptr():
                        gradient.copy_(part.view_as(gradient))
                else:
                    parameter.grad = part.view_as(gradient)
                before, summed = self._set_aside.pop(parameter, (None, None))
                if before is gradient and summed is not None:  # and has not been set to None since
                    assert parameter.grad is not None, "it is summed"
                    parameter.grad.add_(summed)

    def mean_over_copies(self, loss: Tensor) -> Tensor:
        """Return the mean of a loss over the copies of the plan, without a gradient."""
        total = loss.detach().clone()
        return all_reduce(total, self._groups.along((self._plan.ranks,), (), over_copies=True)).div_(
            self._groups.copies
        )

    def input_boxes(self) -> list[Box]:
        """Return this rank's part of each input."""
        shapes = {leaf.name: leaf.shape for leaf in self._plan.graph.leaves}
        return [
            self._plan.leaves[name].box_of(self._groups.rank, shapes[name]) if name in shapes else Box((), ())
            for name in self._traced.inputs
        ]

    def box_held(self, name: str) -> Box:
        """Return this rank's part of a parameter or buffer."""
        return self._boxes[name]

    def part_held(self, name: str, box: Box) -> Tensor | None:
        """Return what is held of a parameter or buffer, if it is that part."""
        return self._held[name] if self._boxes.get(name) == box else None

    def full_parameters(self) -> dict[str, Tensor]:
        """Return all parameters, whole. All ranks must call it."""
        return {name: self._gathered(name, self._held[name]) for name in self._traced.parameters}

    def full_gradients(self) -> dict[str, Tensor]:
        """Return the gradients of all parameters, whole, once they are summed. All ranks must call it."""
        found = {}
        for name in self._traced.parameters:
            parameter = self._held[name]
            assert isinstance(parameter, nn.Parameter), "it is trained"
            found[name] = self._gathered(name, _gradient_of(parameter))
        return found

    def _gathered(self, name: str, tensor: Tensor) -> Tensor:
        layout = self._plan.leaves[name]
        tensor = tensor.detach()
        for step in steps_between(layout, replicated(len(layout.axes), self._plan.ranks)):
            tensor = redistribution(step, self._groups, has_gradient=False)(tensor)
        return tensor.clone()

    def _boxes_held(self) -> Iterator[tuple[str, Box]]:
        """Yield what is held of parameters and buffers."""
        graph, rank = self._plan.graph, self._groups.rank
        data = set(self._traced.inputs)
        for leaf in graph.leaves:
            if leaf.name not in data:
                yield leaf.name, self._plan.leaves[leaf.name].box_of(rank, leaf.shape)
        seen: dict[str, Box] = {}
        for planned in self._plan.operators:
            for state in self._traced.calls[planned.operator.name].states:
                shape = tuple(state.meta.shape)
                box = full_box(shape)
                if state.like is not None:
                    box = planned.cutting.inputs[state.like].box_of(rank, shape)
                if seen.setdefault(state.name, box) != box:
                    raise UsageError(
                        f"{planned.operator.name} needs another part of {state.name} than the operators before that have it",
                        hint=f"give {planned.operator.name} their strategy",
                    )
        yield from seen.items()

    def _input(self, name: str) -> tuple[tuple[int, ...], Box]:
        [shape] = [leaf.shape for leaf in self._plan.graph.leaves if leaf.name == name]
        return shape, self._plan.leaves[name].box_of(self._groups.rank, shape)

    def _made_sums(self) -> list[tuple[Group, list[nn.Parameter]]]:
        """Return which parameters' gradients are summed over which ranks, those of this plan's copies among them."""
        found: dict[tuple[int, ...], tuple[Group, list[nn.Parameter]]] = {}
        axes_of: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
            name: (each.devices, each.axes) for each in self._plan.parameter_sums for name in each.parameters
        }
        rest = [name for name in self._traced.parameters if name not in axes_of]
        for name in (*axes_of, *rest):
            devices, axes = axes_of.get(name, ((self._plan.ranks,), ()))
            group = self._groups.along(devices, axes, over_copies=self._sums_copies)
            parameter = self._held[name]
            assert isinstance(parameter, nn.Parameter), "it is trained"
            if group.size > 1:
                found.setdefault(group.ranks, (group, []))[1].append(parameter)
        return list(found.values())


def _gradient_of(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None, (
        "backward has gone through the whole graph, and nobody has taken the gradient since"
    )
    return parameter.grad


def _part_of(tensor: Tensor, shape: tuple[int, ...], box: Box) -> Tensor:
    """Return a rank's part of a tensor that is whole, or is that part already."""
    if tuple(tensor.shape) == shape:
        return tensor if box.size == shape else tensor[box.within(full_box(shape))]
    if tuple(tensor.shape) == box.size:
        return tensor
    raise UsageError(
        f"an input has the shape {tuple(tensor.shape)}, and the network was traced for {shape}",
        hint=f"the whole batch, or this rank's part, {box.size}",
    )


def _hold(root: nn.Module, name: str, tensor: Tensor) -> None:
    """Hold a tensor under a name with dots, by modules that hold nothing else."""
    *path, last = name.split(".")
    if (path or [last])[0] in dir(root) and (path or [last])[0] not in root._modules:  # noqa: SLF001 - the same
        raise UsageError(f"{name} has the name of something else that a sharded network has", hint="another name")
    for each in path:
        child = root._modules.get(each)  # noqa: SLF001 - any other way finds methods, too
        if child is None:
            child = nn.Module()
            root.add_module(each, child)
        root = child
    if isinstance(tensor, nn.Parameter):
        root.register_parameter(last, tensor)
    else:
        root.register_buffer(last, tensor)
