"""A checkpoint as another layout would have written it.

Which boxes its files hold then, the trainer says: `launcher/trainer/checkpoint/owners.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from launcher.checkpoint.copies import has_copies
from launcher.checkpoint.index import (
    INDEX,
    KINDS,
    SCHEMA,
    SCHEMA_OF_COPIES,
    STRATEGY,
    TOKENIZER,
    Index,
    NamedBox,
    PartFile,
    index_of,
    index_text,
)
from launcher.checkpoint.strategy import strategy_text
from launcher.checkpoint.tensors import Bytes, StoredBoxes, write_boxes, write_digested
from launcher.core.atomic import new_directory
from launcher.core.frozen import frozen
from launcher.core.records import Layout


@frozen
class FilePlan:
    name: str
    boxes: tuple[NamedBox, ...]


@frozen
class Plan:
    """The files of tensors of a checkpoint."""

    files: tuple[FilePlan, ...]


def reshard(stored: StoredBoxes, plan: Plan, layout: Layout, output: Path) -> None:
    """Write the state of a checkpoint to a new one, which is whole or not there.

    Raises:
        DamagedError: the checkpoint lacks some element.
        OSError: `output` exists, the disk is full, ...
    """
    with new_directory(output) as aside:
        files = {
            file.name: write_boxes(
                aside / file.name, file.boxes, stored.index.dtype, _contents(stored, file.boxes), synced=False
            )
            for file in plan.files
        }
        (aside / TOKENIZER).write_bytes((stored.path / TOKENIZER).read_bytes())
        files[TOKENIZER] = stored.index.files[TOKENIZER]
        schema = SCHEMA_OF_COPIES if has_copies(files) else SCHEMA
        _finish(aside, dataclasses.replace(stored.index, layout=layout, files=files, schema=schema))


def _contents(stored: StoredBoxes, boxes: Sequence[NamedBox]) -> Iterator[Bytes]:
    for kind in range(len(KINDS)):
        for each in boxes:
            yield from stored.blocks(kind, each.name, each.box)


def _finish(directory: Path, index: Index) -> None:
    """Write strategy and index."""
    size, digest = write_digested(directory / STRATEGY, [strategy_text(index).encode()], synced=False)
    index = dataclasses.replace(index, files={**index.files, STRATEGY: PartFile(size, digest)})
    content = index_text(index).encode()
    index_of(content, directory / INDEX)  # raises if an element has no box, or two that differ
    (directory / INDEX).write_bytes(content)
