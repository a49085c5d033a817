"""Write aside, then rename: a reader sees the old file or the new one, never half of one."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
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


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Give a directory beside `path` to fill; rename it into place on success, remove it on any failure.

    Its files reach the disk before the name does, and parents are made. Nothing that exists is ever replaced.

    Raises:
        OSError: `path` exists, its parent is not writable, the disk is full, ...
    """
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    aside.mkdir(parents=True)
    try:
        yield aside
        for file in aside.iterdir():
            with file.open("rb") as written:
                os.fsync(written.fileno())
        aside.rename(path)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


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
