"""Claim: a step waits for a checkpoint for a tenth of the time that torch.save of the same tensors takes.

    python benchmarks/checkpoint.py [--rounds N] [--directory DIR]

One rank saves and loads weights and moments of about 45 million parameters (546 MB). Each round runs, in turn:
torch.save and torch.load of one file; torch.distributed.checkpoint (save, async_save and load, in its own format);
and the trainer's writer and reader, which also compute and verify digests. All files are synced to disk with fsync.
Rates cover the time until all data is on disk, or in the tensors. Exits with 1 if the claim does not hold.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from common.checks import Bound, Checks, median_ratio

from launcher.checkpoint.index import name_of
from launcher.recipes.load import load_settings
from launcher.recipes.transformer.transformer_settings import TransformerSettings
from launcher.trainer.checkpoint.restore import restore
from launcher.trainer.checkpoint.save import CheckpointWriter
from launcher.trainer.checkpoint.state import Training
from launcher.trainer.parallel.collectives import ALONE
from launcher.trainer.parallel.pipeline import Links
from launcher.trainer.parallel.place import place_from_environment
from launcher.trainer.parallel.world import World
from launcher.trainer.session import Session, meta_model

SIZES = ["model.vocabulary_size=20000", "model.d_model=512", "model.feed_forward_dim=2048", "train.device=cpu"]
ROUNDS = 5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--directory", type=Path, help="of the files, on the disk that is measured")
    options = parser.parse_args()
    torch.set_num_threads(1)
    settings = load_settings(TransformerSettings, None, SIZES)
    place = place_from_environment({}, micro_batches=1)
    world = World(place, torch.device("cpu"), dp=ALONE, mp=ALONE, pp=ALONE, links=Links())
    session = Session(settings, world)
    shapes = {name: tuple(parameter.shape) for name, parameter in meta_model(settings).named_parameters()}
    training = Training("transformer", dataclasses.asdict(settings), place.layout, "text", "", shapes, b"tokenizer")
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        rows = [_round(Path(directory) / str(number), session, training, world) for number in range(options.rounds)]
    checks = Checks()
    size_mb = 3 * sum(parameter.numel() for parameter in session.model.parameters()) * 4 / 1e6
    print(f"{size_mb:,.0f} MB")
    checks.tell("the step waits, of torch.save", median_ratio(rows, "stall", "save"), Bound(0.1, 0.1))
    checks.tell("the step waits, of DCP's async_save", median_ratio(rows, "stall", "dcp stall"))
    for what, peer in (("write", "save"), ("write", "dcp save"), ("read", "load"), ("read", "dcp load")):
        checks.tell(f"{what}, time of {peer.replace('dcp', 'DCP')}", median_ratio(rows, what, peer))
    for name in ("stall", "write", "read", "dcp save", "dcp load"):
        checks.tell(f"{name}, s", sorted(row[name] for row in rows)[len(rows) // 2])
    checks.tell("peak memory above the copy, MB", max(row["memory"] for row in rows))
    return 1 if checks.failed else 0


def _round(directory: Path, session: Session, training: Training, world: World) -> dict[str, float]:
    """Return the seconds of each part, and the most memory that writing took."""
    directory.mkdir()
    row: dict[str, float] = {}
    state = {
        f"{kind}/{number}": values
        for number, each in enumerate(session.optimizer.owned_boxes())
        for kind, values in zip(session.optimizer.kinds, each.values, strict=True)
    }

    def timed(name: str, work: Callable[[], Any]) -> Any:
        began_s = time.perf_counter()
        done = work()
        row[name] = time.perf_counter() - began_s
        return done

    def save() -> None:
        with (directory / "one").open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())

    writer = CheckpointWriter(directory, training, world, keep=2)
    writer.save(1, session.optimizer)  # the buffer is there afterwards
    writer.finish()
    timed("save", save)
    timed("load", lambda: torch.load(directory / "one", weights_only=True))
    timed("dcp save", lambda: dcp.save(state, checkpoint_id=directory / "dcp"))
    timed("dcp load", lambda: dcp.load(state, checkpoint_id=directory / "dcp"))
    future = timed("dcp stall", lambda: dcp.async_save(state, checkpoint_id=directory / "async"))
    future.result()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forgets the peak so far
    before = _status_mb("VmRSS")
    began_s = time.perf_counter()
    timed("stall", lambda: writer.save(2, session.optimizer))
    writer.finish()
    row["write"] = time.perf_counter() - began_s
    row["memory"] = _status_mb("VmHWM") - before
    found = timed("read", lambda: restore(lambda: [directory / name_of(2)], training, session.optimizer, world))
    assert found is not None
    return row


def _status_mb(name: str) -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{name}:")[2].split()[0]) * 1024 / 1e6


if __name__ == "__main__":
    raise SystemExit(main())
