"""A custom network as a program for the training loop.

Losses and weights are the same as on one process, except for rounding:

    1. each data-parallel rank takes its share of the rows of a global batch, in micro batches of equal size
    2. the loss of a part is weighted by its share of the rows
    3. a CrossEntropyLoss divides by its mask's sum over the full batch
    4. dropout depends on the seed, the step, and the row of the global batch
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from launcher.checkpoint.index import OWN_NETWORK
from launcher.core.errors import RefusedLayoutError
from launcher.mesh.coordinates import Coordinate
from launcher.mesh.schedules import Schedule, forward_only, schedule_of
from launcher.trainer.optimizer.sharded import ShardedOptimizer
from launcher.trainer.optimizer.shared_weight import SharedWeight
from launcher.trainer.own.divide import micro_batches
from launcher.trainer.own.train.configs import NetworkSettings
from launcher.trainer.own.train.optimizers import Optimizer
from launcher.trainer.own.train.rank_part import DividedNetwork
from launcher.trainer.own.train.samples import SampleBatch, SampleOrder, Samples, collated, digest_of
from launcher.trainer.parallel.collectives import Group, all_reduce
from launcher.trainer.parallel.pipeline import Pipeline
from launcher.trainer.parallel.placement import Placement
from launcher.trainer.parallel.world import World
from launcher.trainer.programs.network_program import NetworkResult
from launcher.trainer.programs.program import Program, Validated, say, say_layout
from launcher.trainer.saved import gather
from launcher.trainer.telemetry.heartbeat import getting_on
from launcher.trainer.telemetry.step_time import loading

NAME = OWN_NETWORK  # in checkpoints and saved models


class OwnNetwork(Program[SampleBatch, NetworkResult]):
    """A program for the training loop, which trains a custom network on one rank."""

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
        **checks: bool,
    ) -> None:
        """Reduce `network` in place to this rank's part. All ranks must call it with the same arguments.

        `checks` are the options of `DividedNetwork`.

        Raises:
            UsageError: the ranks' arguments differ, or the network or the samples are not supported. All ranks raise
                it.
            RefusedLayoutError: the layout does not fit the network. All ranks raise it.
        """
        self.settings: NetworkSettings = settings
        self.world = world
        self._samples, self._validation, self._rate = samples, validation, optimizer.learning_rate
        train, parallel = settings.train, settings.parallel
        digests: list[str] = []
        given = [each for each in (samples, validation) if each is not None]
        world.while_others_wait(lambda: digests.extend(map(digest_of, given)))
        self.digest = digests[0]
        _check_equal(network, digests, settings, world)
        self._order = SampleOrder(len(samples), train.batch_size, seed=train.seed, shuffle=settings.data.shuffle)
        self._divided = DividedNetwork(network, samples, settings, world, is_validated=validation is not None, **checks)
        self.dtype, plan, held = self._divided.dtype, self._divided.plan, self._divided.parameters
        self._owned = {name: held[name] for name in plan.owned(self._divided.stage.index)}
        self.optimizer = ShardedOptimizer(
            self._owned,
            self._placements(world.place.coordinate),
            optimizer.rule(),
            clip_norm=train.clip_norm,
            gradient_groups=parallel.gradient_groups,
            shards_state=parallel.optimizer_shard,
            shards_gradients=parallel.gradient_accumulation_shard,
            empty=torch.empty(0, dtype=self.dtype, device=world.device),
            dp=world.dp,
            mp=world.mp,
            pp=world.pp,
            shared=None if plan.shared is None else SharedWeight.of(plan.shared, held, world.pp),
        )
        self.clip_norm = train.clip_norm
        self._compares_losses = world.mp.size > 1 and not self._divided.is_traced  # in the first step
        self.buffers = self._divided.buffers.saved
        self.shapes = {name: tuple(parameter.shape) for name, parameter in plan.parameters.items()}

    def begin(self) -> None:
        divided, world, layout = self._divided, self.world, self.world.place.layout
        say_layout(f"{layout} micro_batches={layout.micro_batches}", divided.parameters.values(), world)
        if not world.is_first:
            return
        say(f"network: {divided.class_name}, {len(self._samples)} samples")
        for remark in divided.remarks:
            say(remark)
        if world.pp.size > 1:
            layers = ", ".join(str(len(stage.encoder_layers) + len(stage.decoder_layers)) for stage in divided.stages)
            say(f"layers per stage: {layers}")

    def batches(self, first_step: int) -> Iterator[SampleBatch]:
        train = self.settings.train
        return self._order.batches(first_step, train.steps or train.epochs * self._order.steps_per_epoch)

    def learning_rate(self, batch: SampleBatch) -> float:
        return float(self._rate(batch.step) if callable(self._rate) else self._rate)

    def train_step(
        self, batch: SampleBatch, learning_rate: float, votes: Callable[[], tuple[float, ...]]
    ) -> NetworkResult:
        world, count = self.world, self.world.place.layout.micro_batches
        self.optimizer.zero_gradients(backward_passes=count)
        schedule = schedule_of(self.settings.parallel.schedule, world.pp.index, world.pp.size, count)
        losses_M = self._run(schedule, self._samples, batch.samples, step=batch.step)
        if self._compares_losses:
            self._check_equal(losses_M.sum())
        norm = self.optimizer.step(learning_rate, votes)
        # After the step, as in the bundled Transformer's session: collectives need the same order on all ranks.
        loss = float(all_reduce(all_reduce(losses_M.sum(), world.dp, what="mean loss"), world.pp, what="mean loss"))
        return NetworkResult(loss, norm, self.optimizer.votes)

    def _check_equal(self, loss: Tensor) -> None:
        """Raise if the model-parallel ranks compute different losses. This can happen if a network is not traced."""
        self._compares_losses = False
        mean = all_reduce(loss.clone(), self.world.mp, what="mean loss") / self.world.mp.size
        if abs(float(loss - mean)) > 8 * torch.finfo(loss.dtype).eps * max(1.0, abs(float(mean))):
            raise RefusedLayoutError(
                f"mp = {self.world.mp.size}, but the ranks compute different losses: {float(loss):.9g} on this rank, "
                f"and {float(mean):.9g} on average; the code of {self._divided.class_name} iterates over sharded "
                "parameters, or draws random numbers",
                hint="use `--mp 1`, or use weight_decay for weight penalties and nn.Dropout for random numbers",
            )

    def _run(self, schedule: Schedule, samples: Samples, numbers: Sequence[int], *, step: int | None) -> Tensor:
        """Run a pipeline schedule on some samples, and return the contribution of each micro batch to the mean loss.

        On stages before the last the contributions are zeros. Without `step` there is no dropout.
        """
        world, layout = self.world, self.world.place.layout
        with loading:
            inputs = collated(samples, numbers, world.device, self.dtype)
            parts = micro_batches(len(numbers), layout, world.place.coordinate)
        share = 1 / (layout.dp * layout.micro_batches)
        divisors = {
            path: [count * share for count in counts] for path, counts in self._divided.divisors(inputs, step).items()
        }

        def compute(_chunk: int, index: int, received: Tensor | None) -> Tensor:
            rows = parts[index]
            self._divided.begin(torch.arange(rows.start, rows.stop, device=world.device), step, divisors)
            output = self._divided.compute(tuple(each[rows] for each in inputs), received)
            return output * share if self._divided.stage.is_last else output

        def shape_of(index: int) -> tuple[int, int, int]:
            return self._divided.sent_shape(parts[index].stop - parts[index].start)

        losses = Pipeline(world.links, compute, shape_of, device=world.device, dtype=self.dtype).run(schedule)
        if losses:
            return torch.stack(losses)
        return torch.zeros(len(parts), device=world.device, dtype=torch.promote_types(self.dtype, torch.float32))

    @torch.no_grad()
    def validate(self) -> Validated | None:
        """Return the mean loss over the validation data, or None if there is none. All ranks must call it."""
        if self._validation is None:
            return None
        size, total = self.settings.train.batch_size, 0.0
        count = len(self._validation) // size
        schedule = forward_only(self.world.place.layout.micro_batches)
        self._divided.part.eval()
        for number in range(count):
            losses_M = self._run(schedule, self._validation, range(number * size, (number + 1) * size), step=None)
            counts = self._divided.stage.is_last and self.world.mp.index == 0
            total += float(self.world.sum_over_all(losses_M.sum() if counts else torch.zeros_like(losses_M[0])))
            getting_on()
        self._divided.part.train()
        loss = total / count
        return Validated(loss, f"validation loss is {loss:.6f}")

    def settle(self) -> None:
        self._divided.buffers.settle(self.world)

    def take_buffers(self) -> None:
        self._divided.buffers.take()

    def weights(self) -> dict[str, Tensor] | None:
        """Return a state dict for the original network on rank 0, and None on other ranks."""
        found = gather(self.world, self._owned, self._placements)
        return None if found is None else self._divided.state(found)

    def _placements(self, place: Coordinate) -> Mapping[str, Placement]:
        group, plan = Group(ranks=tuple(range(self.world.mp.size)), index=place.mp), self._divided.plan
        return plan.placements(plan.owned(place.pp), group)


def _check_equal(network: nn.Module, digests: Sequence[str], settings: NetworkSettings, world: World) -> None:
    """Raise on all ranks if the network, the settings or the samples differ between ranks."""
    shapes = [(name, tuple(each.shape), each.dtype) for name, each in network.named_parameters()]
    hint = "call `train` with the same arguments on every rank; it gives each rank its share of the batch"
    for what, content in (
        ("the samples", digests[0]),
        ("the validation samples", str(digests[1:])),
        ("the network", f"{settings.model.network}{shapes}"),
        ("what train is called with", repr(settings)),
    ):
        world.check_equal(content.encode(), what, hint=hint)
