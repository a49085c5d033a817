"""Measure steps of several ranks against independent processes and the earlier trainer, and the head's share."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from common.checks import Bound, Checks, median_ratio
from torch import nn

from launcher.recipes.transformer.transformer_settings import TransformerSettings
from launcher.trainer.data.batches import GlobalBatch, collate, own_micro_batches
from launcher.trainer.memory import keep_freed_memory
from launcher.trainer.model.transformer import PAD
from launcher.trainer.parallel.collectives import ALONE, all_reduce
from launcher.trainer.parallel.head_loss import head_loss
from launcher.trainer.parallel.pipeline import Links
from launcher.trainer.parallel.place import place_from_environment, this_place
from launcher.trainer.parallel.styles import part_bounds
from launcher.trainer.parallel.world import Transport, World, open_world
from launcher.trainer.telemetry.step_time import Stopwatch
from training.batches import M30K, TOKENS, Batches, rounds_of, settings_of
from training.before import steps_before
from training.one_process import trainer_step

sys.path.append(str(Path(__file__).parents[2] / "tests" / "programs"))
from ranks import fork_ranks


def in_ranks(
    measure: Callable[[World], Any],
    *,
    dp: int = 1,
    mp: int = 1,
    pp: int = 1,
    micro_batches: int = 1,
    transport: Transport = "auto",
) -> Any:
    """Return what `measure` returns on rank 0 of that layout."""
    with tempfile.NamedTemporaryFile("r") as answer:

        def rank() -> None:
            torch.set_num_threads(1)
            keep_freed_memory()
            with open_world(this_place(micro_batches=micro_batches), torch.device("cpu"), transport) as world:
                found = measure(world)
                if world.is_first:
                    Path(answer.name).write_text(json.dumps(found))

        fork_ranks("benchmark", dp=dp, mp=mp, pp=pp, micro_batches=micro_batches, work=rank)
        return json.load(answer)


def elapsed_s(step: Callable[[GlobalBatch], object], batches: Batches) -> float:
    """Return the time until all ranks have taken these steps."""
    dist.barrier()
    began_s = time.perf_counter()
    for batch in batches:
        step(batch)
    dist.barrier()
    return time.perf_counter() - began_s


# --- data parallelism ---


def data_parallel(options: argparse.Namespace, checks: Checks) -> None:
    """Two data-parallel ranks, against the same two processes when each trains a model of its own on the same pairs."""
    for tokens, least in ((2048, 0.97), (1060, 0.95)):
        settings = settings_of(M30K, f"train.batch_tokens={2 * tokens}")
        rounds = rounds_of(settings, options.data, options.rounds or 9)
        rows = in_ranks(partial(_together_and_apart, settings, rounds), dp=2)
        ratio = median_ratio(rows, "apart", "together")
        checks.tell(f"m30k: speed of dp=2 / two processes apart, {tokens} tokens a rank", ratio, least=least)


def _together_and_apart(
    settings: TransformerSettings, rounds: Sequence[Batches], world: World
) -> list[dict[str, float]]:
    place = place_from_environment({}, micro_batches=1)
    alone = World(place, world.device, dp=ALONE, mp=ALONE, pp=ALONE, links=Links())
    together, apart = trainer_step(settings, world), trainer_step(settings, alone)

    def own_share(batch: GlobalBatch) -> GlobalBatch:
        [own] = own_micro_batches(batch.examples, world.place.layout, world.place.coordinate, world.device)
        return replace(batch, examples=batch.examples.take(own.row_B.numpy()))

    rows = []
    together(rounds[0][0]), apart(own_share(rounds[0][0]))
    for batches in rounds:
        shares = list(map(own_share, batches))
        rows.append({"together": elapsed_s(together, batches), "apart": elapsed_s(apart, shares)})
    return rows


# --- model parallelism ---


def head_and_loss(options: argparse.Namespace, checks: Checks) -> None:
    """Head and loss of two model-parallel ranks, forward and backward, on random and on bucketed batches."""
    if options.before is None:
        return
    bucketed = rounds_of(settings_of(M30K, f"train.batch_tokens={TOKENS}"), options.data, options.rounds or 5)
    at_random = rounds_of(settings_of(M30K, "train.batch_size=64"), options.data, options.rounds or 5)
    for name, rounds in (("bucketed", bucketed), ("64 random pairs", at_random)):
        found = in_ranks(partial(_head_times, settings_of(M30K), rounds), mp=2)
        before = steps_before(options.before, M30K, rounds, mp=2, work="head")
        ratio = statistics.median(before["elapsed"]) / statistics.median(found)
        checks.tell(f"m30k: head and loss at mp=2, before / trainer, {name}", ratio, least=2.0)


def _head_times(settings: TransformerSettings, rounds: Sequence[Batches], world: World) -> list[float]:
    """Return the seconds of each round."""
    sizes = settings.model
    start, stop = part_bounds(sizes.vocabulary_size, world.mp)
    torch.manual_seed(1)
    head = nn.Linear(sizes.d_model, stop - start, bias=False)
    head.out_features = sizes.vocabulary_size  # of the whole head, as the plan leaves it

    def step(batch: GlobalBatch) -> None:
        labels_BT = collate(batch.examples).labels_BT
        hidden_BTD = torch.randn(*labels_BT.shape, sizes.d_model, requires_grad=True)
        counts_BT = labels_BT != PAD
        loss = head_loss(
            hidden_BTD[counts_BT], head, labels_BT[counts_BT], group=world.mp, smoothing=settings.train.label_smoothing
        )
        loss.backward()
        head.weight.grad = None

    step(rounds[0][0])
    return [elapsed_s(step, batches) for batches in rounds]


def shared_memory(options: argparse.Namespace, checks: Checks) -> None:
    """Two model-parallel ranks on a core each, by shared memory and by gloo."""
    settings = settings_of(M30K, f"train.batch_tokens={TOKENS}")
    rounds = rounds_of(settings, options.data, options.rounds or 5)
    for layout in ({"mp": 2}, {"dp": 2}):
        rows = in_ranks(partial(_by_both_transports, settings, rounds), **layout)
        name = " ".join(f"{axis}={size}" for axis, size in layout.items())
        checks.tell(f"m30k: step at {name}, gloo / shared memory", median_ratio(rows, "gloo", "shared memory"))


def _by_both_transports(
    settings: TransformerSettings, rounds: Sequence[Batches], world: World
) -> list[dict[str, float]]:
    gloo = without_shared_memory(world)
    works = {"shared memory": trainer_step(settings, world), "gloo": trainer_step(settings, gloo)}
    for step in works.values():
        step(rounds[0][0])
    return [{name: elapsed_s(step, batches) for name, step in works.items()} for batches in rounds]


def without_shared_memory(world: World) -> World:
    groups = {axis: replace(getattr(world, axis), shared_memory=None) for axis in ("dp", "mp", "pp")}
    return replace(world, **groups)


# --- pipeline parallelism ---


def stages(options: argparse.Namespace, checks: Checks) -> None:
    """Two and four pipeline stages: how much more the busiest works than the mean, and the step's time before."""
    settings = settings_of(M30K, f"train.batch_tokens={TOKENS}")
    rounds = rounds_of(settings, options.data, options.rounds or 5)
    for pp, most in ((2, Bound(1.15, 1.1)), (4, None)):
        found = in_ranks(partial(_busy_times, settings, rounds), pp=pp, micro_batches=4)
        busy = [statistics.median(column) for column in zip(*found["busy"], strict=True)]
        checks.tell(f"m30k: busiest stage / mean at pp={pp}", max(busy) / statistics.mean(busy), most)
        if options.before is not None:
            before = steps_before(options.before, M30K, rounds, pp=pp, micro_batches=4)
            ratio = statistics.median(found["elapsed"]) / statistics.median(before["elapsed"])
            checks.tell(f"m30k: step at pp={pp} / before", ratio, Bound(0.8, 0.8) if pp == 2 else None)


def _busy_times(settings: TransformerSettings, rounds: Sequence[Batches], world: World) -> dict[str, Any]:
    """Return for each round the seconds that each stage worked, and those that all took."""
    step = trainer_step(settings, world)
    step(rounds[0][0])
    found: dict[str, Any] = {"busy": [], "elapsed": []}
    for batches in rounds:
        stopwatch = Stopwatch()
        found["elapsed"].append(elapsed_s(step, batches))
        busy = torch.zeros(world.pp.size)
        busy[world.pp.index] = stopwatch.read().busy_s
        found["busy"].append(all_reduce(busy, world.pp).tolist())
    return found
