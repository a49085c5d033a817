"""Training and validation on one rank: the model's part, its pipeline, its optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from launcher.core.frozen import frozen
from launcher.mesh.stages import split_into_stages
from launcher.recipes.transformer.config import TrainConfig, TransformerRecipe
from launcher.trainer.collectives import all_reduce
from launcher.trainer.data import Example, in_batches, own_micro_batches, token_count
from launcher.trainer.heartbeat import getting_on
from launcher.trainer.loss import token_loss_sum, vocabulary_parallel_token_loss_sum
from launcher.trainer.model import Batch, Transformer
from launcher.trainer.optimizer import ShardedAdamW
from launcher.trainer.pipeline import Pipeline, Schedule, forward_only, one_forward_one_backward
from launcher.trainer.plan import apply_plan, part_bounds
from launcher.trainer.world import World


@frozen
class StepResult:
    loss: float  # mean over the global batch's target tokens
    gradient_norm: float  # of the whole model, before clipping
    tokens: int  # target tokens of the global batch


class Session:
    """One rank's part of the model, and the steps that all ranks take together."""

    def __init__(self, recipe: TransformerRecipe, world: World) -> None:
        self.recipe, self.world = recipe, world
        self.dtype = getattr(torch, recipe.train.precision)
        self.stage = split_into_stages(recipe.model.encoder_layers, recipe.model.decoder_layers, world.pp.size)[
            world.pp.index
        ]
        self.model = meta_model(recipe)
        self.placements = apply_plan(
            self.model, self.stage, world.mp, seed=recipe.train.seed, device=world.device, dtype=self.dtype
        )
        self.optimizer = ShardedAdamW(
            dict(self.model.named_parameters()), self.placements, recipe.train, dp=world.dp, mp=world.mp, pp=world.pp
        )
        # Dropout falls on replicated tensors only. So the ranks of one mp group must draw the same numbers, all others
        # different ones.
        torch.manual_seed((recipe.train.seed * world.pp.size + world.pp.index) * world.dp.size + world.dp.index)

    def train_step(self, examples: Sequence[Example], learning_rate: float) -> StepResult:
        """One optimizer step on a global batch. Every rank of the run must call it with the same arguments."""
        loss = self.accumulate_gradients(examples)
        norm = self.optimizer.step(learning_rate)
        return StepResult(loss, norm, token_count(examples))

    def accumulate_gradients(self, examples: Sequence[Example]) -> float:
        """Forward and backward over a global batch; its mean loss, on every rank.

        Gradients are this rank's share of those of the mean loss: their sum over the data-parallel ranks is whole.
        """
        self.model.train()
        self.optimizer.zero_gradients()
        layout, pp = self.world.place.layout, self.world.pp
        schedule = one_forward_one_backward(pp.index, pp.size, layout.micro_batches)
        losses = self._run(schedule, examples, self.recipe.train.label_smoothing)
        return float(all_reduce(all_reduce(losses, self.world.dp), pp))

    @torch.no_grad()
    def validate(self, examples: Sequence[Example]) -> float:
        """Return the mean loss per target token without smoothing or dropout, in nats, on every rank. All must call it."""
        self.model.eval()
        schedule = forward_only(self.world.place.layout.micro_batches)
        total = torch.zeros(1, device=self.world.device, dtype=self.dtype)
        for batch in in_batches(examples, self.recipe.train.batch_size):
            total += self._run(schedule, batch, 0.0) * token_count(batch)
            getting_on()
        speaks = self.stage.is_last and self.world.mp.index == 0
        return float(self.world.sum_over_all(total if speaks else torch.zeros_like(total))) / token_count(examples)

    def _run(self, schedule: Schedule, examples: Sequence[Example], smoothing: float) -> Tensor:
        """Return this rank's share of the mean loss over `examples`, zero on all stages but the last."""
        world = self.world
        batches = own_micro_batches(examples, world.place.layout, world.place.coordinate, world.device)
        pipeline = Pipeline(
            world.links,
            partial(self._compute, batches, smoothing, 1 / token_count(examples)),
            lambda index: (*batches[index].streams_shape, self.recipe.model.d_model),
            device=world.device,
            dtype=self.dtype,
        )
        losses = pipeline.run(schedule)
        return torch.stack(losses).sum() if losses else torch.zeros((), device=world.device, dtype=self.dtype)

    def _compute(
        self, batches: Sequence[Batch], smoothing: float, scale: float, index: int, received_BUD: Tensor | None
    ) -> Tensor:
        """One micro batch on this stage; U = S + T, both streams joined along time."""
        batch = batches[index]
        streams = None
        if received_BUD is not None:
            encoded_BSD, decoded_BTD = received_BUD.split([batch.source_BS.shape[1], batch.target_BT.shape[1]], dim=1)
            streams = (encoded_BSD, decoded_BTD)
        output = self.model(batch, streams)
        if self.stage.is_last:
            return self._loss_sum(output.flatten(0, 1), batch.labels_BT.flatten(), smoothing) * scale
        return torch.cat(output, dim=1)

    def _loss_sum(self, logits_NW: Tensor, labels_N: Tensor, smoothing: float) -> Tensor:
        mp, vocabulary_size = self.world.mp, self.recipe.model.vocabulary_size
        if mp.size == 1:
            return token_loss_sum(logits_NW, labels_N, smoothing)
        first_id, _ = part_bounds(vocabulary_size, mp)
        return vocabulary_parallel_token_loss_sum(
            logits_NW, labels_N, smoothing, first_id=first_id, vocabulary_size=vocabulary_size, group=mp
        )


def meta_model(recipe: TransformerRecipe) -> Transformer:
    """Return the whole single-device model without storage: names and shapes only."""
    with torch.device("meta"):
        return Transformer(recipe.model, recipe.data)


def learning_rate_at(step: int, config: TrainConfig) -> float:
    """Return the learning rate of step number `step` (from 1): linear warm-up over W steps, then falling as sqrt(W / step).

    As in Vaswani et al. 2017, scaled to reach `learning_rate` at step W. Without warm-up it is constant.
    """
    warmup = config.warmup_steps
    if warmup == 0:
        return config.learning_rate
    return config.learning_rate * min(step / warmup, (warmup / step) ** 0.5)
