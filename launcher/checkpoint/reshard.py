"""A checkpoint as another layout would have written it.

Which boxes its files hold then, the trainer says: `launcher/trainer/checkpoint/owners.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.checkpoint.finish import finish
from launcher.checkpoint.index import BUFFERS, TOKENIZER, NamedBox
from launcher.checkpoint.tensors import Bytes, StoredBoxes, write_boxes
from launcher.core.atomic import new_directory
from launcher.core.frozen import frozen
from launcher.core.records import Layout

PLAN_MARK = "tlaunch-plan: "  # begins the line that holds a plan, among others that imported packages may write


@frozen
class FilePlan:
    name: str
    boxes: tuple[NamedBox, ...]


@frozen
class Plan:
    """The files of tensors of a checkpoint."""

    files: tuple[FilePlan, ...]


def reshard(
    stored: StoredBoxes,
    plan: Plan,
    layout: Layout,
    output: Path,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Write the state of a checkpoint to a new one, which is whole or not there.

    `settings` are the training's, where others than the checkpoint's decide what a rank holds.

    Raises:
        DamagedError: the checkpoint lacks some element.
        OSError: `output` exists, the disk is full, ...
    """
    with new_directory(output) as aside:
        files = {
            file.name: write_boxes(
                aside / file.name,
                file.boxes,
                stored.index.dtype,
                _contents(stored, file.boxes),
                kinds=stored.index.kinds,
                synced=False,
            )
            for file in plan.files
        }
        for name in (TOKENIZER, BUFFERS):  # the same on every layout
            if name in stored.index.files:
                (aside / name).write_bytes((stored.path / name).read_bytes())
                files[name] = stored.index.files[name]
        settings = stored.index.settings if settings is None else settings
        finish(aside, dataclasses.replace(stored.index, layout=layout, files=files, settings=settings))


def _contents(stored: StoredBoxes, boxes: Sequence[NamedBox]) -> Iterator[Bytes]:
    for kind in range(len(stored.index.kinds)):
        for each in boxes:
            yield from stored.blocks(kind, each.name, each.box)
