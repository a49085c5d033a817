"""Which files of a directory are worth looking at."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

NOT_SEARCHED = frozenset({"node_modules", "bower_components", "site-packages", "dist-packages", "__pycache__"})


def json_files(directory: str, report_error: Callable[[OSError], None]) -> Iterator[Path]:
    """Every *.json below `directory`, in no order, but for hidden directories and those of installed packages.

    `report_error` gets the error of each directory that cannot be listed.
    """
    for folder, folders, names in os.walk(directory, onerror=report_error):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in NOT_SEARCHED]
        yield from (Path(folder, name) for name in names if name.endswith(".json"))
