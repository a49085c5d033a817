"""Keep growing logs small: move their oldest bytes into compressed parts, while ranks go on writing.

A writer appends through a descriptor that it keeps (O_APPEND), so a log cannot be renamed away from under it, and to
copy and truncate would lose what is written in between. Instead the file system takes the bytes out of the start of the
file (FALLOC_FL_COLLAPSE_RANGE: ext4, xfs, f2fs), or leaves a hole there that takes no space (FALLOC_FL_PUNCH_HOLE:
tmpfs, btrfs). Where it can do neither nothing is moved.

The order in which it is done, so that at any moment, and after any crash, every byte can be read exactly once:

1. the part is written, flushed to the disk, and gets its name;
2. the index says that these bytes are in the part: from now on nobody reads them in the live file;
3. a hole is made there, and that is all; or, to cut them out,
   a. a marker is written over the first of them,
   b. the index says that they are being cut out, and names the marker,
   c. they are cut out: at that moment the file no longer begins with the marker, by which readers know,
   d. the index says that it is done.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import math
import os
import secrets
import select
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace as changed
from pathlib import Path

from launcher.core.atomic import replacing
from launcher.logs.index import (
    PLAIN,
    Index,
    describes,
    flush_names,
    index_path,
    is_marked,
    noted,
    parse,
    part_path,
    rebuilt,
    renewed,
    save,
    settled,
)
from launcher.logs.parts import BLOCK_BYTES, write_part

MAX_PART_BYTES = 64 << 20
FAR_BYTES = 64 << 30
SOONEST_S, LATEST_S = 0.02, 0.25  # how often sizes are looked at: the more often the faster they grow
RETRY_S = 10.0  # after a failure, a full disk for one
_MIN_BLOCK_BYTES = 4096
_KEEP_SIZE, _PUNCH_HOLE, _COLLAPSE_RANGE = 1, 2, 8
_LIBC = ctypes.CDLL(None, use_errno=True)
# Where a C library has two, this is the one whose offsets have 64 bits.
_FALLOCATE = getattr(_LIBC, "fallocate64", None) or _LIBC.fallocate
_FALLOCATE.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


class Rotator:
    """Moves the oldest bytes of each of `paths` (by global rank) that exceeds `max_bytes` into parts.

    One process may rotate a log at a time; a second one leaves it alone. Writers wait for nothing but the kernel's own
    lock of the file.
    """

    def __init__(self, paths: Mapping[int, Path], max_bytes: int) -> None:
        self._logs = {global_rank: _Log(path, max_bytes) for global_rank, path in paths.items()}
        self._warnings: list[str] = []
        self._told: set[str] = set()

    def step(self, asked_to_stop: Callable[[], object] = lambda: False) -> float:
        """Rotate what has grown too large; in how many seconds to call again. Blocks while it compresses.

        Between two logs it looks whether it is `asked_to_stop`.
        """
        delays_s: list[float] = []
        for global_rank in self._logs:
            if asked_to_stop():
                return 0.0
            delays_s.append(self._step(global_rank))
        return min(delays_s, default=LATEST_S)

    def finish(self) -> None:
        """Rotate, once nobody writes any more, until no log is too large, or can be made smaller. Blocks."""
        for global_rank, log in self._logs.items():
            freed = -1
            while log.too_large and log.freed > freed:
                freed = log.freed
                self._step(global_rank)

    def warnings(self) -> list[str]:
        """What went wrong since this was asked last, each reason once. Nothing is lost by it, and it is tried again."""
        warnings, self._warnings = self._warnings, []
        return warnings

    def close(self) -> None:
        """From now on `step` does nothing."""
        self._logs.clear()

    def _step(self, global_rank: int) -> float:
        log = self._logs[global_rank]
        try:
            return log.step(time.monotonic())
        except (OSError, ValueError) as error:
            log.failed(time.monotonic())
            reason = (isinstance(error, OSError) and error.strerror) or str(error)
            if reason not in self._told:  # of a thousand logs on a full disk one is enough
                self._told.add(reason)
                self._warnings.append(f"logs stay as large as they are, that of rank {global_rank} first: {reason}")
            return RETRY_S


def run(rotator: Rotator, stop_fd: int, warn: Callable[[str], None] | None = None) -> None:
    """Rotate until `stop_fd` is readable, or its other end is closed. Tells warnings to `warn`."""
    stop = select.poll()
    stop.register(stop_fd, select.POLLIN)
    delay_s = 0.0
    while not stop.poll(math.ceil(delay_s * 1000)):
        delay_s = rotator.step(lambda: stop.poll(0))
        for warning in rotator.warnings():
            if warn is not None:
                warn(warning)


class _Log:
    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path, self._max_bytes = path, max_bytes
        self._index: Index | None = None  # as last left; None: not looked at yet
        self._size_bytes, self._looked_s = 0, -math.inf
        self._resting_until_s = -math.inf

    def step(self, now_s: float) -> float:
        """Rotate if need be; in how many seconds to look again.

        Raises:
            OSError: it failed; nothing is lost.
            ValueError: there is an index that cannot be understood.
        """
        if now_s < self._resting_until_s:
            return self._resting_until_s - now_s
        try:
            size_bytes = self._path.stat().st_size
        except FileNotFoundError:
            return LATEST_S
        if self._needs_work(size_bytes):
            with _locked(self._path) as live:
                if live is None:
                    return LATEST_S
                size_bytes = self._work(live)
        return self._delay_s(size_bytes, now_s)

    @property
    def too_large(self) -> bool:
        try:
            return self._needs_work(self._path.stat().st_size)
        except OSError:
            return False

    @property
    def freed(self) -> int:
        """How many bytes were moved, as far as this has moved or seen them."""
        return 0 if self._index is None else self._index.freed

    def failed(self, now_s: float) -> None:
        """Leave the log alone for a while."""
        self._resting_until_s, self._index = now_s + RETRY_S, None

    def _needs_work(self, size_bytes: int) -> bool:
        index = self._index
        if index is None:
            return size_bytes > self._max_bytes or index_path(self._path).exists()
        return not index.kept_bytes <= size_bytes - index.hole_bytes <= self._max_bytes

    def _delay_s(self, size_bytes: int, now_s: float) -> float:
        grown, passed_s = size_bytes - self._size_bytes, now_s - self._looked_s
        self._size_bytes, self._looked_s = size_bytes, now_s
        left = self._max_bytes - (size_bytes - (self._index or PLAIN).hole_bytes)
        if grown <= 0:
            return LATEST_S if left >= 0 else SOONEST_S
        return min(LATEST_S, max(SOONEST_S, left * passed_s / grown))

    def _work(self, live: int) -> int:
        """Finish what was begun, then rotate if need be; how large the live file is afterwards."""
        index = self._known(live)
        if index.hole_bytes:
            index = _freed(self._path, live, index)
        cut = self._cut(index, live)
        if cut > index.hole_bytes:
            _check_that_it_helps(live)
            index = _freed(self._path, live, self._moved(index, live, cut))
        self._index = index
        return os.fstat(live).st_size

    def _known(self, live: int) -> Index:
        """The index, of the live file as it is now."""
        is_indexed = index_path(self._path).exists()  # else a part must not be written over by another one
        index = _load(self._path) if is_indexed else rebuilt(self._path, live)
        index = settled(index, marked=is_marked(index, live))
        size_bytes = os.fstat(live).st_size
        if describes(index, live, size_bytes):
            return index
        index = noted(renewed(index), live, size_bytes)
        save(self._path, index)
        return index

    def _cut(self, index: Index, live: int) -> int:
        """Before which byte of the live file all goes: at the start of a block; as much is left as may be."""
        size_bytes = os.fstat(live).st_size
        if size_bytes - index.hole_bytes <= self._max_bytes:
            return 0
        block_bytes = max(os.fstatvfs(live).f_frsize, _MIN_BLOCK_BYTES)
        enough = size_bytes - (self._max_bytes + 1) // 2 + 1
        most = min(size_bytes - 1, index.hole_bytes + MAX_PART_BYTES)  # a file cannot lose its last block
        return min(-(-enough // block_bytes), most // block_bytes) * block_bytes

    def _moved(self, index: Index, live: int, cut: int) -> Index:
        """Write the part, and note it: steps 1 and 2."""
        path = part_path(self._path, index.freed)
        try:
            with replacing(path) as aside, aside.open("wb") as file:
                write_part(file, _blocks(live, index.hole_bytes, cut))
            os.fdatasync(live)  # what is noted is then there after a loss of power, and step 3c has little to wait for
            after = changed(index, freed=index.base + cut, parts=(*index.parts, index.freed))
            after = noted(after, live, os.fstat(live).st_size)
            save(self._path, after)
        except BaseException:  # a signal may say so, at any moment
            if _load(self._path).freed == index.freed:
                path.unlink(missing_ok=True)
            raise
        flush_names(self._path)  # what is overwritten or freed next reaches the disk in whatever order
        return after


def _freed(path: Path, live: int, index: Index) -> Index:
    """Give back what the bytes take that are in parts: step 3. May be done again."""
    if _can(live, _COLLAPSE_RANGE):
        marked = changed(index, marker=f"[tlaunch is moving what was here: {secrets.token_hex(16)}]")
        os.pwrite(live, (marked.marker or "").encode(), 0)
        os.fdatasync(live)
        save(path, marked)
        try:
            _fallocate(live, _COLLAPSE_RANGE, 0, index.hole_bytes)
        except OSError:
            if not is_marked(marked, live):
                raise  # emptied by somebody at this moment
            save(path, index)  # larger units than blocks: then a hole
        else:
            index = settled(marked, marked=False)
            save(path, index)
            return index
    _fallocate(live, _PUNCH_HOLE | _KEEP_SIZE, 0, index.hole_bytes)
    return index


def _check_that_it_helps(live: int) -> None:
    if not _can(live, _COLLAPSE_RANGE) and not _can(live, _PUNCH_HOLE | _KEEP_SIZE):
        raise OSError(errno.EOPNOTSUPP, "its file system cannot free the start of a file")


def _can(live: int, mode: int) -> bool:
    """Whether the file system knows how to: asked for what changes nothing, behind the end or in no whole block.

    So far behind it that nobody writes there before the system is asked: what is written there would become zero.
    """
    offset = 1 if mode == _COLLAPSE_RANGE else os.fstat(live).st_size + FAR_BYTES
    try:
        _fallocate(live, mode, offset, 1)
    except OSError as error:
        return error.errno == errno.EINVAL
    return True


def _fallocate(live: int, mode: int, offset: int, length_bytes: int) -> None:
    while _FALLOCATE(live, mode, offset, length_bytes):
        if (number := ctypes.get_errno()) != errno.EINTR:
            raise OSError(number, os.strerror(number))


def _blocks(live: int, first: int, behind: int) -> Iterator[bytes]:
    for offset in range(first, behind, BLOCK_BYTES):
        wanted_bytes = min(BLOCK_BYTES, behind - offset)
        block = os.pread(live, wanted_bytes, offset)
        if len(block) < wanted_bytes:
            raise OSError(errno.ESTALE, "it was cut short at this moment")
        yield block


def _load(path: Path) -> Index:
    try:
        return parse(index_path(path).read_bytes())
    except FileNotFoundError:
        return PLAIN


@contextmanager
def _locked(path: Path) -> Iterator[int | None]:
    """The file, to read and to write at any place, while no other process rotates it; None while one does."""
    live = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        yield live if _lock(live) else None
    finally:
        os.close(live)


def _lock(live: int) -> bool:
    try:
        fcntl.flock(live, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
