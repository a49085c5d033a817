"""Replicas of boxes in a checkpoint: find intact files that replace missing or damaged ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from launcher.checkpoint.index import DamagedError, Index, PartFile, damage_of, read_index
from launcher.core.errors import UnreadableError


def files_to_read(index: Index, problems: Mapping[str, str]) -> tuple[dict[str, PartFile], list[str]]:
    """Return intact files that contain every box, and a line per damaged file that names its replacement.

    `problems` maps the names of damaged files to their errors. If several files contain a box, read it from the first.
    The replacements that the lines name come first. Raises DamagedError if a box is in no intact file.
    """
    first: dict[str, PartFile] = {}
    lines = []
    for name, problem in problems.items():
        found = stand_ins(index, name, problems)
        if found is None:
            raise DamagedError(f"{problem}, and there is no intact replica")
        first.update((other, index.files[other]) for other in found)
        served = f"its slice is read from {', '.join(found)}" if found else "it contains no slice"
        lines.append(f"{problem}; {served}")
    return first | {name: file for name, file in index.files.items() if name not in problems}, lines


def stand_ins(index: Index, name: str, damaged: Collection[str]) -> tuple[str, ...] | None:
    """Return intact files that contain all boxes of a damaged file, or None. Best matches come first."""
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
    """Return a line per damaged file, and whether training can resume; nothing if intact. Reads all files."""
    try:
        index = read_index(checkpoint)
    except UnreadableError as error:
        return [error.message, f"{checkpoint}: training cannot resume from it"]
    problems = {name: problem for name, file in index.files.items() if (problem := damage_of(checkpoint, name, file))}
    if not problems:
        return []
    try:
        _, lines = files_to_read(index, problems)
    except DamagedError:
        lost = [name for name in problems if stand_ins(index, name, problems) is None]
        return [
            *problems.values(),
            f"{checkpoint}: training cannot resume from it: no intact replica of {', '.join(lost)}",
        ]
    return [*lines, f"{checkpoint}: training can still resume from it"]
