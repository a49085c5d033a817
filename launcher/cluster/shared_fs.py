"""A probe for a shared file system: a server that sees the coordinator's mark file shares its run directory."""

from __future__ import annotations

import os
import secrets
import time
from contextlib import suppress

from launcher.core.run_dir import RunDir

_MARK = ".here."
LOOKS = 3
AGAIN_S = 0.1  # a network file system may hold on to what it knew a moment ago


def leave_mark(run_dir: RunDir) -> str | None:
    """Make a file whose name is drawn by lot; its name. None: nothing can be written there, so nothing can be copied."""
    mark = f"{_MARK}{secrets.token_hex(16)}"
    with suppress(OSError):
        (run_dir.root / mark).touch(exist_ok=False)
        return mark
    return None


def remove_marks(run_dir: RunDir) -> None:
    """Remove the marks of a coordinator that could not do it itself."""
    for path in run_dir.root.glob(f"{_MARK}*"):
        with suppress(OSError):
            path.unlink()


def remove_mark(run_dir: RunDir, mark: str | None) -> None:
    if mark is not None:
        with suppress(OSError):
            (run_dir.root / mark).unlink()


def sees_mark(run_dir: RunDir, mark: str) -> bool:
    """Return True if the mark file is here. Otherwise blocks for up to `LOOKS` * `AGAIN_S` seconds."""
    for look in range(LOOKS):
        if look:
            time.sleep(AGAIN_S)
        with suppress(OSError):
            if mark in os.listdir(run_dir.root):  # noqa: PTH208 - NFS asks its server again when a directory is opened
                return True
    return False
