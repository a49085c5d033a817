"""A network that runs a sharding plan: this rank's shards of parameters, and its computation of each operator.

Groups, boxes and a function for each operator are prepared when the network is created, not in each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from launcher.core.errors import UsageError
from launcher.mesh.boxes import Box, full_box
from launcher.sharding.expression import Strategy
from launcher.sharding.layout import replicated
from launcher.sharding.plan import ShardingPlan, plan_report
from launcher.sharding.redistribution import steps_between
from launcher.sharding.strategy_report import ReportCollective, StrategyReport
from launcher.trainer.own.cut.communication import redistribution
from launcher.trainer.own.cut.execution import StageMaker
from launcher.trainer.own.cut.groups import Groups
from launcher.trainer.own.cut.operator_graph import Traced
from launcher.trainer.parallel.collectives import Group, all_reduce


class ShardedNetwork(nn.Module):
    """This rank's part of a network that is sharded by a plan. Parameters and buffers keep their original names.

    All ranks must create and call sharded networks in the same order. Unused parameters are left out.

    `weights` returns a full tensor by name; by default the tensors are the traced network's. With several replicas of
    the plan, `sum_gradients` also takes the mean over them. Turn `sums_copies` off if the optimizer does this; the
    optimizer must then start each step with zero gradients.
    """

    def __init__(
        self,
        traced: Traced,
        plan: ShardingPlan,
        groups: Groups,
        *,
        device: torch.device,
        weights: Callable[[str], Tensor] | None = None,
        sums_copies: bool = True,
    ) -> None:
        super().__init__()
        self._sums_copies = sums_copies
        assert plan.ranks == groups.ranks, "the groups are of this plan"
        self._traced, self._plan, self._groups, self._device = traced, plan, groups, device
        sources = {**traced.parameters, **traced.buffers}
        given = weights or sources.__getitem__
        self._held: dict[str, Tensor] = {}
        self._boxes = dict(self._boxes_held())
        for name, box in self._boxes.items():
            part = given(name).detach()[box.within(full_box(sources[name].shape))].to(device)
            part = part.clone(memory_format=torch.contiguous_format)
            self._held[name] = nn.Parameter(part) if name in traced.parameters else part
            _hold(self, name, self._held[name])
        maker = StageMaker(traced, plan, groups, self._held)
        self._places, self._stages = maker.places, maker.stages()
        self._sums = self._made_sums()
        self._unsummed: list[int] | None = None  # versions of the parameters at a backward without a later sum
        # Copies of gradients that are already summed. Backward starts again from zero, and the next sum adds the copy.
        self._set_aside: dict[nn.Parameter, tuple[Tensor, Tensor]] = {}
        self.before_first: Callable[[Sequence[Tensor]], None] | None = None  # called with the first inputs
        shapes = {leaf.name: leaf.shape for leaf in plan.graph.leaves}
        used = {name: plan.leaves[name].box_of(groups.rank, shape) for name, shape in shapes.items()}
        self._inputs = [  # None: the operators do not use the input
            (self._places[name], shapes[name], used[name]) if name in used else None for name in traced.inputs
        ]

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the loss, which is the same on every rank of the plan.

        An input is the full batch, or this rank's part of it (`input_boxes`). With several replicas of the plan, it
        may also be the concatenated batches of all replicas.

        Raises:
            UsageError: an input has another shape, or the weights were changed before gradients were summed.
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
                "the weights were changed after backward, but the gradients were not summed over the ranks",
                hint="call network.sum_gradients() after loss.backward()",
            )
        if self.before_first is not None:
            self.before_first(inputs)
            self.before_first = None
        if len(inputs) != len(self._inputs):
            raise UsageError(f"the network takes {len(self._inputs)} inputs, but was called with {len(inputs)}")

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
        """Return this replica's rows if a tensor has the rows of all replicas. Return other tensors unchanged."""
        groups = self._groups
        if groups.copies == 1 or not shape or tuple(tensor.shape) != (groups.copies * shape[0], *shape[1:]):
            return tensor
        return tensor[groups.copy * shape[0] :][: shape[0]]

    @property
    def strategies(self) -> dict[str, Strategy]:
        """The sharding strategy of each operator by name, in order of computation."""
        return {each.operator.name: each.cutting.strategy for each in self._plan.operators}

    def strategy_report(
        self, name: str, layout: str, attempt: int, more: Iterable[ReportCollective] = ()
    ) -> StrategyReport:
        """Return the strategy report of this rank. `more` lists collectives that are not part of the plan."""
        groups = self._groups
        return plan_report(
            self._plan, groups.rank, recipe=name, layout=layout, more=more, attempt=attempt, copy=groups.copy,
            copies=groups.copies,
        )  # fmt: skip

    def sum_gradients(self) -> None:
        """Sum the gradients over the ranks that hold partial sums, with one all-reduce for each process group.

        With several replicas of the plan and `sums_copies`, this also takes the mean over the replicas. Call it after
        each backward, or once after several: gradients are not summed twice.
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
                # A gradient in preallocated storage must stay there; one that autograd allocated can be replaced.
                if gradient._is_view():  # noqa: SLF001 - torch has no other name for it
                    if gradient.data_ptr() != part.data_ptr():
                        gradient.copy_(part.view_as(gradient))
                else:
                    parameter.grad = part.view_as(gradient)
                before, summed = self._set_aside.pop(parameter, (None, None))
                if before is gradient and summed is not None:  # the gradient has not been set to None since
                    assert parameter.grad is not None, "it has just been summed"
                    parameter.grad.add_(summed)

    def mean_over_copies(self, loss: Tensor) -> Tensor:
        """Return the mean of a loss over the replicas of the plan, without a gradient."""
        group = self._groups.along((self._plan.ranks,), (), over_copies=True)
        return all_reduce(loss.detach().clone(), group).div_(self._groups.copies)

    def input_boxes(self) -> list[Box]:
        """Return the index ranges of this rank's part of each input. Unused inputs have an empty box."""
        return [Box((), ()) if wanted is None else wanted[2] for wanted in self._inputs]

    def box_held(self, name: str) -> Box:
        """Return the index ranges of this rank's part of a parameter or buffer, one range for each dim."""
        return self._boxes[name]

    def part_held(self, name: str) -> Tensor:
        return self._held[name]

    def whole_parameters(self) -> dict[str, Tensor]:
        """Gather the full parameters from all ranks, and return them by name. All ranks must call it."""
        return {name: self._gathered(name, self._held[name]) for name in self._traced.parameters}

    def whole_gradients(self) -> dict[str, Tensor]:
        """Gather the full gradients after `sum_gradients`, and return them by name. All ranks must call it."""
        names = self._traced.parameters
        return {name: self._gathered(name, _gradient_of(self.get_parameter(name))) for name in names}

    def _gathered(self, name: str, tensor: Tensor) -> Tensor:
        layout = self._plan.leaves[name]
        tensor = tensor.detach()
        for step in steps_between(layout, replicated(len(layout.axes), self._plan.ranks)):
            tensor = redistribution(step, self._groups, has_gradient=False)(tensor)
        return tensor.clone()

    def _boxes_held(self) -> Iterator[tuple[str, Box]]:
        """Yield the name of each parameter and buffer, and the index ranges of this rank's part."""
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
                        f"{planned.operator.name} and an earlier operator both use {state.name}, but each needs a "
                        "different part of this tensor",
                        hint=f"use the same strategy for {planned.operator.name} and the earlier operator",
                    )
        yield from seen.items()

    def _made_sums(self) -> list[tuple[Group, list[nn.Parameter]]]:
        """Return each process group that sums gradients, with the parameters that it sums them for."""
        found: dict[tuple[int, ...], tuple[Group, list[nn.Parameter]]] = {}
        axes_of: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
            name: (each.devices, each.axes) for each in self._plan.parameter_sums for name in each.parameters
        }
        rest = [name for name in self._traced.parameters if name not in axes_of]
        for name in (*axes_of, *rest):
            devices, axes = axes_of.get(name, ((self._plan.ranks,), ()))
            group = self._groups.along(devices, axes, over_copies=self._sums_copies)
            if group.size > 1:
                found.setdefault(group.ranks, (group, []))[1].append(self.get_parameter(name))
        return list(found.values())


def _gradient_of(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None, "backward has run through the full graph, and the gradient has not been reset"
    return parameter.grad


def _part_of(tensor: Tensor, shape: tuple[int, ...], box: Box) -> Tensor:
    """Return this rank's part of a full tensor. If the tensor already is this part, return it unchanged."""
    if tuple(tensor.shape) == shape:
        return tensor if box.size == shape else tensor[box.within(full_box(shape))]
    if tuple(tensor.shape) == box.size:
        return tensor
    raise UsageError(
        f"an input has the shape {tuple(tensor.shape)}, but the network was traced with the shape {shape}",
        hint=f"pass the full batch, or this rank's part of the batch with the shape {box.size}",
    )


def _hold(root: nn.Module, name: str, tensor: Tensor) -> None:
    """Register a tensor under a dotted name, and create the modules on its path. Raise if the name is taken."""
    *path, last = name.split(".")
    if (path or [last])[0] in dir(root) and (path or [last])[0] not in root._modules:  # noqa: SLF001 - the same
        raise UsageError(f"{name} conflicts with an attribute of the sharded network", hint=f"rename {name}")
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
