"""Atomic writes: write to a temporary path, then rename it. Readers never see a partial file."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Errors of file systems without hard links
_NO_HARD_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextmanager
def replacing(path: Path, *, replace: bool = True) -> Iterator[Path]:
    """Yield a temporary path next to `path`. Rename it to `path` on success, and remove it on failure.

    The file is synced to disk before the rename. Raises OSError, for example if the directory is not writable or the
    disk is full. Without `replace`, raises FileExistsError if `path` exists.
    """
    aside = _aside_of(path)
    try:
        with renamed_error(path, aside):
            yield aside
            with aside.open("rb") as written:
                os.fsync(written.fileno())
            if not replace:
                _claim(path, aside)
            aside.replace(path)  # does nothing after `_claim` made a hard link, because both names are one file
    finally:
        with suppress(OSError):  # an earlier error is more useful
            aside.unlink(missing_ok=True)


def _claim(path: Path, aside: Path) -> None:
    """Create `path` exclusively, as a hard link to `aside` if possible. Raises FileExistsError if `path` exists."""
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
    """Yield a temporary directory next to `path`. Rename it to `path` on success, and remove it on failure.

    Creates parent directories. Files and their names are synced to disk before the rename. Raises OSError if `path`
    exists, its parent is not writable, the disk is full, ...
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
    """Rename the directory `aside` to `path`, and sync the rename to disk. The caller must sync the files before."""
    _sync_names(aside)
    aside.rename(path)
    _sync_names(path.parent)


@contextmanager
def renamed_error(path: Path, aside: Path) -> Iterator[None]:
    """If the block raises an OSError about the temporary path `aside`, replace `aside` with `path` in the error.

    A disk-full error without a file name gets `path`.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in _FULL:
            error.filename = str(path)
        if isinstance(error.filename, str) and (found := Path(error.filename)).is_relative_to(aside):
            error.filename = str(path / found.relative_to(aside))
            del error.filename2  # for a rename, this is `path`
        raise


def _sync_names(directory: Path) -> None:
    """Sync the entries of a directory to disk, if the file system supports it and the directory is readable."""
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
    """Write `text` to `path` atomically, in UTF-8 and with permissions `mode`. Raises OSError."""
    with replacing(path, replace=replace) as aside:
        aside.touch(mode=mode)
        aside.write_text(text, encoding="utf-8")


def point_link(link: Path, target: str) -> None:
    aside = _aside_of(link)
    try:
        with renamed_error(link, aside):
            aside.symlink_to(target)
            aside.replace(link)
    finally:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
