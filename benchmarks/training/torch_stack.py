"""Compare a step at dp=2 mp=2 pp=2 in the trainer and in torch, in the same eight processes.

Torch's side is DTensor tensor parallelism, FSDP2, Schedule1F1B and AdamW, with the same model, batch and micro
batches. It does not clip gradients, which is less work.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from common.checks import Checks, median_ratio
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn import functional

from launcher.trainer.data.batches import own_micro_batches
from launcher.trainer.data.tokens import Example
from launcher.trainer.model.transformer import END, PAD
from launcher.trainer.parallel.collectives import ALONE
from launcher.trainer.parallel.world import World
from launcher.trainer.plan import apply_plan
from launcher.trainer.session import Session, meta_model
from training.batches import RATE, settings_of
from training.layouts import in_ranks, without_shared_memory

sys.path.append(str(Path(__file__).parents[2] / "tests" / "programs"))
from torch_parts import TorchStage, tensor_parallel_styles

STEPS_PER_ROUND, MICRO_BATCHES, LENGTH = 3, 4, 24
SETTINGS = settings_of(["model.dropout=0", "model.d_model=256", "model.feed_forward_dim=1024"])
TRAINER, GLOO, TORCH = "trainer", "trainer by gloo", "torch"


def torch_stack(options: argparse.Namespace, checks: Checks) -> None:
    rows = in_ranks(partial(_in_turn, options.rounds or 7), dp=2, mp=2, pp=2, micro_batches=MICRO_BATCHES)
    name = "step at dp=2 mp=2 pp=2, 8 processes"
    checks.tell(f"{name}, torch's parts / trainer", median_ratio(rows, TORCH, TRAINER), least=3.2)
    checks.tell(f"{name}, torch's parts / trainer by gloo", median_ratio(rows, TORCH, GLOO))
    rows = in_ranks(partial(_by_both, options.rounds or 7), mp=2, micro_batches=MICRO_BATCHES)
    checks.tell(
        "step of this model at mp=2, 2 processes, gloo / shared memory", median_ratio(rows, GLOO, TRAINER), least=1.5
    )


def _in_turn(rounds: int, world: World) -> list[dict[str, float]]:
    """Return the seconds of a step of each side in each round."""
    pairs = _examples()
    return _rounds(rounds, {**_own_steps(world, pairs), TORCH: _torch_step(Session(SETTINGS, world), pairs)})


def _by_both(rounds: int, world: World) -> list[dict[str, float]]:
    """Return the seconds of a step by each transport in each round, where every rank may have a core for itself."""
    return _rounds(rounds, _own_steps(world, _examples()))


def _rounds(rounds: int, steps: dict[str, Callable[[], object]]) -> list[dict[str, float]]:
    for step in steps.values():
        _timed(step, 2)
    return [{name: _timed(step, STEPS_PER_ROUND) for name, step in steps.items()} for _ in range(rounds)]


def _own_steps(world: World, pairs: list[Example]) -> dict[str, Callable[[], object]]:
    return {name: _own_step(view, pairs) for name, view in ((TRAINER, world), (GLOO, without_shared_memory(world)))}


def _own_step(world: World, pairs: list[Example]) -> Callable[[], object]:
    session = Session(SETTINGS, world)
    session.expect([pairs, pairs])
    return partial(session.train_step, pairs, RATE, step=1)


def _examples() -> list[Example]:
    """Sentences of one length: torch's pipeline cannot take others."""
    numbers = random.Random(0)
    words = range(4, SETTINGS.model.vocabulary_size)
    return [
        Example([*numbers.choices(words, k=LENGTH), END], [*numbers.choices(words, k=LENGTH), END])
        for _ in range(SETTINGS.train.batch_size)
    ]


def _torch_step(session: Session, pairs: list[Example]) -> Callable[[], None]:
    """Return a function that takes one step with torch's parts."""
    world, train = session.world, SETTINGS.train
    model = meta_model(SETTINGS)
    apply_plan(model, session.own_stages, ALONE, seed=1, device=world.device, dtype=torch.float32)
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "dp", "mp"))
    parallelize_module(model, mesh["mp"], tensor_parallel_styles(model))
    # What the pipeline calls must itself be sharded, or FSDP2 sums gradients after every micro batch instead of the last.
    part = TorchStage(model)
    fully_shard(part, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, foreach=False)
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
        if session.own_stages[0].is_first:
            schedule.step(batch.source_BS, **ids)
        else:
            schedule.step(target=batch.labels_BT, losses=[], **ids)
        optimizer.step()

    return step


def _timed(step: Callable[[], object], count: int) -> float:
    dist.barrier()
    began_s = time.perf_counter()
    for _ in range(count):
        step()
    dist.barrier()
    return (time.perf_counter() - began_s) / count
