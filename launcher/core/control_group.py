"""The location of this process's control group (version 2)."""

from __future__ import annotations

import os
from pathlib import Path


def own_directory() -> Path | None:
    """Return the mounted directory of this process's version 2 group, or None if it has none that can be seen."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        groups = Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    # Fields before " - ": id, parent, device, the mounted part of the file system, where it is mounted, ...
    mounted = [before.split()[3:5] for before, _, after in (line.partition(" - ") for line in mounts)
               if after.startswith("cgroup2 ")]  # fmt: skip
    own = next((line[3:] for line in groups if line.startswith("0::")), None)
    if not mounted or own is None:
        return None
    root, point = mounted[0]
    inside = os.path.relpath(own, root)
    return None if inside.startswith("..") else Path(point) / inside
