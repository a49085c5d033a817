"""Claim: `--recipe resnet50` trains as many images per second as a plain torch loop, and never waits for its images.

    python benchmarks/resnet.py [--only NAME] [--rounds N]

The loop trains the same model with torch.optim.SGD; on several ranks it uses DistributedDataParallel over gloo, as in
torch's tutorials. A second loop uses channels_last. Both loops find prepared images in memory, while the recipe
reads, crops, flips, resizes and normalises the same images in a thread. Runs have one and two ranks with one thread
each, local batch norms, float32, and images of 32 and 224 pixels. In each round all programs take steps in turn; a
ratio is the median of the rounds'.
Exits with 1 if a ratio misses its limit.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from common.checks import Bound, Checks, median_ratio
from common.options import parser
from torch import nn
from torch.nn import functional
from training.layouts import in_ranks

from launcher.corpus.image_sample import write_image_sample
from launcher.corpus.images import find_images
from launcher.recipes.load import load_settings
from launcher.recipes.resnet50.resnet50_recipe import Resnet50Settings
from launcher.trainer.data.images import ImageOrder, ImageSet, ImageShape, Shard, TrainingBatch, training_batches
from launcher.trainer.model.resnet import resnet50, set_initial_weights
from launcher.trainer.parallel.world import World
from launcher.trainer.programs.resnet50 import Resnet50
from launcher.trainer.telemetry.step_time import loading
from launcher.trainer.training_files import Files

SIZES = {"32": (32, 32, 4), "224": (224, 8, 1)}  # pixels on a side, images a rank, steps of a round
ROUNDS = 9
PLAIN, CHANNELS_LAST, RECIPE = "plain loop", "channels_last loop", "recipe"
MOST_WAITING = 0.02  # of a step, for images
Step = Callable[[], None]


def settings_of(size: int, batch_size: int) -> Resnet50Settings:
    # More epochs than are measured.
    given = (
        f"data.image_size={size}",
        f"train.batch_size={batch_size}",
        "train.epochs=1000",
        "train.learning_rate=0.001",
    )
    return load_settings(Resnet50Settings, None, given)


def loop_of(
    settings: Resnet50Settings, batches: list[TrainingBatch], world: World, memory_format: torch.memory_format
) -> Step:
    """Return the step of the plain loop, over these batches again and again."""
    model = resnet50(settings.model.classes)
    set_initial_weights(model, settings.train.seed)
    model = model.to(memory_format=memory_format)
    if world.place.world_size > 1:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.train.learning_rate, momentum=settings.train.momentum)
    endless = itertools.cycle(batches)

    def step() -> None:
        batch = next(endless)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(batch.image_BCHW.contiguous(memory_format=memory_format)), batch.label_B)
        loss.backward()
        optimizer.step()
        loss.item()  # as for a line of a log

    return step


def recipe_of(settings: Resnet50Settings, data: Path, world: World) -> Step:
    """Return the recipe's own step, with its loader."""
    program = Resnet50(settings, world, Files(data=(data,)), None)
    batches = loading.over(program.batches(1))
    return lambda: program.train_step(next(batches), settings.train.learning_rate, tuple) and None


def batches_of(settings: Resnet50Settings, data: Path, world: World, steps: int) -> list[TrainingBatch]:
    """Return this rank's batches of the first steps."""
    images = ImageSet(find_images(data).train)
    order = ImageOrder(len(images), settings.train.batch_size, seed=settings.train.seed)
    shard = Shard(world.dp.size, world.dp.index)
    shape = ImageShape(settings.data.image_size)
    return list(training_batches(images, order, last_step=steps, seed=settings.train.seed, shard=shard, shape=shape))


def measured(name: str, rounds: int, data: Path, world: World) -> list[dict[str, float]]:
    """Return of each round the seconds of a step of each, elapsed and of the processor, and what the recipe's loader took of it."""
    size, images, count = SIZES[name]
    settings = settings_of(size, images * world.place.world_size)
    batches = batches_of(settings, data, world, 4)
    steps = {
        PLAIN: loop_of(settings, batches, world, torch.contiguous_format),
        CHANNELS_LAST: loop_of(settings, batches, world, torch.channels_last),
        RECIPE: recipe_of(settings, data, world),
    }
    rows = [timed(steps, count, world) for _ in range(rounds + 1)][1:]
    began_s = time.process_time()
    batches_of(settings, data, world, 8)
    loader_s = (time.process_time() - began_s) / 8
    return [{**row, "loader processor": loader_s} for row in rows]


def timed(steps: Mapping[str, Step], count: int, world: World) -> dict[str, float]:
    row = {}
    for name, step in steps.items():
        meet(world)
        waited_s, began_s, used_s = loading.seconds, time.perf_counter(), time.process_time()
        for _ in range(count):
            step()
        row[f"{name} processor"] = (time.process_time() - used_s) / count
        row[f"{name} waiting"] = (loading.seconds - waited_s) / count
        meet(world)
        row[name] = (time.perf_counter() - began_s) / count
    return row


def meet(world: World) -> None:
    if world.place.world_size > 1:
        dist.barrier()


def told(name: str, ranks: int, rows: list[dict[str, float]], checks: Checks) -> None:
    images = SIZES[name][1] * ranks
    speeds = ", ".join(
        f"{each} {images / statistics.median(row[each] for row in rows):.1f}" for each in (PLAIN, CHANNELS_LAST, RECIPE)
    )
    print(f"  images/s: {speeds}", flush=True)
    # Images a second are the inverse of the seconds of a step.
    checks.tell(f"speed of the recipe / {PLAIN}", median_ratio(rows, PLAIN, RECIPE), least=1.0)
    checks.tell(f"speed of the recipe / {CHANNELS_LAST}", median_ratio(rows, CHANNELS_LAST, RECIPE))
    for peer in (PLAIN, CHANNELS_LAST):
        ratio = median_ratio(rows, f"{RECIPE} processor", f"{peer} processor")
        checks.tell(f"processor time of the recipe / {peer}", ratio)
    waiting = median_ratio(rows, f"{RECIPE} waiting", RECIPE)
    checks.tell("share of a step that waits for images", waiting, Bound(MOST_WAITING, 0.0))
    checks.tell(
        "share of a step's processor time that makes them",
        median_ratio(rows, "loader processor", f"{RECIPE} processor"),
    )


def main() -> int:
    options = parser(__doc__, tuple(SIZES)).parse_args()
    checks = Checks()
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory)
        write_image_sample(data)
        for name in options.only or SIZES:
            for ranks in (1, 2):
                print(f"{name} pixels, {SIZES[name][1]} images a rank, {ranks} ranks", flush=True)
                rows = in_ranks(partial(measured, name, options.rounds or ROUNDS, data), dp=ranks)
                told(name, ranks, rows, checks)
    return 1 if checks.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
