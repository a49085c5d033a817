"""The end of every checkpoint that is written: what describes its other files, and nothing else beside them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from launcher.checkpoint.copies import has_copies
from launcher.checkpoint.index import INDEX, STRATEGY, Index, index_of, index_text, schema_of
from launcher.checkpoint.strategy import strategy_text
from launcher.checkpoint.tensors import write_digested


def finish(directory: Path, index: Index) -> None:
    """Write strategy and index, whose schema follows from the files, to where the files are; remove all others.

    Both are on the disk afterwards, but not their names: `launcher.core.atomic.name_directory` is what comes next.

    Raises:
        DamagedError: some element has no box, or two that differ.
        OSError: the disk is full, ...
    """
    strategy = write_digested(directory / STRATEGY, [strategy_text(index).encode()], synced=True)
    files = {**index.files, STRATEGY: strategy}
    index = dataclasses.replace(index, files=files)
    index = dataclasses.replace(index, schema=schema_of(index, has_copies=has_copies(files)))
    content = index_text(index).encode()
    index_of(content, directory / INDEX)  # raises
    write_digested(directory / INDEX, [content], synced=True)
    for path in list(directory.iterdir()):
        if path.name != INDEX and path.name not in files:
            path.unlink()
