"""Follow several logs while ranks write them: one reader, bounded memory, no line lost or torn.

Changed files are found without polling every file. On local file systems the kernel reports a write (inotify), once
until the file was read to its end, so that a fast writer is not slowed down. Files on other file systems, and missing
files, are polled in turn, at a rate that depends on the cost of a look. With polling only, a line of 256 ranks would be
shown after 0.16 s instead of 0.4 ms.
"""

from __future__ import annotations

import ctypes
import math
import os
import select
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress

from launcher.core.machine.proc import mounts
from launcher.logs.lines import OVERWRITES, LineReader, PartialLine
from launcher.logs.log_file import CHUNK_BYTES, GrowingLog, fair_shares

LOOK_EVERY_S = 0.05  # between looks at files without inotify
LOOK_SHARE = 0.005  # share of a core for such looks: a thousand files are checked less often
MAKE_SURE_EVERY_S = 1.0  # between looks at all other files
LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "tmpfs", "overlay", "bcachefs", "jfs"})
_MODIFY, _ATTRIB, _DELETE_SELF, _MOVE_SELF, _ONE_SHOT = 0x2, 0x4, 0x400, 0x800, 0x80000000
_EVENT = struct.Struct("iIII")  # watch, event, cookie, length of the name
_Signature = tuple[int, int, int]  # inode, size, time of the last change


class Follower:
    """Reads the lines that are appended to several logs, each line once. Closing the follower also closes the logs."""

    def __init__(self, logs: Mapping[int, GrowingLog]) -> None:
        self._logs = logs
        self._readers = {global_rank: LineReader(global_rank) for global_rank in logs}
        self._changes = Changes(logs)

    def next_block(self, *, ended: bool = False) -> tuple[int, bytes] | None:
        """Return a rank and a block of its new lines, or None if no log has new lines.

        Does not block. Logs take turns. Long lines come in pieces. `ended`: also return unfinished lines.
        """
        for global_rank in self._changes.changed(ended=ended):
            block = b""
            while not block:
                offset, chunk = self._logs[global_rank].read(CHUNK_BYTES)
                if not chunk:
                    break
                block = b"".join(block for _, block in self._readers[global_rank].blocks(offset, chunk))
            if not block and ended:
                block = self._readers[global_rank].rest().rstrip(OVERWRITES)
            if block:
                self._changes.later(global_rank)
                return global_rank, block
            self._changes.nothing_new(global_rank)
        return None

    def partial(self) -> dict[int, PartialLine]:
        """Return the unfinished last lines of the logs, by global rank."""
        return {global_rank: begun for global_rank, reader in self._readers.items() if (begun := reader.partial)}

    def wait(self, seconds: float) -> None:
        self._changes.wait(seconds)

    def skip_to_last(self, keep_bytes: int) -> Iterator[tuple[int, int]]:
        """Keep only the last `keep_bytes` unread bytes of all logs together. Yield (rank, number of skipped bytes)."""
        kept_bytes = fair_shares({rank: log.unread_bytes for rank, log in self._logs.items()}, keep_bytes)
        for global_rank, log in self._logs.items():
            if skipped := log.skip_to_last(kept_bytes[global_rank]):
                yield global_rank, skipped + len(self._readers[global_rank].rest())

    def close(self) -> None:
        self._changes.close()
        for log in self._logs.values():
            log.close()


class Changes:
    """Finds the ranks whose logs have changed and must be read. At first, all logs must be read."""

    def __init__(self, logs: Mapping[int, GrowingLog]) -> None:
        self._logs = logs
        self._paths = {key: os.fspath(log.path) for key, log in logs.items()}
        self._due = dict.fromkeys(self._paths)
        self._ended = False
        self._inotify = _Inotify()
        self._listening: dict[int, int] = {}  # rank by inotify's number of its file
        self._armed: set[int] = set()  # ranks in `_listening`
        self._seen: dict[int, tuple[_Signature | None, _Signature | None]] = {}  # of files that are not due
        self._next_look_s = self._next_survey_s = 0.0

    def changed(self, *, ended: bool = False) -> tuple[int, ...]:
        """Return the ranks whose logs may have new text. If `ended` is True, the first call returns all ranks."""
        if ended:
            self._due = self._due if self._ended else dict.fromkeys(self._paths)
        else:
            for watch in self._inotify.take():
                key = self._listening.pop(watch, None)
                if key is not None:
                    self._armed.discard(key)
                    self._due[key] = None
            self._look()
        self._ended = ended
        return tuple(self._due)

    def has_changed(self, key: int) -> bool:
        return key in self._due

    def look_at(self, key: int) -> None:
        self._due[key] = None

    def later(self, key: int) -> None:
        """Move a log to the end of the queue of logs that must be read."""
        if key in self._due:
            self._due[key] = self._due.pop(key)

    def nothing_new(self, key: int) -> None:
        """Record that a log was read to its end. `changed` returns the log's rank again after the next change."""
        if self._ended:
            self._due.pop(key, None)
            return
        is_displaced = self._logs[key].displaced is not None  # then two files may grow
        watch = None if is_displaced or key in self._armed else self._inotify.listen(self._paths[key])
        if watch is not None:
            self._listening[watch] = key
            self._armed.add(key)
        signature = self._signature(key)
        if watch is None and (key in self._armed or signature == self._seen.get(key, ())):
            self._due.pop(key, None)  # otherwise it may have changed just before, so it is read once more
        self._seen[key] = signature

    def wait(self, seconds: float) -> None:
        """Sleep until a file changes or `seconds` have passed."""
        if self._due:
            return
        others = len(self._armed) < len(self._paths)
        until_s = min(seconds, self._next_look_s - time.monotonic()) if others else seconds
        self._inotify.wait(max(0.0, until_s))

    def close(self) -> None:
        self._inotify.close()

    def _signature(self, key: int) -> tuple[_Signature | None, _Signature | None]:
        displaced = self._logs[key].displaced
        return _signature(self._paths[key]), None if displaced is None else _signature(displaced)

    def _look(self) -> None:
        now_s = time.monotonic()
        surveys = now_s >= self._next_survey_s
        if surveys:
            self._next_survey_s = now_s + MAKE_SURE_EVERY_S
        elif now_s < self._next_look_s:
            return
        for key in self._paths:
            if key not in self._due and (surveys or key not in self._armed):
                signature = self._signature(key)
                if signature != self._seen.get(key):
                    self._seen[key] = signature
                    self._due[key] = None
        took_s = time.monotonic() - now_s
        self._next_look_s = now_s + max(LOOK_EVERY_S, took_s / LOOK_SHARE if not surveys else 0.0)


class _Inotify:
    """Watches files with inotify. After each call of `listen`, one change of the file is reported."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None)
        self._fd = -1
        with suppress(AttributeError):  # not Linux
            self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)  # -1: no watches left
        self._local: dict[int, bool] = {}  # by device

    def listen(self, path: str) -> int | None:
        """Watch a file for its next change, and return the watch number. Return None if it cannot be watched."""
        if self._fd < 0 or not self._is_local(path):
            return None
        mask = _MODIFY | _ATTRIB | _DELETE_SELF | _MOVE_SELF | _ONE_SHOT
        watch = self._libc.inotify_add_watch(self._fd, os.fsencode(path), ctypes.c_uint32(mask))
        return watch if watch >= 0 else None

    def take(self) -> list[int]:
        """Return the watch numbers of the files that have changed, as returned by `listen`."""
        watches: list[int] = []
        with suppress(OSError):  # nothing to read, or no inotify
            while self._fd >= 0 and (events := os.read(self._fd, 1 << 16)):
                at = 0
                while at < len(events):
                    watch, _, _, name_bytes = _EVENT.unpack_from(events, at)
                    watches.append(watch)
                    at += _EVENT.size + name_bytes
        return watches

    def wait(self, seconds: float) -> None:
        poller = select.poll()
        if self._fd >= 0:
            poller.register(self._fd, select.POLLIN)
        poller.poll(math.ceil(seconds * 1000))

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _is_local(self, path: str) -> bool:
        """Return True if the file is on a local file system, so that inotify reports every write."""
        try:
            device = os.stat(path).st_dev  # noqa: PTH116 - called for a thousand files
        except OSError:
            return False
        if device not in self._local:
            wanted = f"{os.major(device)}:{os.minor(device)}"
            self._local[device] = any(mount.device == wanted and mount.kind in LOCAL for mount in mounts())
        return self._local[device]


def _signature(path: str | int) -> _Signature | None:
    with suppress(OSError):
        found = os.stat(path)  # noqa: PTH116 - as above
        return found.st_ino, found.st_size, found.st_mtime_ns
    return None
