"""Asks the C library to keep the memory that tensors free."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_MEMORY_KEPT_BYTES = 1 << 30
_MOST_OF_OLDER_GLIBC_BYTES = 32 << 20  # as a threshold of mmap


def keep_freed_memory() -> None:
    """Have the C library keep what the tensors of a step have freed for those of the next one.

    By default glibc gives a step's activations back to the system, which hands them out again page by page: up to a fifth
    of the time of a step on a CPU. Variables of the environment that say how it shall be come first.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return
    with suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL(None)
        # Either threshold ends glibc's own choice of the other, so the second one is set only if the first one was taken.
        if any(libc.mallopt(_MMAP_THRESHOLD, size) for size in (_MEMORY_KEPT_BYTES, _MOST_OF_OLDER_GLIBC_BYTES)):
            libc.mallopt(_TRIM_THRESHOLD, _MEMORY_KEPT_BYTES)
