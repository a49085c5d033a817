"""A network of one's own as a program for the training loop: one rank's part of it, and the steps that all ranks take together.

All ranks compute the losses and weights of one process, but for rounding:

    1. each data-parallel rank takes its share of the rows of a global batch, in micro batches of equally many rows
    2. the loss of a part counts by its share of the rows; a CrossEntropyLoss divides by what its mask counts in the whole batch
    3. dropout depends on the seed, the step, and the row of the global batch
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn

from launcher.core.errors import RefusedLayoutError, TlaunchError, UsageError
from launcher.mesh.coordinates import Coordinate
from launcher.mesh.schedules import Schedule, forward_only, schedule_of
from launcher.mesh.stages import Stage
from launcher.recipes.transformer.config import DataConfig, ModelConfig, TransformerSettings
from launcher.recipes.transformer.cost import pipeline_stages
from launcher.trainer.api.data import Rows, SampleBatch, SampleOrder, Samples, collated, digest_of, micro_batches
from launcher.trainer.api.dropout import DrawnDropout, draw_dropouts
from launcher.trainer.api.graphs import RECEIVED, Traced, check_tables, mask_network, output_of, stage_networks, traced
from launcher.trainer.api.modules import CrossEntropyLoss, Transformer, TransformerDecoder, TransformerEncoder
from launcher.trainer.api.optimizers import Optimizer
from launcher.trainer.api.plan import apply_plan, plan_network
from launcher.trainer.api.settings import NetworkSettings
from launcher.trainer.model.dropout import Draws, Dropout
from launcher.trainer.optimizer.sharded import ShardedOptimizer, Shards
from launcher.trainer.optimizer.shared_weight import SharedWeight
from launcher.trainer.parallel.collectives import Group, all_reduce
from launcher.trainer.parallel.pipeline import Pipeline
from launcher.trainer.parallel.placement import Placement
from launcher.trainer.parallel.recompute import recompute_in_backward
from launcher.trainer.parallel.waiting import loading
from launcher.trainer.parallel.world import World
from launcher.trainer.programs.lines import say, say_of_all
from launcher.trainer.programs.network import NetworkResult
from launcher.trainer.programs.program import Program, Validated, line_of
from launcher.trainer.programs.strategy import StepRecorder
from launcher.trainer.saved import gather
from launcher.trainer.shard.modules import class_name
from launcher.trainer.telemetry.heartbeat import getting_on
from launcher.trainer.telemetry.recording import Recorder

NAME = "network"  # in checkpoints and saved models


class OwnNetwork(Program[SampleBatch, NetworkResult]):
    name = NAME
    optimizer: ShardedOptimizer

    def __init__(
        self,
        network: nn.Module,
        samples: Samples,
        validation: Samples | None,
        optimizer: Optimizer,
        settings: NetworkSettings,
        world: World,
    ) -> None:
        """Make this rank's part of `network`, which it takes over, with the weights that rank 0 has. All ranks must call it.

        Raises:
            UsageError: the network, the samples or a setting cannot be served.
            RefusedLayoutError: the layout does not fit the network.
        """
        self.settings: NetworkSettings = settings
        self.world = world
        self._samples, self._validation, self._optimizer = samples, validation, optimizer
        self._order = SampleOrder(
            len(samples), settings.train.batch_size, seed=settings.train.seed, shuffle=settings.train.shuffle
        )
        self.digest = digest_of(samples)
        self._class_name = class_name(network)
        draw_dropouts(network)
        for path, module in network.named_modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):  # noqa: SLF001 - the class of all of them
                raise UsageError(
                    f"{path} is a {type(module).__name__}, whose statistics would be those of a part of the batch"
                )
            if isinstance(module, Dropout):
                module.place = path
        self.remarks: list[str] = []
        found = self._traced(network)
        self._counted = self._masks(found)
        self._stages = stages_of_network(network, settings, world.pp.size)
        self.stage = self._stages[world.pp.index]
        parts: Sequence[nn.Module] = [network]
        if world.pp.size > 1:
            assert found is not None, "else it is refused"
            parts = stage_networks(found, world.pp.size)
        self._plan = plan_network(network, parts, self._stages, world.mp.size)
        if found is not None:
            check_tables(found, world.mp.size)
        self.dtype = next(network.parameters()).dtype
        self._constants = {name: buffer.clone() for name, buffer in network.named_buffers()}
        self.part = parts[world.pp.index]
        whole = dict(network.named_parameters())
        held = apply_plan(
            self.part,
            self._plan,
            self.stage,
            world.mp,
            lambda name: _of_rank_0(whole[name], world),
            device=world.device,
            dtype=self.dtype,
        )
        _recompute(self.part, settings)
        owned = self._plan.owned(self.stage.index)
        self.parameters = {name: held[name] for name in owned}
        self.optimizer = ShardedOptimizer(
            self.parameters,
            self._placements(world.place.coordinate),
            optimizer.rule(),
            clip_norm=settings.train.clip_norm,
            gradient_groups=settings.parallel.gradient_groups,
            shards=Shards(settings.parallel.optimizer_shard, settings.parallel.gradient_accumulation_shard),
            empty=torch.empty(0, dtype=self.dtype, device=world.device),
            dp=world.dp,
            mp=world.mp,
            pp=world.pp,
            shared=None if self._plan.shared is None else SharedWeight.of(self._plan.shared, held, world.pp),
        )
        self.shapes = self._plan.shapes
        self._drawing = [
            module
            for module in self.part.modules()
            if isinstance(module, DrawnDropout | TransformerEncoder | TransformerDecoder)
        ]
        self.trained: dict[str, Tensor] | None = None  # whole, on rank 0 once the training has ended

    def _traced(self, network: nn.Module) -> Traced | None:
        """Return the network's calls; None, with a remark, where it cannot be traced and need not be.

        Raises:
            RefusedLayoutError: it is to be cut into stages.
        """
        try:
            return traced(network, self.world.device)
        except UsageError as error:
            if self.world.pp.size > 1:
                raise RefusedLayoutError(
                    f"pp = {self.world.pp.size}, and {error.message}", hint=f"--pp 1, or {error.hint}"
                ) from error
            if any(isinstance(module, CrossEntropyLoss) for module in network.modules()):
                self._remark(error)
            return None

    def _masks(self, found: Traced | None) -> tuple[nn.Module, tuple[str, ...]] | None:
        """Return what computes the masks of cross entropies, and their paths; None, with a remark, where that needs parameters."""
        try:
            return None if found is None else mask_network(found)
        except UsageError as error:
            self._remark(error)
            return None

    def _remark(self, error: UsageError) -> None:
        self.remarks.append(f"{error.message}; so each part of a batch divides its loss by its own mask")

    def begin(self) -> None:
        layout, world = self.world.place.layout, self.world
        count = sum(parameter.numel() for parameter in self.part.parameters())
        how = f"{layout} micro_batches={layout.micro_batches} on {world.device.type}"
        say_of_all(f"layout: {how}, {count} parameters on this rank", world)
        if not world.is_first:
            return
        say(f"network: {self._class_name}, {len(self._samples)} samples")
        for remark in self.remarks:
            say(remark)
        if world.pp.size > 1:
            layers = ", ".join(str(len(stage.encoder_layers) + len(stage.decoder_layers)) for stage in self._stages)
            say(f"stages: {layers} layers")

    def batches(self, first_step: int) -> Iterator[SampleBatch]:
        train = self.settings.train
        return self._order.batches(first_step, train.steps or train.epochs * self._order.steps_per_epoch)

    def learning_rate(self, batch: SampleBatch) -> float:
        rate = self._optimizer.learning_rate
        return float(rate(batch.step) if callable(rate) else rate)

    def train_step(
        self, batch: SampleBatch, learning_rate: float, votes: Callable[[], tuple[float, ...]]
    ) -> NetworkResult:
        world, kind = self.world, self.settings.parallel.schedule
        micro = world.place.layout.micro_batches
        self.optimizer.zero_gradients(backward_passes=micro)
        schedule = schedule_of(kind, world.pp.index, world.pp.size, micro)
        losses_M = self._run(schedule, self._samples, batch.samples, step=batch.step)
        norm = self.optimizer.step(learning_rate, votes)
        # After the step, as in the bundled Transformer's session: collectives must begin in the same order on all ranks.
        loss = float(all_reduce(all_reduce(losses_M.sum(), world.dp, what="mean loss"), world.pp, what="mean loss"))
        return NetworkResult(loss, math.isfinite(norm), self.optimizer.votes)

    def _run(self, schedule: Schedule, samples: Samples, numbers: Sequence[int], *, step: int | None) -> Tensor:
        """Return each micro batch's share of the loss of a global batch; zero on all stages but the last. Nothing is dropped without a `step`."""
        world, layout = self.world, self.world.place.layout
        with loading:
            inputs = collated(samples, numbers, world.device, self.dtype)
            here = micro_batches(len(numbers), layout, world.place.coordinate)
        share = 1 / (layout.dp * layout.micro_batches)
        self._count(inputs, share)
        transformer = next((module for module in self.part.modules() if isinstance(module, Transformer)), None)

        def shape_of(index: int) -> tuple[int, ...]:
            assert transformer is not None, "stages are made of one"
            rows = here[index].stop - here[index].start
            return rows, transformer.streams_length, transformer.hidden_size

        compute = partial(self._compute, inputs, here, share, step)
        losses = Pipeline(world.links, compute, shape_of, device=world.device, dtype=self.dtype).run(schedule)
        if losses:
            return torch.stack(losses)
        return torch.zeros(len(here), device=world.device, dtype=torch.promote_types(self.dtype, torch.float32))

    @torch.no_grad()
    def _count(self, inputs: Rows, share: float) -> None:
        """Have cross entropies divide by what their masks count in the whole batch, of which a part has that share of the rows."""
        if self._counted is None or not self.stage.is_last:
            return
        network, paths = self._counted
        for path, mask in zip(paths, network(*inputs), strict=True):
            loss = self.part.get_submodule(path)
            assert isinstance(loss, CrossEntropyLoss), "that is what was looked for"
            loss.count = mask.to(torch.promote_types(self.dtype, torch.float32)).sum() * share

    def _compute(
        self,
        inputs: Rows,
        here: Sequence[slice],
        share: float,
        step: int | None,
        chunk: int,
        index: int,
        received: Tensor | None,
    ) -> Tensor:
        del chunk  # there is one
        rows = here[index]
        draws = None
        if step is not None:
            row_B = torch.arange(rows.start, rows.stop, device=self.world.device)
            draws = Draws.of(row_B, self._longest(), seed=self.settings.train.seed, step=step)
        for module in self._drawing:
            module.begin(draws)
        options = {} if received is None else {RECEIVED: received}
        value = self.part(*(each[rows] for each in inputs), **options)
        if not self.stage.is_last:
            assert isinstance(value, Tensor), "a stage that is not the last returns its streams"
            return value
        return output_of(value, self._class_name) * share

    def _longest(self) -> int:
        lengths = [
            length
            for module in self.part.modules()
            for length in (getattr(module, "seq_length", 1), getattr(module, "tgt_seq_length", 1))
            if isinstance(module, TransformerEncoder | TransformerDecoder)
        ]
        return max(lengths, default=1)

    def line(self, batch: SampleBatch, result: NetworkResult, seconds: float) -> str:
        del seconds
        return line_of(batch, result.loss)

    @torch.no_grad()
    def validate(self) -> Validated | None:
        """Return the mean loss of the batches of the validation samples; what fills no batch is left out. All ranks must call it."""
        if self._validation is None:
            return None
        size, total = self.settings.train.batch_size, 0.0
        count = len(self._validation) // size
        self.part.eval()
        for number in range(count):
            schedule = forward_only(self.world.place.layout.micro_batches)
            losses_M = self._run(schedule, self._validation, range(number * size, (number + 1) * size), step=None)
            counts = self.stage.is_last and self.world.mp.index == 0
            sums = losses_M.sum() if counts else torch.zeros_like(losses_M.sum())
            total += float(self.world.sum_over_all(sums))
            getting_on()
        self.part.train()
        loss = total / count
        return Validated(loss, f"validation loss is {loss:.6f}")

    def not_finite(self, batch: SampleBatch, result: NetworkResult) -> TlaunchError:
        return TlaunchError(
            f"epoch {batch.epoch} step {batch.step_of_epoch}: the gradient is not finite, and the loss is {result.loss}; "
            "that step has changed no weight",
            hint="a smaller learning_rate",
        )

    def step_recorder(self, path: Path | None, attempt: int) -> StepRecorder:
        del attempt
        assert path is None, "no report is asked for"

        def report_of(_recorder: Recorder, _step: int) -> NoReturn:
            raise AssertionError("nothing is recorded without a path")

        return StepRecorder(path, self.world.place.global_rank, report_of, None)

    def weights(self) -> dict[str, Tensor] | None:
        """Return all that the network's own `load_state_dict` takes, each tensor with storage of its own."""
        found = gather(self.world, self.parameters, self._placements)
        if found is None:
            return None
        names = {alias: name for name, aliases in self._plan.aliases.items() for alias in aliases}
        whole = {alias: found[name].clone() for alias, name in names.items()}
        return {**whole, **{name: buffer.clone() for name, buffer in self._constants.items()}}

    def show(self, weights: Mapping[str, Tensor]) -> None:
        self.trained = dict(weights)

    def _placements(self, place: Coordinate) -> Mapping[str, Placement]:
        group = Group(ranks=tuple(range(self.world.mp.size)), index=place.mp)
        return self._plan.placements(self._plan.owned(place.pp), group)


def stages_of_network(network: nn.Module, settings: NetworkSettings, pp: int) -> tuple[Stage, ...]:
    """Return the stages of the network's Transformer, as `parallel.stages` has them, else cut by cost.

    Raises:
        RefusedLayoutError: there are fewer parts than stages.
    """
    transformer = next((module for module in network.modules() if isinstance(module, Transformer)), None)
    if pp == 1 or transformer is None:  # which is refused elsewhere, if there are several stages
        empty = range(0)
        return tuple(Stage(index, pp, empty, empty, closes_encoder=False) for index in range(pp))
    within = {id(parameter) for parameter in transformer.parameters()}
    largest = max(
        (
            parameter.numel()
            for parameter in network.parameters()
            if id(parameter) not in within and parameter.dim() > 1
        ),
        default=0,
    )
    config = transformer.encoder.config
    model = ModelConfig(
        vocabulary_size=max(largest // config.d_model, 1),  # of the head, as far as the largest matrix tells
        d_model=config.d_model,
        heads=config.heads,
        feed_forward_dim=config.feed_forward_dim,
        encoder_layers=transformer.encoder_layers,
        decoder_layers=transformer.decoder_layers,
    )
    data = DataConfig(source_length=transformer.src_seq_length, target_length=transformer.tgt_seq_length)
    return pipeline_stages(TransformerSettings(model=model, data=data, parallel=settings.parallel), pp)


def _recompute(part: nn.Module, settings: NetworkSettings) -> None:
    """Have backward compute the activations of layers again that are to be: by their numbers, those of a Transformer's decoder counted on."""
    for module in part.modules():
        if isinstance(module, TransformerEncoder | TransformerDecoder):
            for key, layer in module.blocks.items():
                if settings.parallel.recompute or int(key) + module.offset in settings.parallel.recompute_layers:
                    recompute_in_backward(layer)


def _of_rank_0(parameter: Tensor, world: World) -> Tensor:
    value = parameter.detach().to(world.device, copy=True).contiguous()
    if world.place.world_size > 1:
        dist.broadcast(value, src=0)
    return value
