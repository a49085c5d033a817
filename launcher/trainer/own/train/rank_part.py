"""One rank's part of a custom network: a pipeline stage with model-parallel shards of its parameters."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from launcher.core.errors import RefusedLayoutError, UsageError
from launcher.mesh.stages import Stage
from launcher.trainer.model.dropout import Dropout, DropoutBits
from launcher.trainer.own.check import Comparison, checked_division
from launcher.trainer.own.divide import Division, Rows, divisions_to_check, of_rank_0
from launcher.trainer.own.trace import class_name
from launcher.trainer.own.train.buffers import Buffers, move_buffers
from launcher.trainer.own.train.calls import RECEIVED, TracedNetwork, arguments_of, traced_network
from launcher.trainer.own.train.configs import NetworkSettings
from launcher.trainer.own.train.layers import Transformer, TransformerDecoder, TransformerEncoder
from launcher.trainer.own.train.parallel_modules import CrossEntropyLoss, DrawnDropout, draw_dropouts
from launcher.trainer.own.train.parameter_plan import apply_plan, check_parameters, plan_network, stages_of_network
from launcher.trainer.own.train.pipeline_parts import LossMasks, check_uses, loss_masks, stage_networks
from launcher.trainer.own.train.samples import Samples, collated
from launcher.trainer.own.trial import seen_in_a_call
from launcher.trainer.parallel.recompute import recompute_in_backward
from launcher.trainer.parallel.world import World


class _DrawingModules:
    """The dropout modules of a network. Their masks depend on row, position and step, not on the layout of ranks."""

    def __init__(self, network: nn.Module, seed: int) -> None:
        modules = list(network.modules())
        stacks = [each for each in modules if isinstance(each, TransformerEncoder | TransformerDecoder)]
        self._modules = [*stacks, *(each for each in modules if isinstance(each, DrawnDropout))]
        self._length, self._seed = max((each.length for each in stacks), default=1), seed

    def begin(self, row_B: Tensor, step: int | None) -> None:
        """Set the random bits of the dropout modules for some rows of a step. If `step` is None, nothing is dropped."""
        draws = None if step is None else DropoutBits.of(row_B, self._length, seed=self._seed, step=step)
        for module in self._modules:
            module.begin(draws)


class DividedNetwork:
    """One rank's part of a custom network: a pipeline stage with model-parallel shards of its parameters."""

    def __init__(
        self,
        network: nn.Module,
        samples: Samples,
        settings: NetworkSettings,
        world: World,
        *,
        is_validated: bool,
        parts_may_differ: bool = False,
        check_gradients: bool = False,
    ) -> None:
        """Check `network` and reduce it in place to this rank's part. All ranks must call this.

        The network is called with the items of the samples. All ranks start with rank 0's weights and buffers.

        Raises:
            UsageError: the network is not supported.
            RefusedLayoutError: the layout does not fit the network, or its loss depends on how a batch is divided and
                `parts_may_differ` is False.
        """
        self.class_name = class_name(network)
        self.remarks: list[str] = []
        check_parameters(network)
        self.dtype = next(network.parameters()).dtype
        self._world = world
        _check_modules(network)
        draw_dropouts(network)
        for path, module in network.named_modules():
            if isinstance(module, Dropout):
                module.place = path
        self.buffers = Buffers(network)
        self.buffers.share(world)
        layout, size = world.place.layout, settings.train.batch_size
        collate = partial(collated, samples, device=torch.device("cpu"), dtype=self.dtype)
        rows = collate(range(size // (layout.dp * layout.micro_batches)))
        found = self._traced(network, rows, is_validated=is_validated)
        self.is_traced = found is not None
        self._masks = self._loss_masks(found)
        how = Comparison(self._loss_of_part, is_validated=is_validated, gradients=check_gradients)
        divisions = divisions_to_check(len(samples), size, layout, collate)
        check = partial(
            self._check, network, rows, divisions, how, may_differ=parts_may_differ, seed=settings.train.seed
        )
        world.while_others_wait(check if world.is_first and world.place.world_size * layout.micro_batches > 1 else None)
        self.stages = stages_of_network(network, settings, world.pp.size)
        parts = [network] if found is None else stage_networks(found, world.pp.size)
        self.plan = plan_network(network, parts, self.stages, world.mp.size, is_traced=found is not None)
        self._check_cut(found)
        names = {id(parameter): name for name, parameter in self.plan.parameters.items()}
        state = network.state_dict(keep_vars=True)
        self._keys = {key: names.get(id(value)) for key, value in state.items()}  # parameter names; None for buffers
        self.part = network if world.pp.size == 1 else parts[world.pp.index]
        whole = partial(of_rank_0, device=world.device)
        self.parameters = apply_plan(self.part, self.plan, self.stage, world.mp, whole, device=world.device)
        for each in (self.part, *(masks.network for masks in self._masks.values() if masks is not None)):
            move_buffers(each, world.device)
        _recompute(self.part, settings)
        self.transformer = next((each for each in self.part.modules() if isinstance(each, Transformer)), None)
        self._drawing = _DrawingModules(self.part, settings.train.seed)

    @property
    def stage(self) -> Stage:
        return self.stages[self._world.pp.index]

    def divisors(self, inputs: Rows, step: int | None) -> Mapping[str, Sequence[Tensor]]:
        """Return the divisors of each CrossEntropyLoss, by module path: the sums of its masks over the full batch.

        `step` None stands for evaluation mode, in which the calls may differ.
        """
        masks = self._masks[step is not None]
        return {} if masks is None or not self.stage.is_last else masks.counts(inputs, self.dtype)

    def begin(self, row_B: Tensor, step: int | None, divisors: Mapping[str, Sequence[Tensor]]) -> None:
        """Set dropout masks and loss divisors for some rows of the global batch. If `step` is None, dropout is off."""
        self._drawing.begin(row_B, step)
        for path, values in divisors.items():
            _cross_entropy(self.part, path).begin(values)

    def compute(self, inputs: Rows, received: Tensor | None) -> Tensor:
        """Return the loss on the last pipeline stage, and the next stage's input on other stages.

        Raises:
            UsageError: the network does not return one number.
        """
        options = {} if received is None else {RECEIVED: received}
        value = self.part(*inputs, **options)
        if not self.stage.is_last:
            assert isinstance(value, Tensor), "a stage that is not the last returns its streams"
            return value
        if not isinstance(value, Tensor) or value.numel() != 1:
            shape = f"a tensor of the shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise UsageError(f"{self.class_name} returns {shape}", hint="return the loss as a tensor with one element")
        return value.reshape(()).to(torch.promote_types(self.dtype, torch.float32))

    def sent_shape(self, rows: int) -> tuple[int, int, int]:
        """Return the shape of the tensor that one stage sends to the next for `rows` rows."""
        assert self.transformer is not None, "several stages need a Transformer"
        return rows, self.transformer.streams_length, self.transformer.hidden_size

    def state(self, whole: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return a state dict for the original network on the CPU. `whole` has the full parameters by name."""
        found = {key: self.buffers.of(key) if name is None else whole[name] for key, name in self._keys.items()}
        return {key: value.detach().cpu().clone() for key, value in found.items()}

    def _traced(self, network: nn.Module, rows: Rows, *, is_validated: bool) -> TracedNetwork | None:
        """Trace the network. If tracing fails, return None, or raise an error if there are several pipeline stages."""
        pp, arguments = self._world.pp.size, arguments_of(network, len(rows))
        try:
            with self.buffers.kept(), torch.random.fork_rng(devices=[]):
                found = traced_network(network, arguments, rows, self._world.device)
                self._check_layout(found, is_validated=is_validated)
                return found
        except UsageError as error:
            if pp > 1:
                hint = f"use `--pp 1`, or {error.hint}"
                raise RefusedLayoutError(f"pp = {pp}, and {error.message}", hint=hint) from error
            if any(isinstance(module, CrossEntropyLoss) for module in network.modules()):
                self._remark_on_masks(error)
            return None

    def _check_layout(self, found: TracedNetwork, *, is_validated: bool) -> None:
        """Raise a RefusedLayoutError if the traced code is not supported with this layout of ranks."""
        layout, pp = self._world.place.layout, self._world.pp.size
        if found.evaluated is not None and is_validated and pp > 1:
            raise RefusedLayoutError(
                f"{self.class_name} cannot be validated with pp = {pp}, because its code reads `training`",
                hint="use `--pp 1`, turn validation off, or replace the code that reads `training` with modules such "
                "as nn.Dropout",
            )
        if found.has_penalty and (pp > 1 or layout.mp > 1):
            raise RefusedLayoutError(
                f"{self.class_name} iterates over all parameters, but each rank has only some parameters with {layout}",
                hint="use `--mp 1 --pp 1`, or use the optimizer's weight_decay instead",
            )

    def _loss_masks(self, found: TracedNetwork | None) -> Mapping[bool, LossMasks | None]:
        """Return the loss masks for training (key True) and for evaluation (key False). Unknown masks are None."""
        try:
            training = None if found is None else loss_masks(found, of_stages=self._world.pp.size > 1)
            if found is None or found.evaluated is None:
                return {True: training, False: training}
            return {True: training, False: loss_masks(found.evaluated, of_stages=False)}
        except UsageError as error:
            self._remark_on_masks(error)
            return {True: None, False: None}

    def _check(
        self,
        network: nn.Module,
        rows: Rows,
        divisions: Iterable[Division],
        how: Comparison,
        *,
        may_differ: bool,
        seed: int,
    ) -> None:
        """Check that the loss does not depend on how a batch is divided, and that the code supports this layout.

        Other differences from training on one rank are added to `remarks`.
        """
        layout, trial = self._world.place.layout, copy.deepcopy(network).cpu()
        _DrawingModules(trial, seed).begin(torch.arange(len(rows[0])), 1)
        drawing, buffer = seen_in_a_call(trial, rows)
        if drawing:
            where = f"{self.class_name} draws random numbers from torch's generator in {drawing}"
            told = f"{where}, and each rank draws its own"
            if layout.mp > 1:
                raise RefusedLayoutError(f"mp = {layout.mp}, and {told}", hint="use nn.Dropout, or `--mp 1`")
            self.remarks.append(f"{told}: losses differ from training on one process (with nn.Dropout they would not)")
        if buffer and layout.pp > 1:
            raise RefusedLayoutError(
                f"{self.class_name} changes the buffer {buffer}, but only the first stage keeps changes to buffers "
                f"with pp = {layout.pp}",
                hint="use `--pp 1`, or a module without running statistics",
            )
        if layout.dp * layout.micro_batches > 1:
            told = f"dp = {layout.dp}, micro_batches = {layout.micro_batches}"
            self.remarks = checked_division(
                network, divisions, how, layout=told, may_differ=may_differ, remarks=self.remarks
            )

    def _loss_of_part(self, network: nn.Module, inputs: Rows, batch: Rows | None) -> Tensor:
        """Return the loss of some rows of `batch`, normalised as in training: by the loss masks of the full batch."""
        masks = self._masks[network.training]
        if masks is not None and batch is not None:
            share = len(inputs[0]) / len(batch[0])
            for path, values in masks.counts(batch, torch.float64).items():
                _cross_entropy(network, path).begin([value * share for value in values])
        value = network(*inputs)
        assert isinstance(value, Tensor), "a loss"
        return value

    def _check_cut(self, found: TracedNetwork | None) -> None:
        """Raise a RefusedLayoutError if code that does not support sharding could use a sharded parameter."""
        mp, dims = self._world.mp.size, self.plan.dims
        if mp == 1:
            return
        if found is not None:
            check_uses(found, {name: self.plan.parameters[name] for name in dims}, mp)
        elif any(style.dims and isinstance(module, nn.Embedding) for module, style in self.plan.styles):
            raise RefusedLayoutError(
                f"mp = {mp}, {self.remarks[0] if self.remarks else f'{self.class_name} cannot be traced'}, so "
                "tlaunch cannot check whether other code uses the row-sharded embedding table",
                hint="set vocab_emb_dp = True so that every rank holds the full table",
            )

    def _remark_on_masks(self, error: UsageError) -> None:
        layout = self._world.place.layout
        if layout.dp * layout.micro_batches > 1:  # the batch has parts
            self.remarks.append(f"{error.message}; so each part of a batch divides its loss by the sum of its own mask")


def _cross_entropy(network: nn.Module, path: str) -> CrossEntropyLoss:
    loss = network.get_submodule(path)
    assert isinstance(loss, CrossEntropyLoss), "the path is one of a CrossEntropyLoss"
    return loss


def _check_modules(network: nn.Module) -> None:
    transformers = [module for module in network.modules() if isinstance(module, Transformer)]
    within = {id(layers) for each in transformers for layers in (each.encoder, each.decoder)}
    asking = [module for module in network.modules() if getattr(module, "lambda_func", None) is not None]
    alone = [each for each in asking if not isinstance(each, Transformer) and id(each) not in within]
    if alone or (asking and len(transformers) > 1):
        raise UsageError(
            f"a lambda_func needs a network with one Transformer, but this network has {len(transformers) or 'none'}",
            hint="remove lambda_func; to recompute layers, set recompute = True in parallel_config",
        )


def _recompute(part: nn.Module, settings: NetworkSettings) -> None:
    """Enable recompute in the layers that `settings` selects. Decoder layers are numbered after encoder layers."""
    parallel = settings.parallel
    chosen = {  # by id, since modules may share a layer
        id(layer): layer
        for module in part.modules()
        if isinstance(module, TransformerEncoder | TransformerDecoder)
        for key, layer in module.blocks.items()
        if parallel.recompute or int(key) + module.offset in parallel.recompute_layers
    }
    for layer in chosen.values():
        recompute_in_backward(layer)
