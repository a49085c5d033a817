"""Notes when logs have grown, so that lines have a time which carry none (launcher/core/arrivals.py)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from launcher.core.arrivals import NOTE_EVERY_S, RECORD
from launcher.core.run_dir import RunDir

KEPT_BYTES = 1 << 20  # of what tells nothing any more, since the log was truncated


class ArrivalNotes:
    """Looks at the logs of one attempt's ranks on one server. Make it when their logs have been begun.

    A look costs a `stat` for each log, and a write of 16 bytes for each that has grown. What cannot be written is left out.
    """

    def __init__(self, run_dir: RunDir, global_ranks: Iterable[int]) -> None:
        paths = ((run_dir.train_log(rank), run_dir.arrivals(rank)) for rank in global_ranks)
        self._noted = {(os.fspath(log), os.fspath(arrivals)): _begin(arrivals) for log, arrivals in paths}
        self._due_s = 0.0  # monotonic

    def look(self, *, at_last: bool = False) -> None:
        """Note how far the logs have grown, at most once a second, or now `at_last`. Call it as often as you like."""
        now_s = time.monotonic()
        if now_s < self._due_s and not at_last:
            return
        self._due_s = now_s + NOTE_EVERY_S
        for (log, arrivals), noted in self._noted.items():
            with suppress(OSError):
                found = os.stat(log)  # noqa: PTH116 - the path is a string, as that is three times as fast
                if found.st_size != noted:
                    # The last write was no later, and may have been long before a look that comes late.
                    written_ns = min(found.st_mtime_ns, time.time_ns())
                    _note(arrivals, RECORD.pack(written_ns, found.st_size), is_anew=found.st_size < noted)
                    self._noted[log, arrivals] = found.st_size


def _note(arrivals: str, record: bytes, *, is_anew: bool) -> None:
    """Append a record. Where the log begins anew, readers see that it is shorter now, and a long file is emptied, too."""
    descriptor = os.open(arrivals, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
    try:
        size_bytes = os.fstat(descriptor).st_size
        kept_bytes = 0 if is_anew and size_bytes > KEPT_BYTES else size_bytes - size_bytes % RECORD.size
        if kept_bytes < size_bytes:  # or the disk had room for a part of the last record
            os.ftruncate(descriptor, kept_bytes)
        os.write(descriptor, record)
    finally:
        os.close(descriptor)


def _begin(arrivals: Path) -> int:
    """Make the file, so that readers know that more will come. Return how long the log was that an attempt before has left."""
    with suppress(OSError), arrivals.open("ab+") as file:
        whole = file.seek(0, os.SEEK_END) // RECORD.size
        if whole:
            file.seek((whole - 1) * RECORD.size)
            return int(RECORD.unpack(file.read(RECORD.size))[1])
    return 0
