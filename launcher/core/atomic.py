"""Write aside, then rename: a reader sees the old file or the new one, never half of one."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# What a file system says that knows one name per file
_NO_HARD_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


@contextmanager
def replacing(path: Path, *, replace: bool = True) -> Iterator[Path]:
    """Give a path beside `path` to write to; rename it into place on success, remove it on any failure.

    The data reach the disk before the name does. Works for one file; may be used again for the same path. Without
    `replace` whatever is called `path` by then stays, and this fails.

    Raises:
        FileExistsError: `path` exists, and `replace` is false.
        OSError: the directory is not writable, the disk is full, ...
    """
    aside = path.with_name(f".{path.name}.{os.urandom(4).hex()}.partial")
    try:
        yield aside
        with aside.open("rb") as written:
            os.fsync(written.fileno())
        if not replace:
            _claim(path, aside)
        aside.replace(path)  # where `_claim` made a second name of the same file, POSIX has this do nothing
    finally:
        aside.unlink(missing_ok=True)


def _claim(path: Path, aside: Path) -> None:
    """Make `path`, in which only one process succeeds: a second name of `aside`, or an empty file without hard links."""
    try:
        path.hardlink_to(aside)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        path.touch(exist_ok=False)


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Give a directory beside `path` to fill; rename it into place on success, remove it on any failure.

    Its files reach the disk before the name does, and parents are made. Nothing that exists is ever replaced.

    Raises:
        OSError: `path` exists, its parent is not writable, the disk is full, ...
    """
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    aside = path.with_name(f".{path.name}.{os.urandom(4).hex()}.partial")
    aside.mkdir(parents=True)
    try:
        yield aside
        for file in aside.iterdir():
            with file.open("rb") as written:
                os.fsync(written.fileno())
        aside.rename(path)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def write_text(path: Path, text: str, *, mode: int = 0o644, replace: bool = True) -> None:
    """Replace `path` by `text` (UTF-8) in one step, with permissions `mode`.

    Raises:
        FileExistsError: `path` exists, and `replace` is false.
        OSError: the directory is not writable, the disk is full, ...
    """
    with replacing(path, replace=replace) as aside:
        aside.touch(mode=mode)
        aside.write_text(text, encoding="utf-8")


def point_link(link: Path, target: str) -> None:
    """Make the symbolic link `link` point to `target` (relative to the link) in one step."""
    aside = link.with_name(f".{link.name}.{os.urandom(4).hex()}.partial")
    aside.symlink_to(target)
    try:
        aside.replace(link)
    finally:
        aside.unlink(missing_ok=True)
