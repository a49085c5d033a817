"""Read and write the tensor files of a checkpoint as arrays, and prepare the checkpoint directory.

Any box can be read, however the boxes were written.
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
from launcher.checkpoint.tensors import BLOCK_BYTES, places_in, write_boxes
from launcher.core.errors import TlaunchError, UnreadableError, UsageError
from launcher.mesh.boxes import Box, bounding
from launcher.trainer.parallel.world import World
from launcher.trainer.telemetry.heartbeat import getting_on

Bytes = NDArray[np.uint8]

NUMPY_DTYPES: Mapping[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F64": np.dtype("<f8")}
LOOK_S = 0.02
PROBE_BYTES = 4096
SEEN_WITHIN_S = 60.0  # until another server's files are visible on a slow network file system
SEEN_SOON_S = 5.0  # the same, if training can continue without checkpoints


def write_tensors(
    path: Path,
    boxes: Sequence[NamedBox],
    dtype: str,
    values: Iterable[NDArray[Any]],
    *,
    kinds: Sequence[str] = KINDS,
    synced: bool = True,
) -> PartFile:
    """Write `values`, which are ordered first as in `kinds` and then as in `boxes`, to a safetensors file.

    Arrays in `values` need not end where a box ends. With `synced`, the file is on disk when this returns.

    Raises:
        OSError: for example, the disk is full.
    """
    contents = (array.reshape(-1).view(np.uint8).data for array in values)
    return write_boxes(path, boxes, dtype, contents, kinds=kinds, synced=synced)


def assemble(
    path: Path, parts: Mapping[str, PartFile], dtype: str, names: Iterable[str], *, kinds: Sequence[str] = KINDS
) -> PartFile:
    """Combine several files of a directory into a single file in which each parameter has one box.

    `names` is the order of parameters. Needs memory for a few blocks only. The file is on disk when this returns.

    Raises:
        OSError: for example, the disk is full.
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
    """Reads any box (a range in each dim) of the tensors in several memory-mapped files of a directory."""

    def __init__(
        self, directory: Path, files: Mapping[str, PartFile], dtype: str, kinds: Sequence[str] = KINDS
    ) -> None:
        """Prepare to read tensor files in `directory`. If several files contain the same box, the first is used."""
        self._directory, self._dtype, self._kinds = directory, NUMPY_DTYPES[dtype], kinds
        self._places = places_in(files, dtype)
        self._opened: dict[str, Bytes] = {}

    def holds(self, name: str) -> bool:
        return name in self._places

    def extent(self, name: str) -> Box:
        boxes = list(self._places[name])
        extent = bounding(boxes)
        assert sum(box.count for box in boxes) == extent.count, "the parts of a slice have no gaps"
        return extent

    def pieces(self, name: str, wanted: Box) -> Iterator[tuple[tuple[slice, ...], list[NDArray[Any]]]]:
        """Yield the stored pieces of the box `wanted`: for each piece, its position in the box and one array per kind.

        Raises:
            OSError: a file cannot be read.
        """
        for box, place in self._places.get(name, {}).items():
            if common := box.common(wanted):
                if place.file not in self._opened:
                    self._opened[place.file] = np.memmap(self._directory / place.file, dtype=np.uint8, mode="r")
                values = []
                for kind in range(len(self._kinds)):
                    start = place.start_bytes + kind * place.kind_bytes
                    content = self._opened[place.file][start : start + box.count * self._dtype.itemsize]
                    # For a tensor without dims, numpy returns a scalar.
                    values.append(np.asarray(content.view(self._dtype).reshape(box.size)[common.within(box)]))
                yield common.within(wanted), values


def prepared(
    directory: Path,
    world: World,
    on_unwritable: Callable[[str], object] | None = None,
    seen_within_s: float = SEEN_WITHIN_S,
) -> str:
    """Create the checkpoint directory, remove files of killed writers, and check that all ranks see the directory.

    Return a token of this writer. All ranks must call it. If the directory is not writable but contains a checkpoint,
    `on_unwritable` receives the reason on rank 0. Without `on_unwritable`, or without a checkpoint, this is an error.
    Each rank waits at most `seen_within_s` for a file that rank 0 creates in the directory.

    Raises:
        TlaunchError: on every rank, if the directory cannot be created or written, or is not shared by all ranks.
    """
    token = os.urandom(4).hex()

    def prepare() -> bytes:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            remove_partials(directory)
            # An empty file could be created even on a full disk. Its name marks it as incomplete, so that it is removed
            # after a kill.
            (directory / partial_name(0, token)).write_bytes(bytes(PROBE_BYTES))
        except OSError as error:
            told = f"cannot write checkpoints to {directory}: {error.strerror or error}"
            if on_unwritable is None or not checkpoints_in(directory):
                raise UnreadableError(told) from error
            on_unwritable(told)
            return b""
        return token.encode()

    def tidy() -> bytes:
        probe.unlink(missing_ok=True)
        return b""

    if not (shared := world.from_rank_0(prepare).decode()):
        return world.from_rank_0(token.encode).decode()
    probe = directory / partial_name(0, shared)
    try:
        world.while_others_wait(partial(_see, probe, seen_within_s))
    except TlaunchError:  # on every rank
        world.from_rank_0(tidy)
        raise
    world.from_rank_0(tidy)
    return shared


def _see(probe: Path, seen_within_s: float) -> None:
    deadline_s = time.monotonic() + seen_within_s
    while not probe.exists():
        if time.monotonic() > deadline_s:
            raise UsageError(
                f"all ranks must share {probe.parent}, but this rank cannot find the test file of rank 0",
                hint="set `--runs-dir` to a directory that all servers share",
            )
        getting_on()
        time.sleep(LOOK_S)
