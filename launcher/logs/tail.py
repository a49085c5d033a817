"""The last lines of a log, without reading the rest."""

from __future__ import annotations

from pathlib import Path

from launcher.logs.terminal import printable, shortened

TAIL_BYTES = 1 << 16


def last_lines(path: Path, count: int, offset: int = 0) -> list[str]:
    """At most `count` lines from the end of `path`, none of them from before byte `offset`, safe to show and not too long.

    Looks at the last 64 KiB only; blank lines at the end are left out. In a log that has been cut short `offset` means
    nothing any more.

    Raises:
        OSError: the log is missing or unreadable.
    """
    with path.open("rb") as log:
        size = log.seek(0, 2)
        log.seek(max(size - TAIL_BYTES, offset if offset <= size else 0, 0))
        text = log.read(TAIL_BYTES).decode("utf-8", errors="replace")
    return [shortened(printable(line)) for line in text.rstrip().split("\n")[-count:]] if text.strip() else []
