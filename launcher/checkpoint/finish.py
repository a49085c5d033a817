"""The end of every checkpoint that is written: what describes its other files, and nothing else beside them."""

from __future__ import annotations

import dataclasses
import math
import shutil
from pathlib import Path

from launcher.checkpoint.index import (
    INDEX,
    STRATEGY,
    Index,
    Validations,
    checkpoints_in,
    index_of,
    index_text,
    name_of,
    read_index,
    schema_of,
)
from launcher.checkpoint.replicas import has_copies
from launcher.checkpoint.strategy_file import strategy_text
from launcher.checkpoint.tensors import write_digested
from launcher.core.atomic import write_text


def finish(directory: Path, index: Index) -> None:
    """Write strategy and index, whose schema follows from the files, to where the files are; remove all others.

    Both are on the disk afterwards, but not their names: `launcher.core.atomic.name_directory` is what comes next.

    Raises:
        DamagedError: some element has no box, or two that differ.
        OSError: the disk is full, ...
    """
    strategy = write_digested(directory / STRATEGY, [strategy_text(index).encode()], synced=True)
    files = {**index.files, STRATEGY: strategy}
    content = index_text(_with_schema(dataclasses.replace(index, files=files))).encode()
    index_of(content, directory / INDEX)  # raises
    write_digested(directory / INDEX, [content], synced=True)
    for path in list(directory.iterdir()):
        if path.name != INDEX and path.name not in files:
            path.unlink()


def record_validation(checkpoint: Path, loss: float | None, validations: Validations) -> None:
    """Replace the validation loss and the count of validations in the index of a checkpoint; a loss that is not finite is left out.

    Raises:
        UnreadableError: the index is missing, damaged or of another version.
        OSError: the disk is full, ...
    """
    known = loss if loss is not None and math.isfinite(loss) else None
    index = dataclasses.replace(read_index(checkpoint), validation_loss=known, validations=validations)
    write_text(checkpoint / INDEX, index_text(_with_schema(index)))


def set_aside(directory: Path, step: int) -> Path | None:
    """Rename the checkpoint of `step` to `step-N.not-finite` if it is the newest and an older one is left; return its new path.

    `--resume` takes a renamed checkpoint only if the user names it.

    Raises:
        OSError: the directory cannot be read or written to.
    """
    newest, *older = checkpoints_in(directory) or [directory]
    if newest.name != name_of(step) or not older:
        return None
    aside = newest.with_name(f"{newest.name}.not-finite")
    if aside.exists():
        shutil.rmtree(aside)
    return newest.rename(aside)


def _with_schema(index: Index) -> Index:
    """Return the index with the oldest schema that can express it."""
    return dataclasses.replace(index, schema=schema_of(index, has_copies=has_copies(index.files)))
