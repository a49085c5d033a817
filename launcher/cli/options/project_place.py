"""Search for the project file. This module runs before every command, so it imports as little as possible."""

from __future__ import annotations

import os
import re
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from launcher.core.regular_files import read_regular

NAME, SHARED_NAME = "tlaunch.toml", "pyproject.toml"
SHARED_PREFIX = "tool.tlaunch."  # of table names in pyproject.toml
MAX_BYTES = 1 << 20
# Keys in click's `meta`, which all contexts of a command line share: the project file's position and contents.
PLACE, PROJECT_FILE = "launcher.project_place", "launcher.project_file"
ProjectPlace = tuple[str, str, str | None]


def known_place(meta: MutableMapping[str, Any]) -> ProjectPlace | None:
    """Find the project file as `find_project_file` does, and cache the result in `meta`."""
    if PLACE not in meta:
        meta[PLACE] = find_project_file()
    place: ProjectPlace | None = meta[PLACE]
    return place


def find_project_file() -> ProjectPlace | None:
    """Find the project file in this directory, or in a parent directory within the Git repository.

    Return None if there is no project file. Outside a Git repository, parent directories are not searched.
    """
    try:
        here = os.getcwd()  # noqa: PTH109 - strings are faster than Path
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
    path = os.path.join(directory, NAME)  # noqa: PTH118 - as in `find_project_file`
    if os.path.isfile(path):  # noqa: PTH113
        return path, ""
    path = os.path.join(directory, SHARED_NAME)  # noqa: PTH118
    try:
        content = read_regular(Path(path), MAX_BYTES) if os.path.isfile(path) else b""  # noqa: PTH113
    except OSError:  # pyproject.toml is mainly for other tools
        return None
    header = rb"(?m)^[ \t]*\[[ \t]*tool[ \t]*\.[ \t]*[\"']?tlaunch[\"']?[ \t]*[\].]"
    return (path, SHARED_PREFIX) if b"tlaunch" in content and re.search(header, content) else None
