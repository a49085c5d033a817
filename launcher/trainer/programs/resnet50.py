"""Training of ResNet-50 on CIFAR-10, with validation by top-1 accuracy."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from launcher.corpus.images import ImageFiles, find_images
from launcher.recipes.resnet50.resnet50_recipe import REPLICATED, Resnet50Settings
from launcher.trainer.data.images import (
    NO_LABEL,
    ImageOrder,
    ImageSet,
    ImageShape,
    Shard,
    TrainingBatch,
    training_batches,
    validation_batches,
)
from launcher.trainer.model.resnet import initial_weight, resnet50
from launcher.trainer.optimizer.update_rules import Momentum
from launcher.trainer.own.cut.groups import Groups
from launcher.trainer.own.cut.operator_graph import Traced, trace
from launcher.trainer.parallel.world import World
from launcher.trainer.programs.loop import run
from launcher.trainer.programs.network_program import NetworkProgram, NetworkResult, plan_groups
from launcher.trainer.programs.program import Validated, line_of, say, shapes_of
from launcher.trainer.programs.replicated import ReplicatedTraining
from launcher.trainer.programs.sharded import ShardedTraining
from launcher.trainer.shard.modules import WithLoss
from launcher.trainer.telemetry.heartbeat import getting_on
from launcher.trainer.training_files import Files

AHEAD = 3  # batches that a thread prefetches
MEAN, COUNT = "running_mean", "num_batches_tracked"  # buffers of each batch norm; the latter counts steps
Item = TypeVar("Item")


def train(settings: Resnet50Settings, world: World, files: Files) -> None:
    """Train ResNet-50 on this rank. All ranks must call it.

    Raises:
        TlaunchError: images or checkpoints are unusable, a strategy does not fit, or a gradient is not finite.
    """
    with ExitStack() as opened:
        groups = None
        if settings.parallel.mode not in REPLICATED:
            groups = opened.enter_context(plan_groups(settings, world))
        run(lambda: Resnet50(settings, world, files, groups), settings.checkpoint, world, files)


class Resnet50(NetworkProgram[TrainingBatch]):
    name = "resnet50"

    def __init__(self, settings: Resnet50Settings, world: World, files: Files, groups: Groups | None) -> None:
        """Open the images and create this rank's part of the model. All ranks must call it.

        `groups` are the sharding plan's process groups, or None in modes that replicate the model.

        Raises:
            TlaunchError: the images are unusable, or a strategy does not fit. All ranks raise it.
        """
        self.settings: Resnet50Settings = settings
        self.world = world
        self.dtype = getattr(torch, settings.train.precision)
        self._images, self._test, self.digest = _opened(world, files)
        self._origin = files.data[0]
        self._shape = ImageShape(settings.data.image_size, self.dtype)
        rule = Momentum(settings.train.momentum)

        def weights(name: str, shape: torch.Size) -> Tensor:
            return initial_weight(name, shape, settings.train.seed).to(self.dtype)

        if groups is None:
            model = resnet50(settings.model.classes)
            self._training = ReplicatedTraining(model, settings, world, rule, weights, self.dtype)
        else:
            traced = traced_network(settings, world.place.layout.dp)
            self._training = ShardedTraining(traced, settings, world, groups, rule, weights)
        self.optimizer = self._training.optimizer
        # A floating-point number, since checkpoints hold no others. All batch norms share this count.
        self._count = torch.zeros((), dtype=self.optimizer.state_dtype)
        norms = [name.removesuffix(MEAN) for name in self._training.buffers if name.endswith(MEAN)]
        self.buffers = {**self._training.buffers, **dict.fromkeys((norm + COUNT for norm in norms), self._count)}
        with torch.device("meta"):
            self.shapes = shapes_of(resnet50(settings.model.classes))
        self._order = ImageOrder(len(self._images), settings.train.batch_size, seed=settings.train.seed)
        self._steps = 0  # steps that have been trained

    def begin(self) -> None:
        self.say_layout(f"micro_batches={self.world.place.layout.micro_batches}")
        if not self.world.is_first:
            return
        say(f"data: {len(self._images)} images, {len(self._test)} to validate with, of {self._origin}")
        if told := self._training.strategies_line():
            say(told)

    def batches(self, first_step: int) -> Iterator[TrainingBatch]:
        self._steps = first_step - 1
        train = self.settings.train
        return ahead(
            training_batches(
                self._images,
                self._order,
                last_step=train.steps or train.epochs * self._order.steps_per_epoch,
                seed=train.seed,
                shard=Shard(self.world.dp.size, self.world.dp.index),
                shape=self._shape,
                first_step=first_step,
            ),
            AHEAD,
        )

    def train_step(
        self, batch: TrainingBatch, learning_rate: float, votes: Callable[[], tuple[float, ...]]
    ) -> NetworkResult:
        images, labels = batch.image_BCHW.to(self.world.device), batch.label_B.to(self.world.device)
        result = self._training.train_step((images, labels), learning_rate, votes, count=batch.count)
        self._steps = batch.step
        return result

    def line(self, batch: TrainingBatch, result: NetworkResult, seconds: float) -> str:
        return f"{line_of(batch, result.loss)}, {batch.count / seconds:.0f} images/s"

    def settle(self) -> None:
        self._training.settle_buffers()
        self._count.fill_(self._steps)

    def take_buffers(self) -> None:
        self._training.take_buffers()

    @torch.no_grad()
    def validate(self) -> Validated:
        """Return the mean loss over the test images, and a log line with the top-1 accuracy. All ranks must call it."""
        self.settle()
        world, sums_2 = self.world, torch.zeros(2, dtype=torch.float64)
        # All ranks take different images, also in modes that shard operators.
        shard = Shard(world.place.world_size, world.place.global_rank)
        batch_size = self.settings.train.batch_size * world.place.world_size
        batches = validation_batches(self._test, batch_size, shard=shard, shape=self._shape)
        with self._training.full_model(partial(resnet50, self.settings.model.classes)) as model:
            for batch in batches:
                logits_BK, label_B = model(batch.image_BCHW.to(world.device)), batch.label_B.to(world.device)
                logits_BK = logits_BK.to(torch.promote_types(logits_BK.dtype, torch.float32))
                loss = functional.cross_entropy(logits_BK, label_B, ignore_index=NO_LABEL, reduction="sum")
                sums_2 += torch.stack([loss.double(), (logits_BK.argmax(dim=1) == label_B).sum().double()]).cpu()
        sums_2 = world.sum_over_all(sums_2.to(world.device))
        loss, accuracy = (sums_2 / len(self._test)).tolist()
        return Validated(loss, f"validation loss is {loss:.6f}, top-1 accuracy is {accuracy:.2%}")

    def weights(self) -> dict[str, Tensor] | None:
        self.settle()
        found = super().weights()
        if found is None:
            return None
        buffers = {name: buffer.cpu() for name, buffer in self.buffers.items()}
        # Return one tensor per name, with the dtypes of torch's batch norms.
        return {**found, **{name: each.long() if name.endswith(COUNT) else each for name, each in buffers.items()}}


def _opened(world: World, files: Files) -> tuple[ImageSet, ImageSet, str]:
    """Return the training images, the test images and a digest. Raise on all ranks if images differ between servers."""
    [data], digest = files.data, hashlib.sha256()
    sets: list[ImageFiles] = []

    def look() -> None:
        sets.append(find_images(data))
        if world.place.local_rank == 0:
            for path in sets[0].paths:
                digest.update(path.read_bytes())
                getting_on()

    world.while_others_wait(look)
    found = sets[0]
    told = world.check_equal(digest.hexdigest().encode() if world.place.local_rank == 0 else None, "the set of images")
    return ImageSet(found.train), ImageSet((found.test,)), told.decode()


def traced_network(settings: Resnet50Settings, copies: int) -> Traced:
    """Trace the network and its loss for the batch of one replica. `copies` is the number of replicas.

    Raises:
        UsageError: the network has an unknown operator.
    """
    images, size = settings.train.batch_size // copies, settings.data.image_size
    dtype = getattr(torch, settings.train.precision)
    with torch.device("meta"):
        network = WithLoss(resnet50(settings.model.classes).to(dtype), torch.nn.CrossEntropyLoss())
        examples = torch.empty(images, 3, size, size, dtype=dtype), torch.empty(images, dtype=torch.int64)
    # Statistics are over a replica's batch for any sharding, so that results do not depend on the strategies.
    return trace(network, examples, batch_norm_is_shared=True)


def ahead(items: Iterable[Item], depth: int) -> Iterator[Item]:
    """Yield `items` in order, while a thread prefetches up to `depth` of them.

    If `items` raises, the error is raised in place of the failed item. The thread starts when the first item is
    requested. It ends after the last item, after an error, or when this iterator is closed, once its current item is
    complete. It can run while the consumer computes in torch, which releases the GIL.
    """
    iterator, end = iter(items), object()
    thread = ThreadPoolExecutor(1, thread_name_prefix="ahead")
    try:
        made = deque(thread.submit(next, iterator, end) for _ in range(depth))
        while (item := made.popleft().result()) is not end:
            yield item  # type: ignore[misc]
            made.append(thread.submit(next, iterator, end))
    finally:
        thread.shutdown(cancel_futures=True)
