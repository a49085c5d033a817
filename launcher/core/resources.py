"""Find the data that ships with tlaunch: beside the package in a checkout, inside it once installed."""

from __future__ import annotations

import os
from pathlib import Path

from launcher.core import env

PACKAGE = Path(__file__).resolve().parents[1]


def data_dir(name: str) -> Path:
    """The directory `name` ("rank_tables", "templates"), from a checkout or from an installed wheel."""
    installed = PACKAGE / "_data" / name
    return installed if installed.is_dir() else PACKAGE.parent / name


def stand_in_note(name: str, kind: str, packaged: Path) -> str:
    """What is said where packaged data is taken instead of the file `name`, which is not there."""
    return f"note: {name} is not here; the packaged {kind} {packaged} is used"


def cache_dir() -> Path:
    """Where tlaunch keeps what it can make again. Not created here."""
    if chosen := os.environ.get(env.TLAUNCH_CACHE_DIR):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "tlaunch"
