"""Find the file in which a project gives options: little more than a look at each directory, since most have none."""

from __future__ import annotations

import os
import re
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from launcher.core.regular_files import read_regular

NAME, SHARED_NAME = "tlaunch.toml", "pyproject.toml"
SHARED_PREFIX = "tool.tlaunch."  # of its tables in a file that others have tables in
MAX_BYTES = 1 << 20
# In click's `meta`, which all contexts of a command line share: where the project's file is, and what it holds.
PLACE, PROJECT_FILE = "launcher.project_place", "launcher.project_file"
ProjectPlace = tuple[str, str, str | None]


def known_place(meta: MutableMapping[str, Any]) -> ProjectPlace | None:
    """Return what `project_file_here` finds. It is called once for each command line."""
    if PLACE not in meta:
        meta[PLACE] = find_project_file()
    place: ProjectPlace | None = meta[PLACE]
    return place


def find_project_file() -> ProjectPlace | None:
    """Return the project file's path, the prefix of its tables, and the `.git` that makes it apply here, if it is above.

    Return None if there is no such file.

    Above the working directory only a repository is searched, up to its root: what lies there belongs to the project.
    """
    try:
        here = os.getcwd()  # noqa: PTH109 - strings are quick
    except FileNotFoundError:
        return None
    if found := _in(here):
        return *found, None
    directory = here
    while not os.path.lexists(git := os.path.join(directory, ".git")):  # noqa: PTH118 - as above
        directory, below = os.path.dirname(directory), directory  # noqa: PTH120 - as above
        if directory == below:
            return None
        found = found or _in(directory)
    return (*found, git) if found else None


def _in(directory: str) -> tuple[str, str] | None:
    path = os.path.join(directory, NAME)  # noqa: PTH118 - as in `project_file_here`
    if os.path.isfile(path):  # noqa: PTH113
        return path, ""
    path = os.path.join(directory, SHARED_NAME)  # noqa: PTH118
    try:
        content = read_regular(Path(path), MAX_BYTES) if os.path.isfile(path) else b""  # noqa: PTH113
    except OSError:  # it is for others first
        return None
    header = rb"(?m)^[ \t]*\[[ \t]*tool[ \t]*\.[ \t]*[\"']?tlaunch[\"']?[ \t]*[\].]"
    return (path, SHARED_PREFIX) if b"tlaunch" in content and re.search(header, content) else None
