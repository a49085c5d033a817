"""Claim: the idle share of equal pipeline stages is as given by the formula of each schedule.

    python benchmarks/bubble.py [--only NAME] [--rounds N]

Two, four and eight processes run the trainer's pipeline engine, with messages over gloo. A stage sleeps instead of
computing: one unit of time forward, two backward. Eight stages are thus independent even on one core. Chunks of
layers sleep for their part of that time. Busy time is measured as in every training, without waiting for messages
(`launcher/trainer/telemetry/step_time.py`). The idle share is the rest of all stages' time. The fastest round counts,
because other load on the machine adds waiting. The table also has the largest number of micro batches whose
activations the first stage holds, and the formula for it.
Exits with 1 if an idle share differs from its formula by more than 0.03, or a count differs at all.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from common.checks import Bound, Checks
from common.options import parser
from torch import Tensor
from training.layouts import in_ranks

from launcher.mesh.schedules import GPIPE, INTERLEAVED, KINDS, ONE_FORWARD_ONE_BACKWARD, schedule_of
from launcher.trainer.parallel.collectives import all_reduce
from launcher.trainer.parallel.pipeline import Pipeline
from launcher.trainer.parallel.world import World, linked_around
from launcher.trainer.telemetry.step_time import Stopwatch

FORWARD_S, BACKWARD_S = 0.1, 0.2  # of all layers of a stage; much longer than it takes to wake a process
STAGES, ROUNDS, CHUNKS = (2, 4, 8), 3, 2
MICRO_BATCHES_PER_STAGE = 2
MESSAGE = (256,)  # elements


class Sleep(torch.autograd.Function):
    """Takes a time forward and a time backward, and changes nothing."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, stage: Stage) -> Tensor:
        ctx.stage = stage
        stage.works(FORWARD_S, +1)
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        ctx.stage.works(BACKWARD_S, -1)
        return upstream[0], None


class Stage:
    """One stage of equal ones: all of its chunks together take FORWARD_S and BACKWARD_S for a micro batch."""

    def __init__(self, world: World, chunks: int) -> None:
        self._pp, self._chunks = world.pp, chunks
        self._kept = self.most_kept = 0  # chunks' activations

    def works(self, seconds: float, kept: int) -> None:
        time.sleep(seconds / self._chunks)
        self._kept += kept
        self.most_kept = max(self.most_kept, self._kept)

    def compute(self, chunk: int, _micro_batch: int, received: Tensor | None) -> Tensor:
        output = Sleep.apply(torch.ones(MESSAGE, requires_grad=True) if received is None else received, self)
        is_last = self._pp.index == self._pp.size - 1 and chunk == self._chunks - 1
        return output.sum() if is_last else output


def measured(kind: str, chunks: int, rounds: int, world: World) -> tuple[float, float]:
    """Return the idle share of the fastest round, and how many micro batches' activations the first stage has kept at most."""
    pp, micro_batches = world.pp, world.place.layout.micro_batches
    stage = Stage(world, chunks)
    links = linked_around(world, chunks)
    pipeline = Pipeline(links, stage.compute, lambda _: MESSAGE, device=world.device, dtype=torch.float32)
    schedule = schedule_of(kind, pp.index, pp.size, micro_batches, chunks=chunks)
    found: list[tuple[float, float]] = []
    for _ in range(rounds + 1):  # the first one starts autograd's threads
        dist.barrier()
        stopwatch = Stopwatch()
        pipeline.run(schedule)
        busy_s = stopwatch.read().busy_s
        dist.barrier()  # a step ends when the last stage has ended
        sums = torch.tensor([busy_s, stopwatch.read().seconds])
        busy_sum, step_sum = all_reduce(sums, pp).tolist()
        found.append((step_sum, 1 - busy_sum / step_sum))
    _, idle = min(found[1:])
    return idle, stage.most_kept / chunks


def formula(kind: str, stages: int, micro_batches: int, chunks: int) -> tuple[float, float]:
    """Return the idle share, and the activations that the first stage keeps (`launcher/mesh/schedules.py`)."""
    kept = {
        ONE_FORWARD_ONE_BACKWARD: min(micro_batches, stages),
        GPIPE: micro_batches,
        INTERLEAVED: min(chunks * micro_batches, 2 * (stages - 1) + (chunks - 1) * stages + 1) / chunks,
    }
    return (stages - 1) / (chunks * micro_batches + stages - 1), kept[kind]


def schedule_of_kind(kind: str, stages: int, rounds: int, checks: Checks) -> None:
    """Print the idle share and the activations kept of one schedule on so many stages, beside the formulas."""
    chunks, micro_batches = CHUNKS if kind == INTERLEAVED else 1, MICRO_BATCHES_PER_STAGE * stages
    work = partial(measured, kind, chunks, rounds)
    idle, kept = in_ranks(work, pp=stages, micro_batches=micro_batches, transport="backend")
    expected, expected_kept = formula(kind, stages, micro_batches, chunks)
    name = f"{kind}, {stages} stages, {micro_batches} micro batches"
    checks.tell(f"{name}: idle, formula {expected:.3f}, measured", idle)
    checks.tell(f"{name}: difference of these", abs(idle - expected), Bound(0.03, 0.01))
    checks.tell(f"{name}: micro batches kept, formula {expected_kept:g}, counted", kept)
    checks.tell(f"{name}: difference of these", abs(kept - expected_kept), Bound(0.0, 0.0))


def main() -> int:
    options = parser(__doc__, KINDS).parse_args()
    torch.set_num_threads(1)
    checks = Checks()
    for kind in options.only or KINDS:
        for stages in STAGES:
            schedule_of_kind(kind, stages, options.rounds or ROUNDS, checks)
    return 1 if checks.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
