"""Modules that this package imported for its own sake, and that must not be taken for the program's of the same name."""

from __future__ import annotations

import os
import sys

from . import LOADED_BEFORE

_own: set[str] = set()


def note_imports() -> None:
    """Note what is imported now as this package's. Call before anything is imported for the program."""
    _own.update(set(sys.modules) - LOADED_BEFORE)


def forget_collisions() -> None:
    """Let the program import its own `struct.py` where this package had imported the library's.

    Only where there is such a file: loading a module of the library twice is harmless, but not free.
    """
    if not (_own and sys.path):
        return
    try:
        beside = {name.partition(".")[0] for name in os.listdir(sys.path[0] or ".")}
    except OSError:
        return
    for name in _own:
        if name.partition(".")[0] in beside:
            sys.modules.pop(name, None)
