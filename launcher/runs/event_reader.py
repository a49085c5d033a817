"""Read the events of a growing events.jsonl, each once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from launcher.core.events import TimestampedEvent, from_line
from launcher.core.regular_files import open_regular

MAX_BYTES = 16 << 20  # per read, enough for 60,000 ranks to start and end; also the limit of a line
HEAD_BYTES = 1 << 20  # of a longer file, only this beginning and the last MAX_BYTES are read
MAX_STRANGE = 10_000  # unknown lines, after which the rest of the file is skipped


class EventReader:
    """Reads events.jsonl while it grows. Each event is returned once, after its line is complete.

    It keeps no file open and never blocks. Because anyone may have written the file, it raises no errors for its
    content and limits the time and memory it uses.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._is_within = False  # the next bytes are the rest of a skipped line
        self.strange = 0  # lines that are not events of this version
        self.uids: set[int] = set()  # owners of the file, over all reads

    def read(self) -> Iterator[TimestampedEvent]:
        """Yield the events written since the last call. Yield nothing if the file is missing."""
        with suppress(OSError), os.fdopen(open_regular(self._path), "rb") as file:
            found = os.fstat(file.fileno())
            self.uids.add(found.st_uid)
            last_offset = found.st_size - MAX_BYTES  # if more is left, skip the middle
            head_end = self._offset + HEAD_BYTES
            file.seek(self._offset)
            while self.strange <= MAX_STRANGE and (line := file.readline(MAX_BYTES)):
                is_whole = line.endswith(b"\n")
                if not is_whole and len(line) < MAX_BYTES:
                    return
                self._offset += len(line)
                is_rest, self._is_within = self._is_within, not is_whole
                try:
                    stamped = None if is_rest else from_line(line)
                except ValueError:
                    stamped = None
                    self.strange += bool(line.strip())
                if stamped is not None:
                    yield stamped
                if last_offset > self._offset >= head_end:
                    self._offset, self._is_within = file.seek(last_offset), True
