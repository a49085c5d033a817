"""Configures the C library to reuse freed memory for the next tensors."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_MEMORY_KEPT_BYTES = 1 << 30
_MOST_OF_OLDER_GLIBC_BYTES = 32 << 20  # the largest mmap threshold that older versions accept


def keep_freed_memory() -> None:
    """Make the C library keep freed memory for reuse in the next step instead of returning it to the system.

    By default glibc returns a step's activations to the system. Getting them back page by page takes up to a fifth of
    the time of a step on a CPU. Does nothing if the user configures malloc by environment variables.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return
    with suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL(None)
        # Setting either threshold ends glibc's dynamic choice of the other. Set the second only if the first succeeds.
        if any(libc.mallopt(_MMAP_THRESHOLD, size) for size in (_MEMORY_KEPT_BYTES, _MOST_OF_OLDER_GLIBC_BYTES)):
            libc.mallopt(_TRIM_THRESHOLD, _MEMORY_KEPT_BYTES)
