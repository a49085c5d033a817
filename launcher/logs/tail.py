"""The end of a log, without reading the rest."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from launcher.logs.stored import StoredLog
from launcher.logs.terminal import printable, shortened

TAIL_BYTES = 1 << 16


def tail(path: Path, offset: int = 0, limit_bytes: int = TAIL_BYTES) -> bytes:
    """The last `limit_bytes` of a log, none from before logical `offset`; nothing of a log that is not there.

    In a log that was emptied and began anew `offset` means nothing any more.

    Raises:
        OSError: the log may not be read.
    """
    with closing(StoredLog(path)) as log:
        end = log.end
        begin = max(end - limit_bytes, log.start, offset if offset <= end else 0)
        found = b""
        while len(found) < limit_bytes and (chunk := log.read(begin, limit_bytes - len(found))):
            found, begin = found + chunk, log.next_offset
        return found


def last_lines(path: Path, count: int, offset: int = 0) -> list[str]:
    """At most `count` lines from the end of `path`, none of them from before logical `offset`, safe to show, not too long.

    Looks at the last 64 KiB only; blank lines at the end are left out.

    Raises:
        OSError: the log is missing or unreadable.
    """
    path.stat()
    text = tail(path, offset).decode("utf-8", errors="replace")
    return [shortened(printable(line)) for line in text.rstrip().split("\n")[-count:]] if text.strip() else []
