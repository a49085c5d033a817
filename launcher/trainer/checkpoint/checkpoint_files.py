"""A checkpoint's files of tensors, written box after box, and read by any box, whatever boxes they were written by.

Beside that, what else has to do with disks and directories.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from launcher.checkpoint.index import KINDS, NamedBox, PartFile, checkpoints_in, partial_name, remove_partials
from launcher.checkpoint.tensors import BLOCK_BYTES, Place, places_in, write_boxes
from launcher.core.errors import UnreadableError, UsageError
from launcher.mesh.boxes import Box, bounding
from launcher.trainer.parallel.world import World
from launcher.trainer.telemetry.heartbeat import getting_on

Bytes = NDArray[np.uint8]

NUMPY_DTYPES: Mapping[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F64": np.dtype("<f8")}
LOOK_S = 0.02
PROBE_BYTES = 4096
SEEN_WITHIN_S = 60.0  # what another server has written: a network file system may take its time


def write_tensors(
    path: Path,
    boxes: Sequence[NamedBox],
    dtype: str,
    values: Iterable[NDArray[Any]],
    *,
    kinds: Sequence[str] = KINDS,
    synced: bool = True,
) -> PartFile:
    """Write a safetensors file of the boxes: of all of them kinds[0], then kinds[1], and so on, which `values` yield in turn.

    The values of a box may come in several arrays, and one array may hold those of several. Where `synced`, all of it is on the
    disk afterwards.

    Raises:
        OSError: the disk is full, ...
    """
    contents = (array.reshape(-1).view(np.uint8).data for array in values)
    return write_boxes(path, boxes, dtype, contents, kinds=kinds, synced=synced)


def assemble(
    path: Path, parts: Mapping[str, PartFile], dtype: str, names: Iterable[str], *, kinds: Sequence[str] = KINDS
) -> PartFile:
    """Write one file of files beside it, with a box of each parameter that holds all that they hold of it.

    `names` gives the order. It takes the memory of a few blocks, and is on the disk afterwards.

    Raises:
        OSError: the disk is full, ...
    """
    stored = StoredTensors(path.parent, parts, dtype, kinds)
    boxes = [NamedBox(name, stored.extent(name)) for name in names if stored.holds(name)]
    most = BLOCK_BYTES // NUMPY_DTYPES[dtype].itemsize

    def values() -> Iterator[NDArray[Any]]:
        for kind in range(len(kinds)):
            for each in boxes:
                for box in each.box.rows(most):
                    whole = np.empty(box.size, NUMPY_DTYPES[dtype])
                    for here, found in stored.pieces(each.name, box):
                        whole[here] = found[kind]
                    yield whole

    return write_tensors(path, boxes, dtype, values(), kinds=kinds)


class StoredTensors:
    """The tensors of some files of one directory, of which any box can be read: they are mapped, and not loaded."""

    def __init__(
        self, directory: Path, files: Mapping[str, PartFile], dtype: str, kinds: Sequence[str] = KINDS
    ) -> None:
        """Map the boxes of `files`, in `directory`, which hold `kinds`; one that stands in several is read from the first."""
        self._directory, self._dtype, self._kinds = directory, NUMPY_DTYPES[dtype], kinds
        self._places = places_in(files, dtype)
        self._opened: dict[str, Bytes] = {}

    def holds(self, name: str) -> bool:
        return name in self._places

    def extent(self, name: str) -> Box:
        """Return the box that all boxes of a parameter make up."""
        boxes = list(self._places[name])
        extent = bounding(boxes)
        assert sum(box.count for box in boxes) == extent.count, "parts of one slice leave nothing out"
        return extent

    def pieces(self, name: str, wanted: Box) -> Iterator[tuple[tuple[slice, ...], list[NDArray[Any]]]]:
        """Yield what there is of a box of a parameter: where in the box it belongs, and its values, read-only, of each of the kinds.

        Raises:
            OSError: a file cannot be read.
        """
        for box, place in self._places.get(name, {}).items():
            if common := box.common(wanted):
                here = common.within(box)
                # Of a tensor without dims, numpy gives a number.
                values = [np.asarray(self._values(place, box, kind)[here]) for kind in range(len(self._kinds))]
                yield common.within(wanted), values

    def _values(self, place: Place, box: Box, kind: int) -> NDArray[Any]:
        if place.file not in self._opened:
            self._opened[place.file] = np.memmap(self._directory / place.file, dtype=np.uint8, mode="r")
        start = place.start_bytes + kind * place.kind_bytes
        content = self._opened[place.file][start : start + box.count * self._dtype.itemsize]
        return content.view(self._dtype).reshape(box.size)


def prepared(directory: Path, world: World, on_unwritable: Callable[[str], object] | None = None) -> str:
    """Make a directory, if need be, that all ranks see and in which nothing is left of a writer that was killed.

    Return a token of this writer. All ranks must call it. `on_unwritable` gets, on rank 0, why nothing can be written there;
    with None, or where no checkpoint is there yet, that is an error.

    Raises:
        TlaunchError: on every rank alike, where the directory cannot be made or written to, or is not the same one for all.
    """
    token = os.urandom(4).hex()

    def prepare() -> bytes:
        try:
            _prepare(directory, token)
        except OSError as error:
            told = f"no checkpoint can be written to {directory}: {error.strerror or error}"
            if on_unwritable is None or not checkpoints_in(directory):
                raise UnreadableError(told) from error
            on_unwritable(told)
            return b""
        return token.encode()

    if not (shared := world.from_rank_0(prepare).decode()):
        return world.from_rank_0(token.encode).decode()
    token = shared
    world.while_others_wait(partial(_see, _probe(directory, token)))
    world.from_rank_0(partial(_tidy, _probe(directory, token)))
    return token


def _prepare(directory: Path, token: str) -> None:
    """Make the directory without what a killed writer has left, and in it a file that other ranks are to see."""
    directory.mkdir(parents=True, exist_ok=True)
    remove_partials(directory)
    _probe(directory, token).write_bytes(bytes(PROBE_BYTES))  # on a full disk an empty file can be made


def _probe(directory: Path, token: str) -> Path:
    """Return a path that is removed as all that a killed writer has left."""
    return directory / partial_name(0, token)


def _see(probe: Path) -> None:
    deadline_s = time.monotonic() + SEEN_WITHIN_S
    while not probe.exists():
        if time.monotonic() > deadline_s:
            raise UsageError(
                f"{probe.parent} of rank 0 is not seen by other ranks, and checkpoints belong into one directory",
                hint="a directory that all servers share, by --runs-dir",
            )
        getting_on()
        time.sleep(LOOK_S)


def _tidy(probe: Path) -> bytes:
    probe.unlink(missing_ok=True)
    return b""
