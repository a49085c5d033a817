"""Read and write the tensor files of a checkpoint as bytes, in boxes (rectangular parts of tensors).

Any box can be read, however the tensors were split in the files. Uses only the standard library and a block of memory.
The trainer reads arrays instead (`launcher/trainer/checkpoint/checkpoint_files.py`).
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any

from launcher.checkpoint.index import (
    ITEM_BYTES,
    KINDS,
    TOKENIZER,
    DamagedError,
    Index,
    NamedBox,
    PartFile,
    damage_of,
    hinted,
    read_index,
)
from launcher.core.errors import UnreadableError
from launcher.core.frozen import frozen
from launcher.core.regular_files import open_regular
from launcher.mesh.boxes import Box, boxes_of_run, shared_runs

BOX_ALIGNMENT = 64  # bytes; alignment of the tensors in a checkpoint file
BLOCK_BYTES = 8 << 20  # per read, write and digest update
MAX_MAPPED = 256  # files at the same time; each needs a descriptor

Bytes = bytes | bytearray | memoryview
Advance = Callable[[int], None]  # called with the number of bytes read since the last call


def header(
    tensors: Iterable[tuple[str, Sequence[int]]],
    dtype: str,
    *,
    alignment: int,
    metadata: Mapping[str, str] | None = None,
) -> bytes:
    """Return a safetensors header, padded to `alignment` bytes, for tensors (name, shape) in the given order."""
    content: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    at = 0
    for name, shape in tensors:
        stop = at + prod(shape) * ITEM_BYTES[dtype]
        content[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, stop]}
        at = stop
    text = json.dumps(content, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % alignment)
    return len(text).to_bytes(8, "little") + text


def write_boxes(
    path: Path,
    boxes: Sequence[NamedBox],
    dtype: str,
    contents: Iterable[Bytes],
    *,
    kinds: Sequence[str] = KINDS,
    synced: bool = True,
) -> PartFile:
    """Write boxes (parts of tensors) to a safetensors file: all boxes for kinds[0], then for kinds[1], and so on.

    `contents` has the bytes in this order, in pieces of any size. With `synced`, the file is on disk when this returns.
    Raises OSError, for example if the disk is full.
    """
    several = {name for name, count in Counter(each.name for each in boxes).items() if count > 1}
    head = header(
        (
            (f"{kind}/{each.name}" + (f"/{number}" if each.name in several else ""), each.box.size)
            for kind in kinds
            for number, each in enumerate(boxes)
        ),
        dtype,
        alignment=BOX_ALIGNMENT,
    )
    file = write_digested(path, chain([head], contents), synced=synced)
    return replace(file, data_start=len(head), boxes=tuple(boxes))


def write_digested(path: Path, contents: Iterable[Bytes], *, synced: bool) -> PartFile:
    """Write `contents` to a file, and return its size and digest. With `synced`, also sync the file to disk."""
    digest, size = hashlib.sha256(), 0
    with path.open("wb") as file:
        for content in contents:
            view = memoryview(content)
            for start in range(0, len(view), BLOCK_BYTES):
                block = view[start : start + BLOCK_BYTES]
                file.write(block)
                digest.update(block)
            size += len(view)
        file.flush()
        if synced:
            os.fsync(file.fileno())
    return PartFile(size, digest.hexdigest())


@frozen
class Place:
    """The position of a part of a tensor in a file. Values of kind k start at start_bytes + k * kind_bytes."""

    file: str
    start_bytes: int
    kind_bytes: int


def places_in(files: Mapping[str, PartFile], dtype: str) -> dict[str, dict[Box, Place]]:
    """Return the stored boxes of each parameter, with their files. If several files contain a box, use the first file."""
    places: dict[str, dict[Box, Place]] = {}
    for name, file in files.items():
        at, kind_bytes = file.data_start, file.elements * ITEM_BYTES[dtype]
        for each in file.boxes:
            places.setdefault(each.name, {}).setdefault(each.box, Place(name, at, kind_bytes))
            at += each.box.count * ITEM_BYTES[dtype]
    return places


class StoredBoxes:
    """Reads any part of a checkpoint's tensors from memory-mapped files. Call `close` at the end."""

    def __init__(self, path: Path, index: Index, files: Mapping[str, PartFile], advance: Advance) -> None:
        """Open a checkpoint, but read only `files`. A box that several files contain is read from the first file."""
        self.path, self.index = path, index
        self._item_bytes = ITEM_BYTES[index.dtype]
        self._advance = advance
        self._mapped: dict[str, tuple[mmap.mmap, memoryview]] = {}  # oldest mapping first
        self._places = places_in(files, index.dtype)

    def blocks(self, kind: int, name: str, box: Box) -> Iterator[bytearray]:
        """Yield the values of a box of a parameter or buffer in row-major order, in blocks of at most BLOCK_BYTES.

        `kind` is the number of the kind of values. Raises DamagedError if the checkpoint lacks an element, and OSError
        if a file cannot be read.
        """
        for piece in pieces(box, BLOCK_BYTES // self._item_bytes):
            yield self.read(kind, name, piece)

    def close(self) -> None:
        while self._mapped:
            self._unmap_first()

    def read(self, kind: int, name: str, wanted: Box) -> bytearray:
        """Return all values of the box `wanted` in row-major order."""
        item = self._item_bytes
        block, found = bytearray(wanted.count * item), 0
        for box, place in self._places.get(name, {}).items():
            if (common := box.common(wanted)) is None:
                continue
            content = self._content(place.file)
            origin = place.start_bytes + kind * place.kind_bytes
            length, places = shared_runs(box, wanted, common)
            run_bytes = length * item
            for there, here in places:
                source, target = origin + there * item, here * item
                block[target : target + run_bytes] = content[source : source + run_bytes]
            found += common.count
        if found != wanted.count:
            raise DamagedError(f"{self.path} has only {found} of {wanted.count} elements of a part of {name}")
        self._advance(len(block))
        return block

    def _content(self, name: str) -> memoryview:
        if name not in self._mapped:
            if len(self._mapped) == MAX_MAPPED:
                self._unmap_first()
            with os.fdopen(open_regular(self.path / name), "rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._mapped[name] = mapped, memoryview(mapped)
        return self._mapped[name][1]

    def _unmap_first(self) -> None:
        mapped, view = self._mapped.pop(next(iter(self._mapped)))
        view.release()
        mapped.close()


def pieces(box: Box, most: int) -> Iterator[Box]:
    """Split a box into boxes of at most `most` elements in row-major order. Long rows are split, too.

    >>> [(piece.start, piece.size) for piece in pieces(Box((1, 0), (2, 3)), most=4)]
    [((1, 0), (1, 3)), ((2, 0), (1, 1)), ((2, 1), (1, 2))]
    """
    for start in range(0, box.count, most):
        for piece in boxes_of_run(start, min(start + most, box.count), box.size):
            yield piece.moved(box.start)


def verified_files(path: Path, index: Index, advance: Advance, tell: Callable[[str], None]) -> dict[str, PartFile]:
    """Verify the digests of all files of a checkpoint, and return intact files that contain all data.

    `tell` receives a line for each damaged file that is replaced by others. Raises DamagedError if data of a damaged
    file is in no other file.
    """
    problems = {}
    for name, file in index.files.items():
        if problem := damage_of(path, name, file):
            problems[name] = problem
        advance(file.size)
    with hinted(path):
        if TOKENIZER in problems:
            raise DamagedError(problems[TOKENIZER])
        files, lines = files_to_read(index, problems)
    for line in lines:
        tell(line)
    return files


@contextmanager
def opened(path: Path, index: Index, advance: Advance, tell: Callable[[str], None]) -> Iterator[StoredBoxes]:
    """Verify all files of a checkpoint like `verified_files`, and yield the checkpoint for reading."""
    stored = StoredBoxes(path, index, verified_files(path, index, advance, tell), advance)
    try:
        yield stored
    finally:
        stored.close()


def state_bytes(index: Index, kinds: int | None = None) -> int:
    """Return the size in bytes of all buffers, and of the first `kinds` kinds of values for all parameters."""
    of_parameters = (len(index.kinds) if kinds is None else kinds) * sum(map(prod, index.shapes.values()))
    return (of_parameters + sum(map(prod, index.buffers.values()))) * ITEM_BYTES[index.dtype]


def all_bytes(index: Index) -> int:
    """Return the total size in bytes of all files of a checkpoint except the index."""
    return sum(file.size for file in index.files.values())


# --- replicas of boxes ---


def files_to_read(index: Index, problems: Mapping[str, str]) -> tuple[dict[str, PartFile], list[str]]:
    """Return intact files that contain all boxes. For each damaged file, also return a line with its replacements.

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
    """Find intact files that together contain all boxes of the file `name`. Return None if a box has no intact copy."""
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
    """Return lines about damaged files of a checkpoint and whether training can resume, or [] if all are intact."""
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
