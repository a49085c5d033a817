"""The directories of runs that this user has begun runs in, so that they are found from any directory.

Each is a link in the user's state directory, with a name of its own for every directory and machine: one is made and read
in one step, and what it leads to may be on a file system that other machines lack. Nothing depends on it: where no link
can be made, runs are found by `--runs-dir` alone.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from launcher.core.atomic import point_link
from launcher.core.resources import state_dir

FORGOTTEN_S = 90 * 24 * 3600.0  # after which a link that another machine has made, and not used since, is forgotten
_NAME_CHARS = 16


def register(runs_dir: Path) -> None:
    """Note a directory of runs, unless it is hidden. What cannot be written is no error."""
    if (links := _links()) is None or runs_dir.name.startswith("."):
        return
    target = os.path.realpath(runs_dir)
    link = links / f"{sha256(os.fsencode(target)).hexdigest()[:_NAME_CHARS]}.{socket.gethostname()}"
    with suppress(OSError):
        if os.path.lexists(link):
            os.utime(link, follow_symlinks=False)  # it is in use
        else:
            links.mkdir(mode=0o700, parents=True, exist_ok=True)
            point_link(link, target)


def registered() -> tuple[Path, ...]:
    """Return all directories that were noted and are there, each once, in the order of their paths.

    Links that lead nowhere are removed: of this machine at once, of others when they are old. So are old ones of others to
    what another link leads to: a cluster may give its machines new names each time.
    """
    return tuple(sorted(set(_existing())))


def _existing() -> Iterator[Path]:
    if (links := _links()) is None:
        return
    here = socket.gethostname()
    found: set[str] = set()  # links to one directory have the same name before the machine's
    with suppress(OSError), os.scandir(links) as entries:
        for entry in sorted(entries, key=lambda entry: _machine(entry) != here):
            place = entry.name.partition(".")[0]
            with suppress(OSError):
                target = "" if place in found else os.readlink(entry.path)  # noqa: PTH115 - not of a Path
                if target and os.path.isdir(target):  # noqa: PTH112 - as above
                    found.add(place)
                    yield Path(target)
                elif _machine(entry) == here or _age_s(entry) > FORGOTTEN_S:
                    os.unlink(entry.path)  # noqa: PTH108 - as above


def _machine(entry: os.DirEntry[str]) -> str:
    return entry.name.partition(".")[2]


def _age_s(entry: os.DirEntry[str]) -> float:
    return time.time() - entry.stat(follow_symlinks=False).st_mtime


def _links() -> Path | None:
    return None if (directory := state_dir()) is None else directory / "runs"
