"""Measure how long rank 0 takes to complete a checkpoint of many ranks, and how long each rank takes to read its index.

    python benchmarks/save_at_scale.py [--ranks N ...]

Rank 0's writer, index and strategy file are real. The other ranks are simulated: each has a note (a JSON file) that
lists the boxes that it would own with pp=8 and mp=8, but no tensor file. All files are in one directory on this
machine; on a file system shared by many servers, each file takes longer. The time that a rank needs to copy and write
its own state is not measured, because it does not depend on the number of ranks. No other program is compared.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import resource
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import torch

from launcher.checkpoint.index import INDEX, KINDS, NamedBox, PartFile, index_of, name_of
from launcher.core.codec import encode
from launcher.core.records import Layout
from launcher.mesh.coordinates import Coordinate, coordinate_of
from launcher.recipes.load import load_settings
from launcher.recipes.transformer.transformer_settings import TransformerSettings
from launcher.trainer.checkpoint.save import CheckpointWriter
from launcher.trainer.checkpoint.state import Training
from launcher.trainer.optimizer.flat import arrange
from launcher.trainer.optimizer.sharded import OwnedBox
from launcher.trainer.parallel.collectives import ALONE
from launcher.trainer.parallel.pipeline import Links
from launcher.trainer.parallel.place import place_from_environment
from launcher.trainer.parallel.world import World
from launcher.trainer.session import meta_model, placements_at

SIZES = [
    "model.vocabulary_size=32000", "model.d_model=1024", "model.feed_forward_dim=4096", "model.heads=16",
    "model.encoder_layers=12", "model.decoder_layers=12", "train.device=cpu",
]  # fmt: skip
PP, MP = 8, 8
RANKS = (1_024, 4_096, 16_000)
STEP = 1


class Rank0:
    """What the optimizer of rank 0 would own, as zeros."""

    state_dtype = torch.float32
    kinds = KINDS

    def __init__(self, boxes: tuple[NamedBox, ...]) -> None:
        self._boxes = boxes

    def owned_boxes(self) -> Iterator[OwnedBox]:
        for each in self._boxes:
            zeros = torch.zeros(each.box.size)
            yield OwnedBox(each.name, each.box, (zeros, zeros, zeros), is_replica=False)


def owned_boxes(settings: TransformerSettings, layout: Layout) -> Iterator[tuple[NamedBox, ...]]:
    """Yield the boxes in the file of each rank: those that its optimizer owns, and no earlier rank."""

    @cache
    def arranged(stage: int, mp_index: int):  # noqa: ANN202
        placed = placements_at(settings, layout, Coordinate(pp=stage, dp=0, mp=mp_index))
        return placed, arrange(placed, dp=layout.dp, groups=settings.parallel.gradient_groups)

    for rank in range(layout.world_size):
        place = coordinate_of(rank, layout)
        placed, flat = arranged(place.pp, place.mp)
        boxes = (each for part in flat.own_parts(place.dp) for each in flat.boxes_of(part, placed))
        yield tuple(NamedBox(name, box) for name, box, _ in boxes if placed[name].is_first)


def measure(ranks: int, directory: Path) -> None:
    layout = Layout(dp=ranks // (PP * MP), mp=MP, pp=PP)
    settings = load_settings(TransformerSettings, None, SIZES)
    first, *others = owned_boxes(settings, layout)
    place = dataclasses.replace(place_from_environment({}, micro_batches=1), layout=layout)
    world = World(place, torch.device("cpu"), dp=ALONE, mp=ALONE, pp=ALONE, links=Links())
    shapes = {name: tuple(parameter.shape) for name, parameter in meta_model(settings).named_parameters()}
    training = Training("transformer", dataclasses.asdict(settings), layout, "text", "", shapes, b"tokenizer")
    writer = CheckpointWriter(directory, training, world, keep=4)
    began_s, cpu_s = time.monotonic(), time.process_time()
    state = Rank0(first)  # all that the writer asks of an optimizer
    writer.save(STEP, state)
    while not (aside := list(directory.glob(".*.partial"))):
        time.sleep(0.01)
    for rank, boxes in enumerate(others, 1):
        data = 12 * sum(each.box.count for each in boxes)
        note = json.dumps(encode(PartFile(data + 64, "0" * 64, 64, boxes)))
        (aside[0] / f"rank{rank}.safetensors.json").write_text(note)
    notes_s, notes_cpu_s = time.monotonic() - began_s, time.process_time() - cpu_s
    writer.finish()
    whole_s, whole_cpu_s = time.monotonic() - began_s - notes_s, time.process_time() - cpu_s - notes_cpu_s
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    checkpoint = directory / name_of(STEP)
    content = (checkpoint / INDEX).read_bytes()
    began_s = time.process_time()
    index = index_of(content, checkpoint / INDEX)
    read_s = time.process_time() - began_s
    count = sum(len(file.boxes) for file in index.files.values())
    print(
        f"{ranks:6,} ranks: {count:,} boxes; from the last note to the whole checkpoint {whole_s:.1f} s ({whole_cpu_s:.1f} s of CPU time), "
        f"index {len(content) / 1e6:.1f} MB, read and checked by each rank in {read_s:.1f} s; peak {peak_mib:,} MiB",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    for ranks in parser.parse_args().ranks:
        with tempfile.TemporaryDirectory() as directory:
            measure(ranks, Path(directory))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
