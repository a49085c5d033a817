"""Which modules were imported for this package's own sake, and must not be taken for the program's of the same name."""

from __future__ import annotations

import os
import sys

from . import LOADED_BEFORE

_own: set[str] = set()


def note_imports() -> None:
    """Call when everything of this package's own is imported, before anything is for the program."""
    _own.update(set(sys.modules) - LOADED_BEFORE)


def forget_collisions() -> None:
    """Let the program import its own `struct.py` where this package had imported the library's.

    Only where there is such a file: loading a module of the library twice is harmless, but not free.
    """
    beside = _names_in(sys.path[0]) if _own and sys.path else set()
    for name in _own:
        if name.partition(".")[0] in beside:
            sys.modules.pop(name, None)


def _names_in(directory: str) -> set[str]:
    try:
        return {name.partition(".")[0] for name in os.listdir(directory or ".")}
    except OSError:
        return set()
