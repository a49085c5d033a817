"""The shared token of runs whose servers are started by hand.

If `TLAUNCH_COORDINATOR_TOKEN` is set, its value is the token. Otherwise the first server generates a token and stores
it in two files that only their owner can read: in the runs directory and in the user's state directory. Servers of a
cluster share at least one of these directories. Without a state directory, no token is generated.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from launcher.core import atomic, env
from launcher.core.regular_files import read_regular
from launcher.core.resources import state_dir

TOKEN_FILE = ".coordinator-token"  # noqa: S105 - a file name
_DRAWN = re.compile(r"[0-9a-f]{32}", re.ASCII)
_MAX_BYTES = 64
_MODE = 0o600


def draw_token(runs_dir: Path, environment: Mapping[str, str]) -> str:
    """Store and return the token that other servers must present. Return "" if there is no place to store it."""
    if chosen := environment.get(env.TLAUNCH_COORDINATOR_TOKEN):
        return chosen
    if (own := _own_file()) is None:
        return ""
    drawn = _read(runs_dir / TOKEN_FILE) or _read(own) or secrets.token_hex(16)
    token = (_kept(runs_dir / TOKEN_FILE, drawn) if runs_dir.is_dir() else None) or drawn
    if _kept(own, token) != token:  # for servers that share only the home directory
        with suppress(OSError):
            atomic.write_text(own, token, mode=_MODE)
    return token


def known_tokens(runs_dir: Path, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the tokens to try when joining the first server."""
    if chosen := environment.get(env.TLAUNCH_COORDINATOR_TOKEN):
        return (chosen,)
    own = _own_file()
    found = (_read(runs_dir / TOKEN_FILE), None if own is None else _read(own))
    known = tuple(dict.fromkeys(token for token in found if token))
    if own is None:  # the first server may have no token, either; the runs directory may have an old one
        return (*known, "")
    # A random token, which is always rejected: the first server has not stored its token yet, or not on a shared disk.
    return known or (secrets.token_hex(16),)


def _own_file() -> Path | None:
    """Return the path of the token file in the user's state directory, or None if this directory is missing."""
    directory = state_dir()
    if directory is not None:
        with suppress(OSError):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            return directory / TOKEN_FILE
    return None


def _kept(path: Path, token: str) -> str | None:
    """Write the token unless the file exists, and return the token that the file then contains."""
    with suppress(OSError):
        atomic.write_text(path, token, mode=_MODE, replace=False)
    return _read(path)


def _read(path: Path) -> str | None:
    """Return the token in a file. Return None if the file has no token or other users can access the file."""

    def check(found: os.stat_result) -> None:
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise PermissionError(errno.EACCES, "other users can read it")

    with suppress(OSError):
        text = "" if path.is_symlink() else read_regular(path, _MAX_BYTES, check).decode(errors="replace")
        return text if _DRAWN.fullmatch(text) else None
    return None
