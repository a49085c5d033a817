"""Claim: a rank opens a cached corpus of 10 million pairs in under 5 s, with under 100 MB beyond its imports.

The text repeats the packaged sample in random order, with an extra word on both sides of each pair. It is written to
a temporary directory (1.3 GB, or 3 GB with token IDs). Also prints the cost of the first opening: training the
tokenizer on every 20th pair, and pairs encoded per second on all cores. Exits with 1 if the claim does not hold.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from common.checks import Bound, Checks

from launcher.corpus.dataset import PairText, find_splits, read_pairs
from launcher.corpus.sample import cached_sample
from launcher.corpus.text_digest import read_text
from launcher.recipes.load import load_settings
from launcher.recipes.transformer.transformer_settings import TransformerSettings
from launcher.trainer.data.batches import global_batches, own_micro_batches
from launcher.trainer.data.corpus import open_corpus, shared_tokenizer
from launcher.trainer.data.token_cache import write_tokens
from launcher.trainer.parallel.place import this_place
from launcher.trainer.parallel.world import World, open_world

PAIRS = 10_000_000
STEPS = 200  # of which the batches are made
MEGABYTE = 1_000_000
SECONDS, MEGABYTES = Bound(5.0, 2.0), Bound(100.0, 50.0)
SETTINGS = load_settings(
    TransformerSettings, None, ["model.vocabulary_size=8000", "train.batch_tokens=4096", "train.epochs=10"]
)


def write_text(path: Path, count: int) -> None:
    pairs = read_pairs(find_splits([cached_sample()]).train)
    words = sorted({word for pair in pairs for word in pair[1].split()})
    numbers = random.Random(1)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(0, count, len(pairs)):
            numbers.shuffle(pairs)
            file.writelines(
                f"{source} {word}\t{word} {target}\n"
                for (source, target), word in zip(pairs, numbers.choices(words, k=len(pairs)), strict=True)
            )


def memory(name: str) -> float:
    """Return this process's VmRSS or VmHWM, in MB."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024 / MEGABYTE
    raise ValueError(name)


@contextmanager
def measured(figures: dict[str, float], name: str) -> Iterator[None]:
    """Note seconds, CPU seconds, and the most memory beyond that at the beginning."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forgets the peak so far
    before, began_s, began_cpu_s = memory("VmRSS"), time.perf_counter(), time.process_time()
    yield
    figures[f"{name}_s"] = time.perf_counter() - began_s
    figures[f"{name}_cpu_s"] = time.process_time() - began_cpu_s
    figures[f"{name}_mb"] = memory("VmHWM") - before


def first(data: Path, world: World) -> dict[str, float]:
    """What is done once per server."""
    figures: dict[str, float] = {}
    with measured(figures, "digest"):
        text = read_text(PairText(data))
    with measured(figures, "tokenizer"):
        tokenizer, _ = shared_tokenizer(SETTINGS, world, find_splits([data]), text.digest)
    with measured(figures, "write"):
        write_tokens(text, tokenizer)
    return figures


def cached(data: Path, world: World) -> dict[str, float]:
    """What every rank does at every start, to its first batch; then some steps of one rank, and one of the next epoch."""
    figures: dict[str, float] = {}
    with measured(figures, "open"):
        corpus = open_corpus(SETTINGS, world, [data])
        batches = global_batches(corpus.train, SETTINGS.train)
        next(batches)
    positions = tokens = 0
    with measured(figures, "batches"):
        for _, batch in zip(range(STEPS), batches, strict=False):
            [own] = own_micro_batches(batch.examples, world.place.layout, world.place.coordinate, world.device)
            positions += own.labels_BT.numel() + own.source_BS.numel()
            tokens += int((own.labels_BT != 0).sum() + (own.source_BS != 0).sum())
    with measured(figures, "resume"):
        next(global_batches(corpus.train, SETTINGS.train, first_step=batch.last_step // 2))
    return figures | {"padding": 1 - tokens / positions, "steps": batch.last_step, "pairs": len(corpus.train)}


def in_child(part: str, data: Path) -> dict[str, float]:
    done = subprocess.run([sys.executable, __file__, "--part", part, str(data)], stdout=subprocess.PIPE, check=True)
    *lines, figures = done.stdout.decode().splitlines()
    print("\n".join(f"  | {line}" for line in lines[-2:]))
    result: dict[str, float] = json.loads(figures)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--part", nargs=2, metavar=("PART", "DATA"), help="within: what a child process measures")
    options = parser.parse_args()
    if options.part:
        part, data = options.part
        torch.set_num_threads(1)
        with open_world(this_place(micro_batches=1), torch.device("cpu")) as world:
            print(json.dumps({"first": first, "cached": cached}[part](Path(data), world)))
        return 0
    checks = Checks()
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory) / "pairs.tsv"
        write_text(data, options.pairs)
        size = data.stat().st_size
        once, rank = in_child("first", data), in_child("cached", data)
    print(f"{rank['pairs']:,.0f} training pairs, {size / MEGABYTE:,.0f} MB of text")
    print(" once per server")
    checks.tell("digest of the text, s", once["digest_s"])
    checks.tell("tokenizer, s", once["tokenizer_s"])
    checks.tell("tokenizer, peak MB", once["tokenizer_mb"])
    checks.tell("ids, pairs/s", rank["pairs"] / once["write_s"], form=",.0f")
    checks.tell("ids, pairs per CPU second", rank["pairs"] / once["write_cpu_s"], form=",.0f")
    checks.tell("ids, peak MB", once["write_mb"])
    print(" on every rank, once that is cached")
    checks.tell("to the first batch, s", rank["open_s"], SECONDS)
    checks.tell("to the first batch, CPU s", rank["open_cpu_s"])
    checks.tell("to the first batch, peak MB", rank["open_mb"], MEGABYTES)
    checks.tell("a batch of 4,096 tokens, ms", rank["batches_s"] / STEPS * 1e3)
    checks.tell("batches, peak MB", rank["batches_mb"], MEGABYTES)
    checks.tell("padding", rank["padding"], form=".1%")
    checks.tell("to a batch in the middle of ten epochs, s", rank["resume_s"])
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
