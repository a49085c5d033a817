"""Follow several logs at once while ranks write them: one poller, bounded memory, no line lost or torn."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from launcher.logs.terminal import printable

CHUNK_BYTES = 1 << 16
LONGEST_LINE_BYTES = 1 << 16  # a longer one is given in pieces
POLL_BYTES = 1 << 20  # at most so much of each log in one poll, so that nobody waits long for the caller


class Follower:
    """Gives the lines that appear in `paths` (by global rank), each once, as they are completed. Close it at the end.

    A log may not exist yet. One that is cut short is read again from its start.
    """

    def __init__(self, paths: Mapping[int, Path]) -> None:
        self._logs = {global_rank: _Log(path) for global_rank, path in paths.items()}

    def poll(self) -> Iterator[tuple[int, str]]:
        """New complete lines: global rank and text, safe to show. Does not block."""
        for global_rank, log in self._logs.items():
            for line in log.complete_lines(POLL_BYTES):
                yield global_rank, line

    def rest(self) -> Iterator[tuple[int, str]]:
        """Everything up to the end of every log, an unfinished last line included. For when the writers are gone."""
        for global_rank, log in self._logs.items():
            for line in log.complete_lines(None):
                yield global_rank, line
            if last := log.unfinished_line():
                yield global_rank, last

    def close(self) -> None:
        for log in self._logs.values():
            log.close()


class _Log:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._offset = 0
        self._partial = b""

    def complete_lines(self, limit_bytes: int | None) -> Iterator[str]:
        end = None if limit_bytes is None else self._offset + limit_bytes
        while (end is None or self._offset < end) and (chunk := self._read()):
            *lines, self._partial = (self._partial + chunk).split(b"\n")
            yield from (_shown(line) for line in lines)
            if len(self._partial) >= LONGEST_LINE_BYTES:
                yield self.unfinished_line()

    def unfinished_line(self) -> str:
        line, self._partial = self._partial, b""
        return _shown(line)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _read(self) -> bytes:
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self._path, os.O_RDONLY)
            if os.fstat(self._descriptor).st_size < self._offset:
                self._offset, self._partial = 0, b""
            chunk = os.pread(self._descriptor, CHUNK_BYTES, self._offset)
        except OSError:  # not there yet, or gone: then there is nothing to show
            return b""
        self._offset += len(chunk)
        return chunk


def _shown(line: bytes) -> str:
    return printable(line.removesuffix(b"\r").decode("utf-8", errors="replace"))
