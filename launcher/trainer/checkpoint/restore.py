"""Resume from a checkpoint of any layout: each rank reads the boxes that it owns in the current layout."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from launcher.checkpoint.index import (
    BUFFERS,
    INDEX,
    KINDS_OF_BUFFERS,
    TOKENIZER,
    DamagedError,
    Index,
    PartFile,
    checkpoints_in,
    damage_of,
    index_of,
    index_text,
    is_checkpoint,
    read_index,
)
from launcher.checkpoint.same_settings import changed_settings, check_settings
from launcher.checkpoint.tensors import files_to_read
from launcher.core.errors import TlaunchError, UnreadableError, UsageError
from launcher.core.text import some_of
from launcher.mesh.boxes import full_box
from launcher.trainer.checkpoint.checkpoint_files import StoredTensors
from launcher.trainer.checkpoint.state import NONE, State, Training, check_finite, shapes_of
from launcher.trainer.parallel.world import World
from launcher.trainer.telemetry.heartbeat import getting_on
from launcher.trainer.training_files import Files

SHOWN = 4  # names of checkpoints in a message


def candidates_at(path: Path) -> list[Path]:
    """Return `path` if it is a checkpoint. Otherwise find checkpoints in `path` or `path`/checkpoints, newest first.

    Raises:
        UnreadableError: there are none.
    """
    if is_checkpoint(path):
        return [path]
    found = checkpoints_in(path) or checkpoints_in(path / "checkpoints")
    if not found:
        raise UnreadableError(
            f"{path}: no checkpoint found", hint="pass a checkpoint such as checkpoints/step-120, or a run directory"
        )
    return found


def candidates_of(files: Files) -> list[Path]:
    """Return the checkpoints that a training can resume from: its own, newest first, then those in `files.resume`.

    Raises:
        UnreadableError: there are none in `files.resume`.
    """
    own = [] if files.checkpoints is None else checkpoints_in(files.checkpoints)
    return own + ([] if files.resume is None else candidates_at(files.resume))


def restore(
    find: Callable[[], Sequence[Path]],
    training: Training,
    state: State,
    world: World,
    *,
    buffers: Mapping[str, Tensor] = NONE,
) -> tuple[Path, int] | None:
    """Load the first usable checkpoint in the list that `find` returns on rank 0. Return its path and step.

    Return None if `find` returns none. A checkpoint is usable if all its data is intact and its weights are finite.
    Damaged files and skipped checkpoints are reported. All ranks must call it; they use rank 0's index.

    Raises:
        TlaunchError: on every rank, if no checkpoint is usable, or one has another model or other data.
    """
    found = world.from_rank_0(lambda: "\0".join(map(str, find())).encode()).decode()
    paths = [Path(path) for path in found.split("\0") if path]
    damage = None
    for path in paths:
        try:
            index = index_of_all(path, world)
            files = good_files(path, index, world)
            _check_same(path, index, training, state.kinds, buffers)
            if world.is_first and (changed := ", ".join(changed_settings(index, training.settings))):
                print(f"settings changed since {path.name}: {changed}", flush=True)
            world.while_others_wait(partial(read_values, path, index, files, state, buffers))
            try:
                world.while_others_wait(partial(check_finite, state, str(path)))
            except TlaunchError as error:  # raised on every rank
                raise DamagedError(error.message) from None
        except DamagedError as error:
            damage = error.message
            if world.is_first:
                print(f"{damage}; {path.name} is not used", flush=True)
            continue
        state.restored(index.step)
        return path, index.step
    if damage is not None:
        raise _none_complete(paths, damage, world)
    return None


def _none_complete(paths: Sequence[Path], damage: str, world: World) -> UnreadableError:
    """Return the error for a run without a usable checkpoint. It names the checkpoints that were not tried."""
    directory = paths[-1].parent

    def others() -> bytes:
        return some_of([path.name for path in checkpoints_in(directory) if path not in paths], SHOWN).encode()

    if beside := world.from_rank_0(others).decode():
        return UnreadableError(damage, hint=f"resume from {directory} to try the other checkpoints: {beside}")
    return UnreadableError(
        f"no checkpoint is usable: {damage}",
        hint="to train from the beginning, omit --resume, or move the checkpoints out of the run's checkpoint directory",
    )


def index_of_all(checkpoint: Path, world: World) -> Index:
    """Read the index on rank 0, and return it on every rank. A read error is raised on every rank."""

    def read() -> bytes:
        try:
            return index_text(read_index(checkpoint)).encode()
        except DamagedError as error:
            return b"\0" + error.message.encode()

    content = world.from_rank_0(read)
    if content.startswith(b"\0"):
        raise DamagedError(content[1:].decode())
    return index_of(content, checkpoint / INDEX)


def good_files(checkpoint: Path, index: Index, world: World) -> dict[str, PartFile]:
    """Return intact files that together contain all boxes. Ranks share the checks, and rank 0 prints damaged files.

    Raise a DamagedError on every rank if no intact file contains a box.
    """
    names = sorted(index.files)
    is_damaged = torch.zeros(len(names), dtype=torch.int32, device=world.device)

    def check() -> None:
        for number in range(world.place.global_rank, len(names), world.place.world_size):
            is_damaged[number] = damage_of(checkpoint, names[number], index.files[names[number]]) is not None
            getting_on()

    world.while_others_wait(check)
    damaged = [name for name, count in zip(names, world.sum_over_all(is_damaged).tolist(), strict=True) if count]
    problems: dict[str, str] = {}

    def look_again() -> None:  # rank 0 repeats the check of damaged files to get the errors
        for name in damaged:
            problems[name] = damage_of(checkpoint, name, index.files[name]) or f"{checkpoint / name} is damaged"
            getting_on()

    world.while_others_wait(look_again if damaged and world.is_first else None)
    told = world.from_rank_0(lambda: json.dumps(problems).encode())
    files, lines = files_to_read(index, json.loads(told))
    for line in lines if world.is_first else ():
        print(line, flush=True)
    return files


def _check_same(
    path: Path, index: Index, training: Training, kinds: Sequence[str], buffers: Mapping[str, Tensor]
) -> None:
    check_settings(path, index, training.program, training.settings, training.named, defaults=training.defaults)
    tokenizer = index.files[TOKENIZER].sha256 if TOKENIZER in index.files else None
    if index.text != training.text or tokenizer != training.tokenizer_digest:
        other = "different data" if index.text != training.text else "a different tokenizer"
        hint = "use the same data" if index.text != training.text else "use the same data and data.tokenizer"
        left_as_it_was = "normalise" not in index.settings.get("data", {})
        if index.text == training.text and left_as_it_was and training.settings.get("data", {}).get("normalise"):
            hint = "set data.normalise=false: the version that wrote the checkpoint did not normalise text"
        raise UsageError(f"{path} was trained with {other}", hint=hint)
    if index.shapes != training.shapes:
        raise UsageError(f"{path} is from a model with different parameter names or shapes")
    if index.buffers != shapes_of(buffers):
        raise UsageError(f"{path} is from a model with different buffers")
    if index.kinds != tuple(kinds):
        theirs, ours = ", ".join(index.kinds), ", ".join(kinds)
        raise UsageError(f"{path} is from a different optimizer: expected state {ours}, but found {theirs}")


def read_values(
    checkpoint: Path,
    index: Index,
    files: Mapping[str, PartFile],
    state: State,
    buffers: Mapping[str, Tensor],
    *,
    only_weights: bool = False,
) -> None:
    """Copy this rank's values in a checkpoint to `state` and `buffers`. With `only_weights`, keep the optimizer state."""
    tensor_files = {name: file for name, file in files.items() if name != BUFFERS}
    stored = StoredTensors(checkpoint, tensor_files, index.dtype, index.kinds)
    for wanted in state.owned_boxes():
        getting_on()
        for here, found in stored.pieces(wanted.name, wanted.box):
            for target, values in zip(
                wanted.values[:1] if only_weights else wanted.values, found, strict=not only_weights
            ):
                target[here].copy_(torch.from_numpy(values.copy()))
    if not buffers:
        return
    kept = StoredTensors(checkpoint, {BUFFERS: files[BUFFERS]}, index.dtype, KINDS_OF_BUFFERS)
    for name, buffer in buffers.items():
        for here, [values] in kept.pieces(name, full_box(buffer.shape)):
            buffer[here].copy_(torch.from_numpy(values.copy()))
