"""Reads and writes the file `excluded` of an elastic run, which names the devices to leave out, one a line; # begins a remark.

The run adds a device that it gives up. A person may add others, or delete lines, and the run goes on with what is left. A change
counts once the file is as it was at the look before: an editor may be writing it. Without the file nothing changes.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from launcher.core import atomic
from launcher.core.devices import device_name, devices_named
from launcher.core.errors import UsageError
from launcher.core.events import DevicesChanged, Trouble
from launcher.core.records import Elastic, RunSpec, Server
from launcher.core.regular_files import read_regular
from launcher.core.run_dir import RunDir
from launcher.supervise.disk import Disk

REMARK = "#"
MAX_BYTES = 4 << 20  # thousands of servers with all of their devices


class Exclusions:
    """Devices are called by the rank that the rank table gives them, and in the file by their names."""

    def __init__(
        self, path: Path, servers: Sequence[Server], excluded: Sequence[int], report: Callable[[str], object]
    ) -> None:
        """Write the file, with the devices that are `excluded` from the beginning. `report` gets what is wrong with it."""
        self._path, self._servers, self._report = path, servers, report
        self._state: tuple[int, int, int] | None = None  # of the file that was read
        self._seen: tuple[int, int, int] | None = None  # at the last look
        self._unreadable: tuple[int, int, int] | None = None  # of a file that could not be read, as was reported
        self._excluded = frozenset(excluded)
        # Devices that the run leaves out and that the file does not name yet, and why.
        self._unwritten: dict[int, str] = {}
        self._told_unwritten = False
        self._write(self._names(excluded))

    def look(self) -> frozenset[int] | None:
        """Return the devices that the file names if it has changed; None if not, or if it cannot be read."""
        state, seen = self._stat(), self._seen
        self._seen = state
        if state is None or (state == self._state and not self._unwritten) or state != seen:
            return None
        self._state = state
        try:
            text = self._read()
        except OSError as error:
            if state != self._unreadable:
                self._report(f"{self._path} cannot be read: {error.strerror}; nothing changes")
            self._state, self._unreadable = None, state  # the next look tries again
            return None
        except UnicodeDecodeError as error:
            self._report(f"{self._path} is no text in UTF-8: {error.reason} at byte {error.start}; nothing changes")
            return None
        found: set[int] = set()
        for number, line in enumerate(text.splitlines(), 1):
            if name := line.partition(REMARK)[0].strip():
                try:
                    found |= devices_named(name, self._servers)
                except UsageError as error:
                    self._report(f"{self._path}:{number}: {error.message} ({error.hint}); nothing changes")
                    return None
        self._excluded = frozenset(found.union(self._unwritten))
        if self._unwritten:
            self._add_unwritten()
        return self._excluded

    def note(self, change: DevicesChanged) -> None:
        """Name devices that the run leaves out by itself; what a person has written meanwhile is still to be read."""
        if change.asked_for:
            return
        self._unwritten |= dict.fromkeys(change.left_out, change.reason)
        self._add_unwritten()
        self._excluded |= frozenset(change.left_out)

    def _add_unwritten(self) -> None:
        """Add the devices that the file does not name yet; where that fails, each later look tries again."""
        applied, before = self._state, self._stat()
        try:
            lines = self._names(sorted(self._excluded)) if before is None else self._read().splitlines()
        except (OSError, UnicodeDecodeError):
            self._report_once(f"{self._path} cannot be read, so it is left as it is")
            return
        added = [f"{device_name(device, self._servers)}  {REMARK} {why}" for device, why in self._unwritten.items()]
        if self._write([*lines, *added]):
            self._unwritten.clear()
            self._told_unwritten = False
        if before not in {None, applied}:
            self._state = None

    def _report_once(self, trouble: str) -> None:
        if not self._told_unwritten:
            self._report(trouble)
        self._told_unwritten = True

    def _names(self, devices: Iterable[int]) -> list[str]:
        return [device_name(device, self._servers) for device in devices]

    def _read(self) -> str:
        """Return the text of the file.

        Raises:
            OSError: as `read_regular`.
            UnicodeDecodeError: it is none.
        """
        return read_regular(self._path, MAX_BYTES).decode("utf-8-sig")

    def _write(self, lines: Sequence[str]) -> bool:
        """Write the file, and return whether that went well."""
        written = False
        try:
            atomic.write_text(self._path, "".join(f"{line}\n" for line in lines))
            written = True
        except OSError as error:
            self._report_once(f"cannot write {self._path}: {error.strerror}")
        self._state = self._stat()
        return written

    def _stat(self) -> tuple[int, int, int] | None:
        """Return what changes with the file, or with a symbolic link that leads nowhere; None where there is neither."""
        for look in (os.stat, os.lstat):
            with suppress(OSError):
                found = look(self._path)
                return found.st_ino, found.st_mtime_ns, found.st_size
        return None


class WatchedExclusions:
    """Reads and writes the file in the thread of a disk. The loop of its owner asks by `look` what has changed."""

    def __init__(self, spec: RunSpec, elastic: Elastic, disk: Disk, record: Callable[[Trouble], object]) -> None:
        """`record` is called in the loop for what is wrong with the file."""
        self._disk, self._record = disk, record
        self._found: deque[tuple[int, frozenset[int]]] = deque()  # after how many of the run's own changes, and what
        self._troubles: deque[str] = deque()
        self._noted: list[frozenset[int]] = []  # the run's own changes
        self._written = 0  # so many of them
        self._file = Exclusions(
            RunDir(spec.run_dir).excluded, spec.cluster.servers, elastic.excluded, self._troubles.append
        )
        disk.chores["exclusions"] = self._look

    def look(self) -> frozenset[int] | None:
        """Return the devices that the file names, if it has changed; None if not. Does not block."""
        while self._troubles:
            self._record(Trouble(self._troubles.popleft()))
        if not self._found:
            return None
        known, found = self._found.popleft()
        return found.union(*self._noted[known:])

    def note(self, change: DevicesChanged) -> None:
        """Have the file name devices that the run leaves out by itself."""
        self._noted.append(frozenset(() if change.asked_for else change.left_out))
        self._disk.do(lambda: self._note(change))

    # --- the disk's thread ---

    def _look(self) -> None:
        if (found := self._file.look()) is not None:
            self._found.append((self._written, found))

    def _note(self, change: DevicesChanged) -> None:
        self._file.note(change)
        self._written += 1
