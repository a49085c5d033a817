"""One training step at dp=2 mp=2 pp=2: the trainer's own parts against torch's, in turn, in the same eight processes.

Torch's side is DTensor tensor parallelism, FSDP2, Schedule1F1B and AdamW over the same model, batch and micro batches.
Prints the ratio of medians, and of each pair of neighbouring rounds its least and greatest.
"""

from __future__ import annotations

import dataclasses
import random
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn import functional

from launcher.recipes.load import load_settings
from launcher.recipes.transformer.config import TransformerSettings
from launcher.trainer.data.batches import own_micro_batches
from launcher.trainer.data.tokens import Example
from launcher.trainer.model.transformer import END, PAD
from launcher.trainer.parallel.collectives import ALONE
from launcher.trainer.parallel.world import open_world, this_place
from launcher.trainer.plan import apply_plan
from launcher.trainer.session import Session, meta_model

sys.path.append(str(Path(__file__).parents[1] / "tests" / "programs"))
from ranks import fork_ranks
from torch_parts import TorchStage, tensor_parallel_styles

ROUNDS, STEPS_PER_ROUND, MICRO_BATCHES, LENGTH = 7, 3, 4, 24
SETTINGS = load_settings(
    TransformerSettings,
    None,
    ["model.dropout=0", "model.d_model=256", "model.feed_forward_dim=1024", "train.device=cpu"],
)


def examples() -> list[Example]:
    """Sentences of one length: torch's pipeline cannot take others."""
    numbers = random.Random(0)
    words = range(4, SETTINGS.model.vocabulary_size)
    return [
        Example([*numbers.choices(words, k=LENGTH), END], [*numbers.choices(words, k=LENGTH), END])
        for _ in range(SETTINGS.train.batch_size)
    ]


def torch_step(session: Session, pairs: list[Example]) -> Callable[[], None]:
    """A function that takes one step with torch's parts."""
    world, train = session.world, SETTINGS.train
    model = meta_model(SETTINGS)
    apply_plan(model, session.stage, ALONE, seed=1, device=world.device, dtype=torch.float32)
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "dp", "mp"))
    parallelize_module(model, mesh["mp"], tensor_parallel_styles(model))
    # What the pipeline calls must itself be sharded, or FSDP2 sums gradients after every micro batch instead of the last.
    part = TorchStage(model)
    fully_shard(part, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    layout = dataclasses.replace(world.place.layout, micro_batches=1)  # torch's schedule cuts the batch itself
    [batch] = own_micro_batches(pairs, layout, world.place.coordinate, world.device)
    ids = {"source_ids": batch.source_BS, "target_ids": batch.target_BT}

    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=PAD, label_smoothing=train.label_smoothing
        )

    stage = PipelineStage(part, world.pp.index, world.pp.size, world.device, group=mesh["pp"].get_group())
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=loss)

    def step() -> None:
        optimizer.zero_grad()
        if session.stage.is_first:
            schedule.step(batch.source_BS, **ids)
        else:
            schedule.step(target=batch.labels_BT, losses=[], **ids)
        optimizer.step()

    return step


def timed(step: Callable[[], object], rounds: int) -> float:
    dist.barrier()
    started_s = time.perf_counter()
    for _ in range(rounds):
        step()
    dist.barrier()
    return (time.perf_counter() - started_s) / rounds


def measure() -> None:
    pairs = examples()
    torch.set_num_threads(1)
    with open_world(this_place(micro_batches=MICRO_BATCHES), torch.device("cpu")) as world:
        session = Session(SETTINGS, world)
        ours, theirs = partial(session.train_step, pairs, 1e-4, step=1), torch_step(session, pairs)
        timed(ours, 2), timed(theirs, 2)
        seconds = [(timed(ours, STEPS_PER_ROUND), timed(theirs, STEPS_PER_ROUND)) for _ in range(ROUNDS)]
        if world.place.global_rank == 0:
            our_s, their_s = (statistics.median(column) for column in zip(*seconds, strict=True))
            ratios = [theirs_s / ours_s for ours_s, theirs_s in seconds]
            print(
                f"step at dp=2 mp=2 pp=2, 8 processes: torch's parts take {their_s / our_s:.2f} times as long as the "
                f"trainer's (pairs {min(ratios):.2f} to {max(ratios):.2f}; {their_s * 1e3:.0f} ms to {our_s * 1e3:.0f} ms)"
            )


if __name__ == "__main__":
    fork_ranks("benchmark", dp=2, mp=2, pp=2, micro_batches=MICRO_BATCHES, work=measure)
