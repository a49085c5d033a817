"""A check for a full disk."""

from __future__ import annotations

import os
from pathlib import Path

FULL_BELOW_BYTES = 64 << 10  # a page or two may be left of a full disk


def is_full(directory: Path) -> bool:
    """Return True if no bytes or no files can be added there, so that logs and failure files may be missing."""
    try:
        there = os.statvfs(directory)
    except OSError:
        return False
    no_inode = there.f_files > 0 and there.f_favail == 0  # some file systems do not count them
    return no_inode or there.f_bavail * there.f_frsize < FULL_BELOW_BYTES
