"""Copies of boxes in a checkpoint: which files serve for those that are lost or damaged, and what is said of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from launcher.checkpoint.index import DamagedError, Index, PartFile, damage_of, read_index
from launcher.core.errors import UnreadableError


def has_copies(files: Mapping[str, PartFile]) -> bool:
    boxes = [box for file in files.values() for box in file.boxes]
    return len(boxes) > len(set(boxes))


def files_to_read(index: Index, problems: Mapping[str, str]) -> tuple[dict[str, PartFile], list[str]]:
    """Return good files, in which every box stands, and a line for each of the others: what is wrong, and which file serves.

    `problems` says what is wrong with files, by their names. Of a box that stands in several files the first is meant to be
    read, so that it is read from those that the lines name.

    Raises:
        DamagedError: some box is in no good file.
    """
    first: dict[str, PartFile] = {}
    lines = []
    for name, problem in problems.items():
        found = stand_ins(index, name, problems)
        if found is None:
            raise DamagedError(f"{problem}, and there is no good copy")
        first.update((other, index.files[other]) for other in found)
        served = f"its slice is read from {', '.join(found)}" if found else "nothing is read from it"
        lines.append(f"{problem}; {served}")
    return first | {name: file for name, file in index.files.items() if name not in problems}, lines


def stand_ins(index: Index, name: str, damaged: Collection[str]) -> tuple[str, ...] | None:
    """Return good files that hold all boxes of a damaged one, those that share most of them first; None if there are not."""
    missing = set(index.files[name].boxes)
    shared = {
        other: len(missing.intersection(file.boxes)) for other, file in index.files.items() if other not in damaged
    }
    found = []
    for other in sorted(shared, key=lambda each: -shared[each]):
        if held := missing.intersection(index.files[other].boxes):
            found.append(other)
            missing -= held
    return None if missing else tuple(found)


def findings(checkpoint: Path) -> list[str]:
    """Return a line for each file that is not what was written, and one that says whether a training can go on all the same.

    None where all is as it was written. It reads all files.
    """
    try:
        index = read_index(checkpoint)
    except UnreadableError as error:
        return [error.message, f"{checkpoint}: no training can go on from it"]
    problems = {name: problem for name, file in index.files.items() if (problem := damage_of(checkpoint, name, file))}
    if not problems:
        return []
    try:
        _, lines = files_to_read(index, problems)
    except DamagedError:
        lost = [name for name in problems if stand_ins(index, name, problems) is None]
        return [*problems.values(), f"{checkpoint}: no training can go on from it: no good copies of {', '.join(lost)}"]
    return [*lines, f"{checkpoint}: a training can go on from it all the same"]
