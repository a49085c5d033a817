"""The bundled trainer against others that train the same model: a step of one process, its memory, and several ranks.

    python benchmarks/train.py [--data PATH] [--only NAME] [--rounds N] [--before CHECKOUT]

The peers are a loop over torch.nn.Transformer with torch.optim.AdamW and Hugging Face's MarianMTModel (the extra
`bench`), of the same size, dropout and precision, one thread per rank, with torch's default allocator. In each round
every program takes the same batches in turn; a ratio is the median of the rounds'. Ratios of one process are of CPU
time, since other work on the machine does not count there; those of several ranks are of elapsed time.

Without --data the packaged sample is trained on. The sizes are those of the small Transformer for Multi30K ("m30k") and
of the MindSpore tutorial. --before is a checkout of commit 947f4a1, whose trainer is measured beside this one's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from common.checks import Bound, Checks, median_ratio
from common.options import parser
from common.peers import Step, marian_step, torch_step

from launcher.recipes.load import load_settings
from launcher.recipes.transformer.config import TransformerSettings
from launcher.trainer.data.batches import GlobalBatch, collate, global_batches, token_count
from launcher.trainer.data.corpus import open_corpus
from launcher.trainer.parallel.collectives import ALONE, all_reduce
from launcher.trainer.parallel.pipeline import Links
from launcher.trainer.parallel.waiting import Stopwatch
from launcher.trainer.parallel.world import World, open_world, place_from_environment, this_place
from launcher.trainer.session import Session

sys.path.append(str(Path(__file__).parents[1] / "tests" / "programs"))
from ranks import fork_ranks

LENGTHS = ["data.source_length=64", "data.target_length=64", "data.direction=en_fr"]
M30K = [
    "model.vocabulary_size=10000", "model.d_model=128", "model.heads=4", "model.feed_forward_dim=256",
    "model.encoder_layers=4", "model.decoder_layers=4", "model.dropout=0.1", *LENGTHS,
]  # fmt: skip
TUTORIAL = [
    "model.vocabulary_size=20000", "model.d_model=128", "model.heads=8", "model.feed_forward_dim=128",
    "model.encoder_layers=1", "model.decoder_layers=1", "model.dropout=0.1", *LENGTHS,
]  # fmt: skip
TRAINER, TORCH, MARIAN = "trainer", "nn.Transformer", "MarianMTModel"
RATE = 1e-4
TOKENS = 4096  # target tokens of a step
Batches = Sequence[GlobalBatch]
STEPS = 6  # batches that every program takes in each round
BEFORE = Path(__file__).parent / "programs" / "earlier_trainer.py"


def settings_of(sizes: Sequence[str], *more: str) -> TransformerSettings:
    return load_settings(TransformerSettings, None, [*sizes, "train.device=cpu", *more])


def batches_of(settings: TransformerSettings, data: Path | None, count: int = STEPS) -> list[GlobalBatch]:
    """Return the first batches of an epoch, which are in no order of length."""
    with open_world(place_from_environment({}, micro_batches=1), torch.device("cpu")) as alone:
        corpus = open_corpus(settings, alone, data)
    return list(islice(global_batches(corpus.train, settings.train), count))


def token_sum(batches: Batches) -> int:
    return sum(token_count(batch.examples) for batch in batches)


# --- one process ---


def trainer_step(settings: TransformerSettings, world: World) -> Callable[[GlobalBatch], object]:
    session = Session(settings, world)
    return lambda batch: session.train_step(batch.examples, RATE, step=batch.step)


def peer_step(
    make: Callable[[TransformerSettings], Step], settings: TransformerSettings
) -> Callable[[GlobalBatch], object]:
    step = make(settings)
    return lambda batch: step(collate(batch.examples))


def cpu_seconds(step: Callable[[GlobalBatch], object], batches: Batches) -> float:
    began_s = time.process_time()
    for batch in batches:
        step(batch)
    return time.process_time() - began_s


def in_turn(settings: TransformerSettings, ours: Batches, theirs: Batches, rounds: int) -> list[dict[str, float]]:
    """Return the CPU time of each program in each round. The first step of each is not counted."""
    with open_world(place_from_environment({}, micro_batches=1), torch.device("cpu")) as alone:
        steps = {
            TRAINER: (trainer_step(settings, alone), ours),
            TORCH: (peer_step(torch_step, settings), theirs),
            MARIAN: (peer_step(marian_step, settings), theirs),
        }
        for step, batches in steps.values():
            step(batches[0])
        return [{name: cpu_seconds(*work) for name, work in steps.items()} for _ in range(rounds)]


def same_batches(name: str, sizes: Sequence[str], least: float, options: argparse.Namespace, checks: Checks) -> None:
    settings = settings_of(sizes, f"train.batch_tokens={TOKENS}")
    batches = batches_of(settings, options.data)
    rows = in_turn(settings, batches, batches, options.rounds or 5)
    for peer in (TORCH, MARIAN):
        checks.tell(f"{name}: CPU time of a step, {peer} / trainer", median_ratio(rows, peer, TRAINER), least=least)


def random_batches(options: argparse.Namespace, checks: Checks) -> None:
    """The peers choose their pairs at random, as most loops do, so many that a step has about as many target tokens."""
    settings = settings_of(M30K, f"train.batch_tokens={TOKENS}")
    ours = batches_of(settings, options.data)
    pairs = round(statistics.mean(len(batch.examples) for batch in ours))
    theirs = batches_of(settings_of(M30K, f"train.batch_size={pairs}"), options.data)
    rows = in_turn(settings, ours, theirs, options.rounds or 3)
    for peer in (TORCH, MARIAN):
        ratio = median_ratio(rows, peer, TRAINER) * token_sum(ours) / token_sum(theirs)
        checks.tell(f"m30k: CPU time of a token, {peer} on random batches / trainer", ratio, least=3.5)


def memory(options: argparse.Namespace, checks: Checks) -> None:
    """The most memory that each program takes beyond its model, in a process of its own."""
    settings = settings_of(M30K, f"train.batch_tokens={TOKENS}")
    batches = batches_of(settings, options.data, 3)
    took = {name: in_child(partial(peak_bytes, name, settings, batches)) for name in (TRAINER, TORCH, MARIAN)}
    for name, peak in took.items():
        checks.tell(f"m30k: MiB above the model, {name}", peak / 2**20)
    if options.before is not None:
        before = earlier(options.before, M30K, batches)["peak_bytes"]
        checks.tell("m30k: peak memory above the model, trainer / before", took[TRAINER] / before, Bound(0.55, 0.5))


def peak_bytes(name: str, settings: TransformerSettings, batches: Batches) -> float:
    """Return the most bytes that some steps take above what the model and its optimizer take."""
    with open_world(place_from_environment({}, micro_batches=1), torch.device("cpu")) as alone:
        make = {TORCH: partial(peer_step, torch_step), MARIAN: partial(peer_step, marian_step)}
        step = trainer_step(settings, alone) if name == TRAINER else make[name](settings)
        step_of_two = batches[0].examples[:2]
        step(GlobalBatch(1, 1, 1, 1, step_of_two))  # moments exist after it
        held = resident_bytes()
        for batch in batches:
            step(batch)
        return peak_resident_bytes() - held


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_resident_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


# --- several ranks ---


def in_child(work: Callable[[], Any]) -> Any:
    """Return what `work` returns in a child process, in which it may start threads and ranks."""
    with tempfile.NamedTemporaryFile("r") as answer:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                torch.set_num_threads(1)
                Path(answer.name).write_text(json.dumps(work()))
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        if status:
            raise SystemExit(f"a measurement ended with {os.waitstatus_to_exitcode(status)}")
        return json.load(answer)


def in_ranks(measure: Callable[[World], Any], *, dp: int = 1, mp: int = 1, pp: int = 1, micro_batches: int = 1) -> Any:
    """Return what `measure` returns on rank 0 of that layout."""
    with tempfile.NamedTemporaryFile("r") as answer:

        def rank() -> None:
            torch.set_num_threads(1)
            with open_world(this_place(micro_batches=micro_batches), torch.device("cpu"), "auto") as world:
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


def beside_each_other(options: argparse.Namespace, checks: Checks) -> None:
    """Two data-parallel ranks, against the same two processes when each trains a model of its own."""
    for tokens, least in ((2048, 0.97), (1060, 0.95)):
        settings = settings_of(M30K, f"train.batch_tokens={2 * tokens}")
        together = batches_of(settings, options.data)
        apart = batches_of(settings_of(M30K, f"train.batch_tokens={tokens}"), options.data)
        rows = in_ranks(partial(together_and_apart, settings, together, apart, options.rounds or 9), dp=2)
        scale = token_sum(together) / (2 * token_sum(apart))  # of what a rank has to do
        ratio = scale * median_ratio(rows, "apart", "together")
        checks.tell(f"m30k: speed of dp=2 / two processes apart, {tokens} tokens a rank", ratio, least=least)


def together_and_apart(
    settings: TransformerSettings, together: Batches, apart: Batches, rounds: int, world: World
) -> list[dict[str, float]]:
    place = place_from_environment({}, micro_batches=1)
    alone = World(place, world.device, dp=ALONE, mp=ALONE, pp=ALONE, links=Links())
    works = {"together": (trainer_step(settings, world), together), "apart": (trainer_step(settings, alone), apart)}
    for step, batches in works.values():
        step(batches[0])
    return [{name: elapsed_s(*work) for name, work in works.items()} for _ in range(rounds)]


def stages(options: argparse.Namespace, checks: Checks) -> None:
    """Two and four pipeline stages: how much more the busiest works than the mean, and the step's time before."""
    settings = settings_of(M30K, f"train.batch_tokens={TOKENS}")
    batches = batches_of(settings, options.data)
    for pp, most in ((2, Bound(1.15, 1.1)), (4, None)):
        found = in_ranks(partial(busy_times, settings, batches, options.rounds or 5), pp=pp, micro_batches=4)
        busy = [statistics.median(column) for column in zip(*found["busy"], strict=True)]
        checks.tell(f"m30k: busiest stage / mean at pp={pp}", max(busy) / statistics.mean(busy), most)
        if options.before is not None:
            before = earlier(options.before, M30K, batches, pp=pp, micro_batches=4)
            ratio = statistics.median(found["elapsed"]) / statistics.median(before["elapsed"])
            checks.tell(f"m30k: step at pp={pp} / before", ratio, Bound(0.8, 0.8) if pp == 2 else None)


def busy_times(settings: TransformerSettings, batches: Batches, rounds: int, world: World) -> dict[str, Any]:
    """Return for each round the seconds that each stage worked, and those that all took."""
    step = trainer_step(settings, world)
    step(batches[0])
    found: dict[str, Any] = {"busy": [], "elapsed": []}
    for _ in range(rounds):
        stopwatch = Stopwatch()
        found["elapsed"].append(elapsed_s(step, batches))
        busy = torch.zeros(world.pp.size)
        busy[world.pp.index] = stopwatch.read().busy_s
        found["busy"].append(all_reduce(busy, world.pp).tolist())
    return found


def earlier(
    checkout: Path, sizes: Sequence[str], batches: Batches, *, pp: int = 1, micro_batches: int = 1
) -> dict[str, Any]:
    """Return what the trainer of an earlier checkout takes for the same batches, as programs/earlier_trainer.py prints it.

    It wants as many pairs as ranks and micro batches divide: the last ones are left out.
    """
    task = {
        "settings": [*sizes, "train.device=cpu"],
        "layout": {"dp": 1, "mp": 1, "pp": pp, "micro_batches": micro_batches},
        "parts": micro_batches,
        "rounds": 3,
        "batches": [
            [
                (pair.source, pair.target)
                for pair in batch.examples[: len(batch.examples) // micro_batches * micro_batches]
            ]
            for batch in batches
        ],
    }
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(
        [sys.executable, "-P", BEFORE],
        input=json.dumps(task),
        env=environment,
        check=True,
        text=True,
        stdout=subprocess.PIPE,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


MEASUREMENTS = {
    "m30k": partial(same_batches, "m30k", M30K, 1.65),
    "tutorial": partial(same_batches, "tutorial", TUTORIAL, 3.0),
    "random": random_batches,
    "memory": memory,
    "dp": beside_each_other,
    "pp": stages,
}


def main() -> int:
    options_parser = parser(__doc__, tuple(MEASUREMENTS))
    options_parser.add_argument("--data", type=Path, help="sentence pairs, as `tlaunch data` writes them")
    options_parser.add_argument("--before", type=Path, help="a checkout of 947f4a1")
    options = options_parser.parse_args()
    torch.set_num_threads(1)
    checks = Checks()
    for name in options.only or MEASUREMENTS:
        MEASUREMENTS[name](options, checks)
    return 1 if checks.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
