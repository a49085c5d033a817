"""The coordinator's side of a mirror (launcher/supervise/file_upload.py): what comes of other disks, in the run's directory.

Where something is written follows from a known kind and a rank of the server that sent it, and from nothing else: no
path ever comes over a connection. What cannot be written is asked for again later; a run does not end for it.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from launcher.core.messages import ChunkAck, FileChunk, FileSnapshot
from launcher.core.records import RankSpec
from launcher.core.run_dir import RunDir
from launcher.supervise.file_upload import GROWING, OF_ALL_RANKS, REWRITTEN

MODE, SECRET_MODE = 0o644, 0o600
SECRET = frozenset({"env.log"})  # as on its own server
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class FileReceiver:
    """Takes what agents send of their files. Never raises; waits for the disk alone."""

    def __init__(self, run_dir: RunDir, ranks: Iterable[RankSpec], tell: Callable[[str], None]) -> None:
        """`tell` hears why something could not be written, each reason once."""
        self._run_dir = run_dir
        self._server_of = {rank.global_rank: rank.server_index for rank in ranks}
        self._ends: dict[tuple[str, int], int] = {}  # how far each file has come, by kind and rank
        self._tell = tell
        self._told: set[str] = set()

    def take(self, server_index: int, message: FileChunk | FileSnapshot, ahead_ns: int) -> ChunkAck | None:
        """Write it; the answer. None for what no agent of that server sends.

        `ahead_ns`: how far that server's clock is ahead of ours.
        """
        if self._server_of.get(message.global_rank) != server_index:
            return None
        kinds = GROWING if isinstance(message, FileChunk) else REWRITTEN
        if message.kind not in kinds:
            return None
        path = kinds[message.kind](self._run_dir, message.global_rank)
        try:
            data = None if message.data is None else base64.b64decode(message.data, validate=True)
        except (binascii.Error, ValueError):
            return None
        if isinstance(message, FileChunk):
            return self._append(path, message, data or b"")
        return self._rewrite(path, message, data, message.written_ns - ahead_ns)

    def _append(self, path: Path, piece: FileChunk, data: bytes) -> ChunkAck:
        key = (piece.kind, piece.global_rank)
        end = self._ends.get(key, 0)
        if piece.offset != end and not piece.anew:
            return ChunkAck(*key, end)
        if not data and not piece.anew:  # somebody asks
            return ChunkAck(*key, end)
        written = 0
        empty_first = piece.anew and not (piece.stays or piece.kind in OF_ALL_RANKS)
        try:
            for count in _appended(path, data, empty_first=empty_first):
                written += count
        except OSError as error:
            if empty_first:  # it comes once more, and empties the file once more
                written = 0
            self._ends[key] = piece.offset + min(written, piece.end - piece.offset)
            return ChunkAck(*key, self._ends[key], self._is_trouble(path, error))
        self._ends[key] = piece.end
        return ChunkAck(*key, piece.end)

    def _rewrite(self, path: Path, whole: FileSnapshot, data: bytes | None, written_ns: int) -> ChunkAck:
        try:
            if data is None:
                path.unlink(missing_ok=True)
            else:
                _replace(path, data, written_ns, SECRET_MODE if whole.kind in SECRET else MODE)
        except (OSError, OverflowError) as error:
            return ChunkAck(whole.kind, whole.global_rank, 0, self._is_trouble(path, error))
        return ChunkAck(whole.kind, whole.global_rank, 0)

    def _is_trouble(self, path: Path, error: OSError | OverflowError) -> bool:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        if reason not in self._told:  # of a thousand logs on a full disk one is enough
            self._told.add(reason)
            self._tell(f"what ranks of other servers write is late: {path}: {reason}")
        return True


def _appended(path: Path, data: bytes, *, empty_first: bool) -> Iterable[int]:
    """Write all of it; gives how many bytes each write took."""
    descriptor = os.open(path, _APPEND, MODE)
    try:
        if empty_first:
            os.ftruncate(descriptor, 0)
        while data:
            count = os.write(descriptor, data)
            yield count
            data = data[count:]
    finally:
        os.close(descriptor)


def _replace(path: Path, data: bytes, written_ns: int, mode: int) -> None:
    """Replace a file as launcher.core.atomic does, without fsync: heartbeats come every second, from every rank."""
    aside = path.with_name(f".{path.name}.mirrored")
    try:
        aside.touch(mode=mode)
        aside.write_bytes(data)
        os.utime(aside, ns=(written_ns, written_ns))
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
