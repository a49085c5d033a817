"""What optimizer and checkpoints promise of parameters that are cut along two dims, and held by some ranks. Exit 0 when it holds.

    boxes_ranks.py DIRECTORY

A model whose gradient is its distance from a target is trained by Momentum, in float64, on four model-parallel ranks; it goes on
on two of them twice, for two copies of the data, and on one process. All is compared with torch.optim.SGD in this process.
"""

import sys
from functools import partial
from pathlib import Path

import torch
from ranks import fork_ranks, own_world
from torch import nn

from launcher.checkpoint.file_layout import MODEL, OWNED, WAYS
from launcher.checkpoint.index import BUFFERS, name_of, read_index
from launcher.checkpoint.model_merge import OPTIMIZER, merge
from launcher.checkpoint.tensors import opened
from launcher.core.records import Layout
from launcher.mesh.boxes import Box
from launcher.trainer.checkpoint.restore import candidates_at, restore
from launcher.trainer.checkpoint.save import CheckpointWriter
from launcher.trainer.checkpoint.state import Training
from launcher.trainer.optimizer.sharded import ShardedOptimizer
from launcher.trainer.optimizer.update_rules import Momentum
from launcher.trainer.parallel.placement import Placement
from launcher.trainer.saved import gather

SHAPES = {"both": (8, 6), "rows": (8, 4), "columns": (3, 6, 2), "norm": (5,)}
BUFFER = "norm.running_mean"
STEPS, SAVED = 6, 3
RATE, MOMENTUM, DECAY, CLIP = 0.1, 0.9, 0.02, 3.0
FOUR, TWO_BY_TWO, ONE = Layout(mp=4), Layout(dp=2, mp=2), Layout()


def placements_at(layout, coordinate):
    """Cut parameters over four ranks as a mesh of 2 x 2, over two ranks along rows, or not at all."""
    row, column = divmod(coordinate.mp, 2) if layout.mp == 4 else (coordinate.mp, 0)
    rows, columns = {4: (2, 2), 2: (2, 1), 1: (1, 1)}[layout.mp]
    cuts = {"both": (rows, columns), "rows": (rows, 1), "columns": (1, columns, 1), "norm": (1,)}
    return {name: placement(SHAPES[name], cuts[name], row, column, layout.mp) for name in SHAPES}


def placement(shape, parts, row, column, ranks):
    """Dims that are cut by rows lie at `row`, those by columns at `column`."""
    size = tuple(full // count for full, count in zip(shape, parts, strict=True))
    at = [0] * len(shape)
    is_by_row = parts[0] > 1
    is_by_column = len(parts) > 1 and parts[1] > 1
    if is_by_row:
        at[0] = row * size[0]
    if is_by_column:
        at[1] = column * size[1]
    is_first = (is_by_row or row == 0) and (is_by_column or column == 0)
    copies = ranks // (max(parts[0], 1) * (parts[1] if len(parts) > 1 else 1))
    return Placement(torch.Size(shape), Box(tuple(at), size), copies=copies, is_first=is_first)


def tensors_of(seed):
    numbers = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=numbers, dtype=torch.float64) for name, shape in SHAPES.items()}


def training_of(layout):
    return Training("a program", {}, layout, "a text", "", SHAPES, None)


def train(directory, resume=None):
    """Train to the last step, or go on from `resume`; write checkpoints of all ways, and the gathered model."""
    with own_world() as world:
        layout = world.place.layout
        placed = placements_at(layout, world.place.coordinate)
        initial, targets = tensors_of(0), tensors_of(1 + world.dp.index)
        parts = {name: nn.Parameter(placed[name].part_of(initial[name]).clone()) for name in SHAPES}
        groups = {"dp": world.dp, "mp": world.mp, "pp": world.pp}
        rule = Momentum(MOMENTUM, weight_decay=DECAY)
        optimizer = ShardedOptimizer(parts, placed, rule, clip_norm=CLIP, gradient_groups=2, **groups)
        buffers = {BUFFER: torch.zeros(5)}
        training, first = training_of(layout), 1
        if resume is not None:
            _, step = restore(lambda: candidates_at(resume), training, optimizer, world, buffers=buffers)
            assert torch.equal(buffers[BUFFER], torch.full((5,), float(step)))
            first = step + 1
        writers = {way: CheckpointWriter(directory / way, training, world, keep=4, way=way) for way in WAYS}
        for step in range(first, STEPS + 1):
            if step == SAVED + 1:
                targets = tensors_of(9)  # of which every copy of the data computes its share
            optimizer.zero_gradients()
            for name, part in parts.items():
                ((part - placed[name].part_of(targets[name])) ** 2 / (2 * layout.dp)).sum().backward()
            optimizer.step(RATE)
            buffers[BUFFER] += 1
            for writer in writers.values() if step in {SAVED, STEPS} else ():
                writer.save(step, optimizer, buffers=buffers)
        for writer in writers.values():
            writer.finish()
        whole = gather(world, parts, partial(placements_at, layout))
        if whole is not None:
            expected = expected_after(STEPS)
            for name, tensor in whole.items():
                torch.testing.assert_close(tensor, expected[name], rtol=1e-12, atol=1e-13)


def expected_after(steps):
    """What torch.optim.SGD makes of the whole model."""
    model = {name: nn.Parameter(tensor) for name, tensor in tensors_of(0).items()}
    decays = [model[name] for name in SHAPES if len(SHAPES[name]) > 1]
    reference = torch.optim.SGD(
        [{"params": decays, "weight_decay": DECAY}, {"params": [model["norm"]]}], lr=RATE, momentum=MOMENTUM
    )
    for step in range(1, steps + 1):
        targets = tensors_of(1 if step <= SAVED else 9)
        for name, parameter in model.items():
            parameter.grad = parameter.detach() - targets[name]
        norm = nn.utils.get_total_norm([parameter.grad for parameter in model.values()])
        for parameter in model.values():
            parameter.grad *= min(1.0, CLIP / norm)
        reference.step()
    return {name: parameter.detach() for name, parameter in model.items()}


def merged(checkpoint, output):
    """The files of a checkpoint as one model, byte for byte."""
    with opened(checkpoint, read_index(checkpoint), lambda _: None, print) as stored:
        merge(stored, output, moments=True)
    return [(output / name).read_bytes() for name in (MODEL, OPTIMIZER)]


def same_state(directories):
    """All ways, on all layouts, hold the same bits after the step in which all of them were; buffers stand in one file."""
    found = []
    for directory in directories:
        for way in WAYS:
            checkpoint = directory / way / name_of(SAVED)
            index = read_index(checkpoint)
            assert index.schema == 3
            assert [name for name, file in index.files.items() if BUFFER in {each.name for each in file.boxes}] == [
                BUFFERS
            ]
            found.append(merged(checkpoint, directory / f"{way} merged"))
    assert all(each == found[0] for each in found)


def start(directory, layout, resume=None):
    axes = {axis: getattr(layout, axis) for axis in ("dp", "mp", "pp")}
    fork_ranks(str(layout), partial(train, directory, resume), **axes)


def main(directory):
    four = directory / "four"
    start(four, FOUR)
    for layout, way in ((TWO_BY_TWO, "slices"), (ONE, OWNED)):
        here = directory / str(layout)
        start(here, layout, resume=four / way / name_of(SAVED))
    same_state([four])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
