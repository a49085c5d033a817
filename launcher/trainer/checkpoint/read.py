"""Go on from a checkpoint, whatever the layout that wrote it: each rank reads the boxes that it owns now."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from launcher.checkpoint.index import (
    INDEX,
    NAMED_SETTINGS,
    TOKENIZER,
    DamagedError,
    Index,
    PartFile,
    checkpoints_in,
    damage_of,
    differing_setting,
    index_of,
    index_text,
    read_index,
)
from launcher.core.errors import UnreadableError, UsageError
from launcher.core.frozen import frozen
from launcher.mesh.boxes import Box
from launcher.trainer.checkpoint.write import Training
from launcher.trainer.optimizer.sharded import ShardedAdamW
from launcher.trainer.parallel.world import World
from launcher.trainer.telemetry.heartbeat import getting_on

Bytes = NDArray[np.uint8]

_NUMPY: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F64": np.dtype("<f8")}


def candidates_at(path: Path) -> list[Path]:
    """Return the checkpoints that `path` stands for, the newest first: itself, those in it, or those of a run's directory.

    Raises:
        UnreadableError: there are none.
    """
    if (path / INDEX).exists():
        return [path]
    found = checkpoints_in(path) or checkpoints_in(path / "checkpoints")
    if not found:
        raise UnreadableError(
            f"{path}: there is no checkpoint", hint="a directory such as checkpoints/step-120, or a run's"
        )
    return found


def restore(
    find: Callable[[], Sequence[Path]], training: Training, optimizer: ShardedAdamW, world: World
) -> tuple[Path, int] | None:
    """Give `optimizer` the state of the first whole checkpoint that `find` returns on rank 0; return it and its step.

    None where it returns none. Each that is damaged is told. All ranks must call it, and rank 0's index is that of all.

    Raises:
        TlaunchError: on every rank alike, where no checkpoint is whole, or one is of another model or other data, or cannot be
            read.
    """
    paths = world.from_rank_0(lambda: "\0".join(map(str, find())).encode()).decode()
    damage = None
    for path in map(Path, filter(None, paths.split("\0"))):
        try:
            index = _whole_index(path, world)
        except DamagedError as error:
            damage = error.message
            if world.is_first:
                print(f"{damage}; {path.name} is not used", flush=True)
            continue
        _check_same(path, index, training)
        world.while_others_wait(partial(_read, path, index, optimizer))
        optimizer.restored(index.step)
        return path, index.step
    if damage is not None:
        raise UnreadableError(f"no checkpoint is whole: {damage}", hint="move them away to begin at the beginning")
    return None


def _whole_index(checkpoint: Path, world: World) -> Index:
    """Return the index that rank 0 has read, if all files are as they were written, each of which one rank reads.

    Raises:
        DamagedError: on every rank alike, they are not.
        UnreadableError: on every rank alike, the index cannot be read.
    """
    damage: list[str] = []

    def read() -> bytes:
        try:
            return index_text(read_index(checkpoint)).encode()
        except DamagedError as error:
            damage.append(error.message)
            return b""

    content = world.from_rank_0(read)
    if not content:
        [told] = world.from_rank_0(lambda: "".join(damage).encode()).decode().splitlines() or [str(checkpoint)]
        raise DamagedError(told)
    index = index_of(content, checkpoint / INDEX)
    names = sorted(index.files)[world.place.global_rank :: world.place.world_size]

    def check() -> None:
        for name in names:
            if problem := damage_of(checkpoint, name, index.files[name]):
                raise UnreadableError(problem)
            getting_on()

    try:
        world.while_others_wait(check)
    except UnreadableError as error:
        raise DamagedError(error.message) from None
    return index


def _check_same(path: Path, index: Index, training: Training) -> None:
    if index.program != training.program:
        raise UsageError(f"{path} is of the program {index.program}, and this one is {training.program}")
    if found := differing_setting(index, training.settings, training.named):
        name, theirs, ours = found
        other = f"--set {name}={ours} to change it" if name in NAMED_SETTINGS else "without --resume"
        raise UsageError(
            f"{path} is of a training with {name} = {theirs}, and this one has {ours}",
            hint=f"--set {name}={theirs}, or {other}",
        )
    if index.text != training.text or index.files[TOKENIZER].sha256 != training.tokenizer_digest:
        what = "text" if index.text != training.text else "tokenizer"
        raise UsageError(f"{path} is of a training with another {what}", hint="--data with the same files")
    if index.shapes != training.shapes:
        raise UsageError(f"{path} is of a model of other shapes")


@frozen
class _Stored:
    """A box in a file, of whose boxes it begins at element `start`."""

    path: Path
    file: PartFile
    box: Box
    start: int


def _read(checkpoint: Path, index: Index, optimizer: ShardedAdamW) -> None:
    stored: dict[str, list[_Stored]] = defaultdict(list)
    for name, file in index.files.items():
        at = 0
        for named in file.boxes:
            stored[named.name].append(_Stored(checkpoint / name, file, named.box, at))
            at += named.box.count
    opened: dict[Path, Bytes] = {}
    for wanted in optimizer.owned_boxes():
        getting_on()
        for each in stored[wanted.name]:
            if each.path not in opened:
                opened[each.path] = np.memmap(each.path, dtype=np.uint8, mode="r")
            if common := each.box.common(wanted.box):
                targets = (wanted.weight, wanted.first_moment, wanted.second_moment)
                for kind, target in enumerate(targets):
                    values = _values(opened[each.path], each, kind, _NUMPY[index.dtype])
                    part = torch.from_numpy(values[common.within(each.box)].copy())
                    target[common.within(wanted.box)].copy_(part)


def _values(content: Bytes, stored: _Stored, kind: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the values of a box, KINDS[kind] of them, in the content of its file."""
    elements = kind * stored.file.elements + stored.start
    start = stored.file.data_start + elements * dtype.itemsize
    return content[start : start + stored.box.count * dtype.itemsize].view(dtype).reshape(stored.box.size)
