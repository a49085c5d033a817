"""Register the directories that contain the user's runs, so that runs are found from any directory.

The registry has one link per runs directory and machine, in the user's state directory. A link is created and read
atomically, and its target may be on a file system that other machines lack. The registry is optional: without it, runs
are found with `--runs-dir`.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from launcher.core.atomic import point_link
from launcher.core.resources import state_dir

FORGOTTEN_S = 90 * 24 * 3600.0  # age at which another machine's unused link is removed
_NAME_CHARS = 16


def register(runs_dir: Path) -> None:
    """Register a directory of runs, unless it is hidden. Ignore write errors."""
    if (links := _links()) is None or runs_dir.name.startswith("."):
        return
    target = os.path.realpath(runs_dir)
    link = links / f"{sha256(os.fsencode(target)).hexdigest()[:_NAME_CHARS]}.{socket.gethostname()}"
    with suppress(OSError):
        if os.path.lexists(link):
            os.utime(link, follow_symlinks=False)  # mark it as used
        else:
            links.mkdir(mode=0o700, parents=True, exist_ok=True)
            point_link(link, target)


def is_temporary(path: Path) -> bool:
    """Return True if a path is below the directory for temporary files, for example in pytest's `tmp_path`."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(os.environ.get("TMPDIR") or "/tmp"))  # noqa: S108


def registered() -> tuple[Path, ...]:
    """Return all registered directories that exist, without duplicates, in path order.

    Dangling links of this machine are removed. Dangling or duplicate links of other machines are removed when they are
    old, because a cluster may rename its machines often.
    """
    if (links := _links()) is None:
        return ()
    here, oldest_s = socket.gethostname(), time.time() - FORGOTTEN_S
    found: dict[str, Path] = {}  # links to the same directory have the same name before the dot
    with suppress(OSError), os.scandir(links) as entries:
        for entry in sorted(entries, key=lambda entry: _machine(entry) != here):
            place = entry.name.partition(".")[0]
            with suppress(OSError):
                target = "" if place in found else os.readlink(entry.path)  # noqa: PTH115 - an entry is not a Path
                if target and os.path.isdir(target):  # noqa: PTH112 - as above
                    found[place] = Path(target)
                elif _machine(entry) == here or entry.stat(follow_symlinks=False).st_mtime < oldest_s:
                    os.unlink(entry.path)  # noqa: PTH108 - as above
    return tuple(sorted(set(found.values())))


def _machine(entry: os.DirEntry[str]) -> str:
    return entry.name.partition(".")[2]


def _links() -> Path | None:
    return None if (directory := state_dir()) is None else directory / "runs"
