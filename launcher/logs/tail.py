"""The last lines of a log, without reading the rest."""

from __future__ import annotations

from pathlib import Path

from launcher.logs.terminal import printable

TAIL_BYTES = 1 << 16


def last_lines(path: Path, count: int) -> list[str]:
    """At most `count` lines from the end of `path`, safe to show.

    Looks at the last 64 KiB only; blank lines at the end are left out.

    Raises:
        OSError: the log is missing or unreadable.
    """
    with path.open("rb") as log:
        size = log.seek(0, 2)
        log.seek(max(0, size - TAIL_BYTES))
        text = log.read(TAIL_BYTES).decode("utf-8", errors="replace")
    return [printable(line) for line in text.rstrip().split("\n")[-count:]] if text.strip() else []
