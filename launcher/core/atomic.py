"""Write aside, then rename: a reader sees the old file or the new one, never half of one."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a path beside `path` to write to; rename it into place on success, remove it on any failure.

    The data reach the disk before the name does. Works for one file; may be used again for the same path.

    Raises:
        OSError: the directory is not writable, the disk is full, ...
    """
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        yield aside
        with aside.open("rb") as written:
            os.fsync(written.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def write_text(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Replace `path` by `text` (UTF-8) in one step, with permissions `mode`."""
    with replacing(path) as aside:
        aside.touch(mode=mode)
        aside.write_text(text, encoding="utf-8")


def point_link(link: Path, target: str) -> None:
    """Make the symbolic link `link` point to `target` (relative to the link) in one step."""
    aside = link.with_name(f".{link.name}.{secrets.token_hex(4)}.partial")
    aside.symlink_to(target)
    try:
        aside.replace(link)
    finally:
        aside.unlink(missing_ok=True)
