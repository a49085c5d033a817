"""Complete a checkpoint: write the files that describe the others, and remove unknown files."""

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
    with_schema,
)
from launcher.checkpoint.strategy_file import strategy_text
from launcher.checkpoint.tensors import write_digested
from launcher.core.atomic import write_text


def finish(directory: Path, index: Index) -> None:
    """Write strategy and index next to the tensor files, and remove all other files. The schema follows from the files.

    Both files are synced to disk. Their directory entries are not: call `launcher.core.atomic.name_directory` next.
    Raises DamagedError if an element is in no box, or boxes overlap, and OSError, for example if the disk is full.
    """
    strategy = write_digested(directory / STRATEGY, [strategy_text(index).encode()], synced=True)
    files = {**index.files, STRATEGY: strategy}
    content = index_text(with_schema(dataclasses.replace(index, files=files))).encode()
    index_of(content, directory / INDEX)  # raises
    write_digested(directory / INDEX, [content], synced=True)
    for path in list(directory.iterdir()):
        if path.name != INDEX and path.name not in files:
            path.unlink()


def record_validation(checkpoint: Path, loss: float | None, validations: Validations) -> None:
    """Replace the validation loss and counters in a checkpoint's index. A loss that is not finite is recorded as None.

    Raises UnreadableError if the index is missing, damaged or of another version, and OSError, for example if the disk
    is full.
    """
    known = loss if loss is not None and math.isfinite(loss) else None
    index = dataclasses.replace(read_index(checkpoint), validation_loss=known, validations=validations)
    write_text(checkpoint / INDEX, index_text(with_schema(index)))


def set_aside(directory: Path, step: int) -> Path | None:
    """Rename the checkpoint of `step` to `step-N.not-finite`, and return its new path.

    Only the newest checkpoint is renamed, and only if an older one is left. Otherwise return None. `--resume` ignores a
    renamed checkpoint unless it is named. Raises OSError if the directory cannot be read or written.
    """
    newest, *older = checkpoints_in(directory) or [directory]
    if newest.name != name_of(step) or not older:
        return None
    aside = newest.with_name(f"{newest.name}.not-finite")
    if aside.exists():
        shutil.rmtree(aside)
    return newest.rename(aside)
