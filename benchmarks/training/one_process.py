"""Measure time and memory of a step in one process, against the peers on the same batches."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path

import torch
from common.checks import Bound, Checks, median_ratio

from launcher.recipes.transformer.transformer_settings import TransformerSettings
from launcher.trainer.data.batches import GlobalBatch, collate
from launcher.trainer.memory import keep_freed_memory
from launcher.trainer.parallel.collectives import ALONE
from launcher.trainer.parallel.pipeline import Links
from launcher.trainer.parallel.place import place_from_environment
from launcher.trainer.parallel.world import World
from launcher.trainer.session import Session
from training.batches import M30K, RATE, TOKENS, Batches, pairs_of_a_step, rounds_of, settings_of, token_sum
from training.before import steps_before
from training.peers import Step, marian_step, torch_step

TRAINER, TORCH, MARIAN = "trainer", "nn.Transformer", "MarianMTModel"


def trainer_step(settings: TransformerSettings, world: World) -> Callable[[GlobalBatch], object]:
    session = Session(settings, world)
    return lambda batch: session.train_step(batch.examples, RATE, step=batch.step)


def peer_step(
    make: Callable[[TransformerSettings], Step], settings: TransformerSettings
) -> Callable[[GlobalBatch], object]:
    step = make(settings)
    return lambda batch: step(collate(batch.examples))


def same_batches(name: str, sizes: Sequence[str], least: float, options: argparse.Namespace, checks: Checks) -> None:
    settings = settings_of(sizes, f"train.batch_tokens={TOKENS}")
    rounds = rounds_of(settings, options.data, options.rounds or 5)
    rows = _in_turn(settings, rounds, rounds)
    for peer in (TORCH, MARIAN):
        checks.tell(f"{name}: CPU time of a step, {peer} / trainer", median_ratio(rows, peer, TRAINER), least=least)


def random_batches(options: argparse.Namespace, checks: Checks) -> None:
    """The peers choose their pairs at random, as most loops do, so many that a step has about as many target tokens."""
    settings = settings_of(M30K, f"train.batch_tokens={TOKENS}")
    ours = rounds_of(settings, options.data, options.rounds or 3)
    theirs = rounds_of(settings_of(M30K, f"train.batch_size={pairs_of_a_step(ours)}"), options.data, len(ours))
    rows = _in_turn(settings, ours, theirs)
    for peer in (TORCH, MARIAN):
        ratio = median_ratio(rows, peer, TRAINER) * sum(map(token_sum, ours)) / sum(map(token_sum, theirs))
        checks.tell(f"m30k: CPU time of a token, {peer} on random batches / trainer", ratio, least=3.5)


def _in_turn(
    settings: TransformerSettings, ours: Sequence[Batches], theirs: Sequence[Batches]
) -> list[dict[str, float]]:
    """Return the CPU time of each program in each round. One step of each on two pairs is not counted."""
    with ExitStack() as stack:
        processes = {
            name: stack.enter_context(ProcessPoolExecutor(1, get_context("spawn"), _start, (name, settings)))
            for name in (TRAINER, TORCH, MARIAN)
        }
        for process in processes.values():
            process.submit(_cpu_s, [GlobalBatch(1, 1, 1, 1, ours[0][0].examples[:2])]).result()
        return [
            {
                name: process.submit(_cpu_s, own if name == TRAINER else others).result()
                for name, process in processes.items()
            }
            for own, others in zip(ours, theirs, strict=True)
        ]


_step: Callable[[GlobalBatch], object]  # of the program of this process


def _start(name: str, settings: TransformerSettings) -> None:
    """Begin to be the process of one program, as its users would start it: what one does to its memory is not the others'."""
    global _step  # noqa: PLW0603 - what a process of a pool keeps between two calls
    torch.set_num_threads(1)
    if name == TRAINER:
        keep_freed_memory()
        place = place_from_environment({}, micro_batches=1)
        alone = World(place, torch.device("cpu"), dp=ALONE, mp=ALONE, pp=ALONE, links=Links())
        _step = trainer_step(settings, alone)
    else:
        _step = peer_step({TORCH: torch_step, MARIAN: marian_step}[name], settings)


def _cpu_s(batches: Batches) -> float:
    began_s = time.process_time()
    for batch in batches:
        _step(batch)
    return time.process_time() - began_s


def memory(options: argparse.Namespace, checks: Checks) -> None:
    """The most memory that each program takes beyond its model, in a new process each: a used one has free memory."""
    settings = settings_of(M30K, f"train.batch_tokens={TOKENS}")
    [batches] = rounds_of(settings, options.data, 1)
    took: dict[str, float] = {}
    for name in (TRAINER, TORCH, MARIAN):
        with ProcessPoolExecutor(1, get_context("spawn"), _start, (name, settings)) as process:
            took[name] = process.submit(_peak_bytes, batches).result()
    for name, peak in took.items():
        checks.tell(f"m30k: MiB above the model, {name}", peak / 2**20)
    if options.before is not None:
        before = steps_before(options.before, M30K, [batches])["peak_bytes"]
        checks.tell("m30k: peak memory above the model, trainer / before", took[TRAINER] / before, Bound(0.55, 0.5))


def _peak_bytes(batches: Batches) -> float:
    """Return the most bytes that some steps take above what the model and its optimizer take."""
    _step(GlobalBatch(1, 1, 1, 1, batches[0].examples[:2]))  # moments exist after it
    held = _status_bytes("VmRSS")
    _cpu_s(batches)
    return _status_bytes("VmHWM") - held


def _status_bytes(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{name}:")[2].split()[0]) * 1024
