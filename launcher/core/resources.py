"""Find the data that ships with tlaunch: beside the package in a checkout, inside it once installed."""

from __future__ import annotations

import os
from pathlib import Path

from launcher.core import env

PACKAGE = Path(__file__).resolve().parents[1]


def data_dir(name: str) -> Path:
    """Return the directory `name` ("rank_tables", "templates") of a checkout or of an installed wheel."""
    installed = PACKAGE / "_data" / name
    return installed if installed.is_dir() else PACKAGE.parent / name


def stand_in_note(name: str, kind: str, packaged: Path) -> str:
    """Return the note that the packaged file is used because the file `name` is missing."""
    return f"note: {name} is not here; the packaged {kind} {packaged} is used"


def cache_dir() -> Path:
    """Return the directory for files that tlaunch can make again. It is not created here."""
    if chosen := os.environ.get(env.TLAUNCH_CACHE_DIR):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "tlaunch"
