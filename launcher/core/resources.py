"""Find what ships with tlaunch, beside the package in a checkout or inside it once installed; and a fingerprint of its code."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from launcher.core import env
from launcher.core.errors import UsageError
from launcher.core.run_dir import DEFAULT_RUNS_DIR

PACKAGE = Path(__file__).resolve().parents[1]
# `python START ARGUMENTS` is `tlaunch ARGUMENTS`; see tlaunch/__main__.py. Links are kept: other servers may resolve them otherwise.
START = str(Path(__file__).absolute().parents[2] / "tlaunch")
# What Python is given in START's place where that is unknown, as in an image.
START_BY_NAME = ("-c", "import sys; sys.path[:] = filter(None, sys.path); from tlaunch.__main__ import main; main()")


def module_argv(module: str, *arguments: str) -> tuple[str, ...]:
    """Return a command that runs one of tlaunch's modules, whatever the current directory or PYTHONPATH have of that name."""
    return (sys.executable, START, "-m", module, *arguments)


def data_dir(name: str) -> Path:
    """Return the directory `name` ("rank_tables", "templates") of a checkout or of an installed wheel."""
    installed = PACKAGE / "_data" / name
    return installed if installed.is_dir() else PACKAGE.parent / name


def stand_in_note(name: str, kind: str, packaged: Path) -> str:
    """Return the note that the packaged file is used because the file `name` is missing."""
    return f"note: {name} is not here; the packaged {kind} {packaged} is used"


def at_home(path: str) -> str:
    """Return a path with a leading `~` replaced by the home directory, which bash leaves as it is in `--runs-dir=~/runs`.

    Raises:
        UsageError: the home directory is unknown.
    """
    found = os.path.expanduser(path) if path.startswith("~") else path  # noqa: PTH111 - as in `state_dir`
    if found == "~" or found.startswith("~/"):
        raise UsageError(f"{path}: the home directory is unknown", hint="set HOME, or write an absolute path")
    return found


def usual_runs_dir() -> Path:
    """Return the directory of runs if no option names one: $TLAUNCH_RUNS_DIR, else `runs`."""
    return Path(at_home(os.environ.get(env.TLAUNCH_RUNS_DIR) or "") or DEFAULT_RUNS_DIR)


def cache_dir() -> Path:
    """Return the directory for files that tlaunch can make again. It is not created here."""
    if chosen := os.environ.get(env.TLAUNCH_CACHE_DIR):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "tlaunch"


def state_dir() -> Path | None:
    """Return the directory for what is worth keeping of this user's, but no one needs; None without one. It is not created here."""
    base = os.path.expanduser(os.environ.get("XDG_STATE_HOME") or "~/.local/state")  # noqa: PTH111 - Path's raises without a home
    return Path(base, "tlaunch") if base.startswith("/") else None


def writable_dir(preferred: Path) -> Path:
    """Return `preferred`, or the cache directory where nothing can be written there; it exists then.

    Raises:
        OSError: it cannot be made.
    """
    directory = preferred if os.access(preferred, os.W_OK) else cache_dir()
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def fingerprint() -> str:
    """Return a digest of the names and sizes of this package's modules, which is quick on a network file system too."""
    found = sorted(_modules(str(PACKAGE), ""))
    from hashlib import sha256  # noqa: PLC0415 - loads OpenSSL

    return sha256(repr(found).encode()).hexdigest()[:12]


def _modules(directory: str, name: str) -> Iterator[tuple[str, int]]:
    with os.scandir(directory) as entries:
        for entry in entries:
            module, dot, suffix = entry.name.partition(".")
            if not module.isidentifier():  # an editor's
                continue
            if suffix == "py":
                with suppress(OSError):
                    yield f"{name}{entry.name}", entry.stat().st_size
            elif not dot and not module.startswith("_") and entry.is_dir():
                yield from _modules(entry.path, f"{name}{entry.name}/")
