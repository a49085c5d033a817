"""Write aside, then rename: a reader sees the old file or the new one, never half of one."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# What a file system says that knows one name per file
_NO_HARD_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextmanager
def replacing(path: Path, *, replace: bool = True) -> Iterator[Path]:
    """Give a path beside `path` to write to; rename it into place on success, remove it on any failure.

    The data reach the disk before the name does. Works for one file; may be used again for the same path. Without
    `replace` whatever is called `path` by then stays, and this fails.

    Raises:
        FileExistsError: `path` exists, and `replace` is false.
        OSError: the directory is not writable, the disk is full, ...
    """
    aside = _aside_of(path)
    try:
        with renamed_error(path, aside):
            yield aside
            with aside.open("rb") as written:
                os.fsync(written.fileno())
            if not replace:
                _claim(path, aside)
            aside.replace(path)  # where `_claim` made a second name of the same file, POSIX has this do nothing
    finally:
        _remove_aside(aside)


def _remove_aside(aside: Path) -> None:
    with suppress(OSError):  # what has failed before says more
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

    Its files and their names reach the disk before its own name does, and parents are made. Nothing that exists is ever
    replaced.

    Raises:
        OSError: `path` exists, its parent is not writable, the disk is full, ...
    """
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    aside = _aside_of(path)
    try:
        with renamed_error(path, aside):
            aside.mkdir(parents=True)
            yield aside
            for file in aside.iterdir():
                with file.open("rb") as written:
                    os.fsync(written.fileno())
            name_directory(aside, path)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def name_directory(aside: Path, path: Path) -> None:
    """Call a directory `path`, whose files are on the disk: the names in it reach the disk before, its own before this returns.

    Raises:
        OSError: `path` exists, its parent is not writable, ...
    """
    _sync_names(aside)
    aside.rename(path)
    _sync_names(path.parent)


@contextmanager
def renamed_error(path: Path, aside: Path) -> Iterator[None]:
    """Have an OSError that names `aside`, or a file in it, name `path` or that file there: nobody knows the name of `aside`.

    One of a full disk, which names no file, names `path`.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in _FULL:
            error.filename = str(path)
        if isinstance(error.filename, str) and (found := Path(error.filename)).is_relative_to(aside):
            error.filename = str(path / found.relative_to(aside))
            del error.filename2  # of a rename, `path`
        raise


def _sync_names(directory: Path) -> None:
    """Have the names in a directory reach the disk, where its file system knows how, and this process may read them."""
    try:
        descriptor = os.open(directory, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOTSUP}:
            raise
    finally:
        os.close(descriptor)


def _aside_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.urandom(4).hex()}.partial")


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
    aside = _aside_of(link)
    try:
        with renamed_error(link, aside):
            aside.symlink_to(target)
            aside.replace(link)
    finally:
        _remove_aside(aside)
