"""Locate files that ship with tlaunch, and the user's directories; compute a fingerprint of the code."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from launcher.core import env
from launcher.core.errors import UnreadableError, UsageError
from launcher.core.run_dir import DEFAULT_RUNS_DIR

PACKAGE = Path(__file__).resolve().parents[1]
# `python START ARGUMENTS` runs `tlaunch ARGUMENTS` (tlaunch/__main__.py). Not resolved: servers may differ in links.
START = str(Path(__file__).absolute().parents[2] / "tlaunch")
CALL_FUNCTION = str(PACKAGE / "preload" / "call_function.py")  # the program of ranks that call a Python function
# Replaces START in a Python command if the path is unknown, as in a container image.
START_BY_NAME = ("-c", "import sys; sys.path[:] = filter(None, sys.path); from tlaunch.__main__ import main; main()")


def module_argv(module: str, *arguments: str) -> tuple[str, ...]:
    """Return a command that runs a module of tlaunch. The current directory and PYTHONPATH cannot shadow the module."""
    return (sys.executable, START, "-m", module, *arguments)


def called_function(argv: Sequence[str]) -> str | None:
    """Return the name of the function that ranks with this command call for `tlaunch.launch`, or None."""
    return argv[2] if len(argv) > 2 and argv[1] == CALL_FUNCTION else None


def data_dir(name: str) -> Path:
    """Return the path of a data directory, such as "templates", in a checkout or an installed wheel."""
    installed = PACKAGE / "_data" / name
    return installed if installed.is_dir() else PACKAGE.parent / name


def stand_in_note(name: str, kind: str, packaged: Path) -> str:
    return f"note: {name} not found; using the packaged {kind} {packaged}"


def at_home(path: str) -> str:
    """Expand a leading `~`, which shells do not expand in `--runs-dir=~/runs`. Raises UsageError if HOME is unknown."""
    found = os.path.expanduser(path) if path.startswith("~") else path  # noqa: PTH111 - as in `state_dir`
    if found == "~" or found.startswith("~/"):
        raise UsageError(f"{path}: the home directory is unknown", hint="set HOME, or write an absolute path")
    return found


def usual_runs_dir() -> Path:
    return Path(at_home(os.environ.get(env.TLAUNCH_RUNS_DIR) or "") or DEFAULT_RUNS_DIR)


def cache_dir() -> Path:
    """Return the cache directory, which contains files that tlaunch can regenerate. Does not create it."""
    if chosen := os.environ.get(env.TLAUNCH_CACHE_DIR):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "tlaunch"


def state_dir() -> Path | None:
    """Return the directory of the user's persistent state, or None without a home directory. Does not create it."""
    base = os.path.expanduser(os.environ.get("XDG_STATE_HOME") or "~/.local/state")  # noqa: PTH111 - does not raise
    return Path(base, "tlaunch") if base.startswith("/") else None


def writable_cache_dir() -> Path:
    """Return the cache directory. Create it if it is missing. Raises UnreadableError if it is not writable."""
    directory = cache_dir()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror
    else:
        reason = None if os.access(directory, os.W_OK) else "it is not writable"
    if reason is not None:
        raise UnreadableError(
            f"cannot use the cache directory {directory}: {reason}",
            hint=f"set {env.TLAUNCH_CACHE_DIR} to a writable directory",
        )
    return directory


def fingerprint() -> str:
    """Return a digest of tlaunch's own modules. It covers only their names and sizes, to be fast."""
    found = sorted(_modules(str(PACKAGE), ""))
    from hashlib import sha256  # noqa: PLC0415 - loads OpenSSL

    return sha256(repr(found).encode()).hexdigest()[:12]


def _modules(directory: str, name: str) -> Iterator[tuple[str, int]]:
    with os.scandir(directory) as entries:
        for entry in entries:
            module, dot, suffix = entry.name.partition(".")
            if not module.isidentifier():  # an editor's temporary file
                continue
            if suffix == "py":
                with suppress(OSError):
                    yield f"{name}{entry.name}", entry.stat().st_size
            elif not dot and not module.startswith("_") and entry.is_dir():
                yield from _modules(entry.path, f"{name}{entry.name}/")
