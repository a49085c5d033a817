"""Trains and validates the Transformer on one rank, with its part of the model, its pipeline and its optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor

from launcher.core.frozen import frozen
from launcher.core.records import Layout
from launcher.mesh.coordinates import Coordinate
from launcher.mesh.schedules import Schedule, forward_only, schedule_of
from launcher.recipes.transformer.cost import pipeline_stages
from launcher.recipes.transformer.transformer_settings import TransformerSettings, TransformerTrainConfig
from launcher.trainer.data.batches import (
    CPU,
    own_micro_batches,
    padding_share,
    rows_of,
    token_count,
    validation_batches,
)
from launcher.trainer.data.tokens import Example
from launcher.trainer.model.dropout import DropoutBits
from launcher.trainer.model.linear import Linear, set_own_rows
from launcher.trainer.model.transformer import PAD, SHARED_WEIGHT, Batch, Transformer
from launcher.trainer.optimizer.sharded import ShardedOptimizer
from launcher.trainer.optimizer.shared_weight import SharedWeight
from launcher.trainer.optimizer.update_rules import AdamW
from launcher.trainer.parallel.collectives import Group, all_reduce, host_value
from launcher.trainer.parallel.head_loss import head_loss
from launcher.trainer.parallel.pipeline import Pipeline
from launcher.trainer.parallel.placement import Placement
from launcher.trainer.parallel.world import World, linked_around
from launcher.trainer.plan import apply_plan, chunk_of, copied, keep_stages, placements
from launcher.trainer.telemetry import recording
from launcher.trainer.telemetry.heartbeat import getting_on
from launcher.trainer.telemetry.step_time import loading


@frozen
class NonFiniteReport:
    """The parameter and sentence pairs that may have caused a non-finite gradient. All ranks have the same report."""

    parameter: str | None  # first in the model with a non-finite gradient norm; None: only the total norm overflows
    pairs: tuple[int, ...]  # indices in the global batch: of micro batches with a non-finite loss, or of all if none


@frozen
class StepResult:
    loss: float  # mean over the global batch's target tokens, without label smoothing
    gradient_norm: float  # of the whole model, before clipping
    tokens: int  # target tokens of the global batch
    padding_share: float  # share of this rank's source and target positions that are padding
    votes: tuple[float, ...] = ()  # summed over all ranks
    suspects: NonFiniteReport | None = None  # not None: the gradient is not finite, and the model was not updated

    @property
    def is_finite(self) -> bool:
        return self.suspects is None


class Session:
    """One rank's part of the Transformer and its optimizer, with methods to train and validate."""

    def __init__(self, settings: TransformerSettings, world: World) -> None:
        self.settings, self.world = settings, world
        self.dtype = getattr(torch, settings.train.precision)
        self.loss_dtype = torch.promote_types(self.dtype, torch.float32)
        parallel, pp = settings.parallel, world.pp
        self.stages = pipeline_stages(settings, pp.size)
        self.own_stages = self.stages[pp.index :: pp.size]  # one, or the chunks of an interleaved schedule
        self.model = meta_model(settings)
        self.placements = apply_plan(
            self.model,
            self.own_stages,
            world.mp,
            seed=settings.train.seed,
            device=world.device,
            dtype=self.dtype,
            parallel=parallel,
        )
        parameters = dict(self.model.named_parameters())
        self._links = linked_around(world, parallel.chunks(pp.size))
        self._chunks = [self.model]
        if len(self.own_stages) > 1:
            self._chunks = [chunk_of(self.model, meta_model(settings), stage) for stage in self.own_stages]
        self.optimizer = ShardedOptimizer(
            {name: parameter for name, parameter in parameters.items() if name not in copied(self.own_stages)},
            self.placements,
            rule_of(settings.train),
            clip_norm=settings.train.clip_norm,
            gradient_groups=parallel.gradient_groups,
            shards_state=parallel.optimizer_shard,
            shards_gradients=parallel.gradient_accumulation_shard,
            empty=torch.empty(0, dtype=self.dtype, device=world.device),
            dp=world.dp,
            mp=world.mp,
            pp=pp,
            shared=SharedWeight.of(SHARED_WEIGHT, parameters, pp),
        )
        self._padding_share = 0.0  # of the last batch

    def expect(self, first_batches: Iterable[Sequence[Example]]) -> None:
        """Choose kernels for the linear layers, based on the first global batches of the training.

        If there are at least two, and their matrices have the same numbers of rows, these numbers get dedicated
        kernels: most likely all sentences have one length, also in later batches. Only the first batches decide, so
        that a resumed training uses the same kernels.
        """
        place = self.world.place
        rows = [
            {
                rows
                for batch in own_micro_batches(examples, place.layout, place.coordinate, CPU)
                for rows in rows_of(batch)
            }
            for examples in first_batches
        ]
        are_alike = len(rows) > 1 and all(others == rows[0] for others in rows)
        set_own_rows(rows[0] if are_alike else ())

    def train_step(
        self,
        examples: Sequence[Example],
        learning_rate: float,
        *,
        step: int,
        votes: Callable[[], tuple[float, ...]] = tuple,
    ) -> StepResult:
        """Take one optimizer step on a global batch. All ranks must call it with the same arguments, except `votes`.

        `step` is the number of the step in the training; dropout depends on it. `votes` returns this rank's numbers to
        be summed over all ranks.
        """
        self.optimizer.zero_gradients(backward_passes=self.world.place.layout.micro_batches)
        losses_M = self._forward_and_backward(examples, step)
        norm = self.optimizer.step(learning_rate, votes)
        # After the step: data-parallel ranks must start their collectives in the same order, and they may differ in how
        # many gradient collectives they start before the end of backward.
        loss = self._global_loss(losses_M)
        suspects = None if math.isfinite(norm) else self._suspects(examples, losses_M)
        return StepResult(loss, norm, token_count(examples), self._padding_share, self.optimizer.votes, suspects)

    def accumulate_gradients(self, examples: Sequence[Example], *, step: int) -> float:
        """Run forward and backward on a global batch without an optimizer step, and return the mean loss.

        The sum of the gradients over the data-parallel ranks is the gradient of the mean loss with label smoothing.
        """
        self.optimizer.zero_gradients()
        losses_M = self._forward_and_backward(examples, step)
        self.optimizer.collect_shared()
        return self._global_loss(losses_M)

    def _forward_and_backward(self, examples: Sequence[Example], step: int) -> Tensor:
        pp, kind = self.world.pp, self.settings.parallel.schedule
        schedule = schedule_of(kind, pp.index, pp.size, self.world.place.layout.micro_batches, chunks=len(self._chunks))
        return self._run(schedule, examples, self.settings.train.label_smoothing, step)

    def _global_loss(self, losses_M: Tensor) -> float:
        with recording.within("loss"):
            over_dp = all_reduce(losses_M.sum(), self.world.dp, what="mean loss")
            return host_value(all_reduce(over_dp, self.world.pp, what="mean loss"))

    def _suspects(self, examples: Sequence[Example], losses_M: Tensor) -> NonFiniteReport:
        """Find the possible causes of the last step's non-finite gradient. All ranks must call it."""
        names = [name for name, _ in meta_model(self.settings).named_parameters()]
        here = set(self.optimizer.not_finite())
        pairs: set[int] = set()
        layout, coordinate = self.world.place.layout, self.world.place.coordinate
        batches = own_micro_batches(examples, layout, coordinate, self.world.device)
        for batch, loss in zip(batches, losses_M.tolist(), strict=True):
            if not math.isfinite(loss):
                pairs.update(batch.row_B[(batch.labels_BT != PAD).any(dim=1)].tolist())
        flags = [*(name in here for name in names), *(row in pairs for row in range(len(examples)))]
        counts = self.world.sum_over_all(torch.tensor(flags, dtype=torch.int32, device=self.world.device)).tolist()
        named = [name for name, count in zip(names, counts, strict=False) if count]
        found = tuple(row for row, count in enumerate(counts[len(names) :]) if count)
        return NonFiniteReport(named[0] if named else None, found or tuple(range(len(examples))))

    @torch.no_grad()
    def validate(self, examples: Sequence[Example]) -> float:
        """Return the mean loss per target token in nats, without label smoothing or dropout. All ranks must call it."""
        schedule = forward_only(
            self.world.place.layout.micro_batches, stage_count=self.world.pp.size, chunks=len(self._chunks)
        )
        total = torch.zeros(1, device=self.world.device, dtype=self.loss_dtype)
        for batch in validation_batches(examples, self.settings.train):
            total += self._run(schedule, batch, 0.0).sum() * token_count(batch)
            getting_on()
        counts = self.own_stages[-1].is_last and self.world.mp.index == 0
        return float(self.world.sum_over_all(total if counts else torch.zeros_like(total))) / token_count(examples)

    def _run(
        self, schedule: Schedule, examples: Sequence[Example], smoothing: float, step: int | None = None
    ) -> Tensor:
        """Run a pipeline schedule on a batch, and return the contribution of each micro batch to the mean loss.

        On stages before the last the contributions are zeros. Without `step` there is no dropout.
        """
        world = self.world
        with loading:
            batches = own_micro_batches(examples, world.place.layout, world.place.coordinate, world.device)
            self._padding_share = padding_share(batches)
        pipeline = Pipeline(
            self._links,
            partial(self._compute, batches, step, smoothing, 1 / token_count(examples)),
            lambda index: (*batches[index].streams_shape, self.settings.model.d_model),
            device=world.device,
            dtype=self.dtype,
        )
        losses = pipeline.run(schedule)
        return torch.stack(losses) if losses else torch.zeros(len(batches), device=world.device, dtype=self.loss_dtype)

    def _compute(
        self,
        batches: Sequence[Batch],
        step: int | None,
        smoothing: float,
        scale: float,
        chunk: int,
        index: int,
        received_BUD: Tensor | None,
    ) -> Tensor:
        """Compute one micro batch in a pipeline stage of this rank, and return the next stage's input or the loss.

        Messages between stages have U = S + T positions: the encoder's states, then the decoder's.
        """
        batch, stage, model = batches[index], self.own_stages[chunk], self._chunks[chunk]
        if recording.active is not None:
            recording.active.graph.enter_module("")  # the watched model does not contain the chunks as modules
            recording.active.graph.name_tensors(
                {"source": batch.source_BS, "target": batch.target_BT, "labels": batch.labels_BT, f"stage {stage.index - 1}": received_BUD}
            )  # fmt: skip
        streams = None
        if received_BUD is not None:
            encoded_BSD, decoded_BTD = received_BUD.split([batch.source_BS.shape[1], batch.target_BT.shape[1]], dim=1)
            streams = (encoded_BSD, decoded_BTD)
        draws = None
        if step is not None and self.settings.model.drops:
            length = max(batch.source_BS.shape[1], batch.target_BT.shape[1])
            draws = DropoutBits.of(batch.row_B, length, seed=self.settings.train.seed, step=step)
        encoded_BSD, decoded_BTD = model(batch, streams, draws)
        if not stage.is_last:
            return torch.cat([encoded_BSD, decoded_BTD], dim=1)
        hidden_ND, labels_N = model.last_hidden(decoded_BTD, batch.labels_BT, batch.labelled_N)
        head = model.head
        assert head is not None, "the last stage has the head"
        loss = partial(head_loss, hidden_ND, head, labels_N, group=self.world.mp, smoothing=smoothing, scale=scale)
        if recording.active is None:
            return loss()
        parameters = {"head.weight" if isinstance(head, Linear) else SHARED_WEIGHT: head.weight}
        return recording.active.applied("head_loss", loss, [hidden_ND, labels_N], own="head", parameters=parameters)


def rule_of(config: TransformerTrainConfig) -> AdamW:
    return AdamW(
        config.beta1, config.beta2, config.epsilon, config.weight_decay, corrects_bias=config.optimizer == "adamw"
    )


def placements_at(settings: TransformerSettings, layout: Layout, coordinate: Coordinate) -> dict[str, Placement]:
    """Return the shards of parameters that the rank at `coordinate` owns, in the order of the rank's model."""
    model, stages = meta_model(settings), pipeline_stages(settings, layout.pp)[coordinate.pp :: layout.pp]
    keep_stages(model, stages)
    held = placements(model, Group(ranks=tuple(range(layout.mp)), index=coordinate.mp), settings.parallel)
    return {name: placement for name, placement in held.items() if name not in copied(stages)}


def model_shapes(settings: TransformerSettings) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter of the single-device model, in the model's order."""
    return {name: tuple(parameter.shape) for name, parameter in meta_model(settings).named_parameters()}


def meta_model(settings: TransformerSettings) -> Transformer:
    """Return the complete single-device model on the meta device, which has names and shapes but no storage."""
    with torch.device("meta"):
        return Transformer(settings.model, settings.data)
