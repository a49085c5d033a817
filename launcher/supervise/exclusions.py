"""Reads and writes an elastic run's file `excluded`, which lists devices, one per line. # starts a comment.

The run adds devices that it excludes. The user may add or delete lines while the run continues. A change takes effect
once the file is unchanged between two checks, because an editor may still be writing it. Deleting the file has no
effect.
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
MAX_BYTES = 4 << 20  # enough for thousands of servers with all their devices


class Exclusions:
    """The file of excluded devices. It lists names, but methods identify devices by rank in the full rank table."""

    def __init__(
        self, path: Path, servers: Sequence[Server], excluded: Sequence[int], report: Callable[[str], object]
    ) -> None:
        """Write the file with the initially excluded devices. `report` is called with every problem."""
        self._path, self._servers, self._report = path, servers, report
        self._state: tuple[int, int, int] | None = None  # of the file when it was last read
        self._seen: tuple[int, int, int] | None = None  # at the last check
        self._unreadable: tuple[int, int, int] | None = None  # of an unreadable file that was already reported
        self._excluded = frozenset(excluded)
        # Devices that the run has excluded but that are not in the file yet, with the reason.
        self._unwritten: dict[int, str] = {}
        self._told_unwritten = False
        self._write(self._names(excluded))

    def look(self) -> frozenset[int] | None:
        """Return the excluded devices if the file has changed, or None if it is unchanged or unreadable."""
        state, seen = self._stat(), self._seen
        self._seen = state
        if state is None or (state == self._state and not self._unwritten) or state != seen:
            return None
        self._state = state
        found: set[int] = set()
        number = 0
        try:
            for line in self._read().splitlines():
                number += 1
                if name := line.partition(REMARK)[0].strip():
                    found |= devices_named(name, self._servers)
        except OSError as error:
            if state != self._unreadable:
                self._report(f"cannot read {self._path}: {error.strerror}; exclusions are kept")
            self._state, self._unreadable = None, state  # the next check tries again
            return None
        except UnicodeDecodeError as error:
            self._report(f"{self._path} is not UTF-8 text: {error.reason} at byte {error.start}; exclusions are kept")
            return None
        except UsageError as error:
            self._report(f"{self._path}:{number}: {error.message} ({error.hint}); exclusions are kept")
            return None
        self._excluded = frozenset(found.union(self._unwritten))
        if self._unwritten:
            self._add_unwritten()
        return self._excluded

    def note(self, change: DevicesChanged) -> None:
        if change.asked_for:
            return
        self._unwritten |= dict.fromkeys(change.left_out, change.reason)
        self._add_unwritten()
        self._excluded |= frozenset(change.left_out)

    def _add_unwritten(self) -> None:
        """Write newly excluded devices to the file. If writing fails, a later check tries again."""
        applied, before = self._state, self._stat()
        try:
            lines = self._names(sorted(self._excluded)) if before is None else self._read().splitlines()
        except (OSError, UnicodeDecodeError):
            self._report_once(f"cannot read {self._path}, so excluded devices are not added to it")
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
        """Return the text of the file. Raise UnicodeDecodeError if the text is not UTF-8."""
        return read_regular(self._path, MAX_BYTES).decode("utf-8-sig")

    def _write(self, lines: Sequence[str]) -> bool:
        try:
            atomic.write_text(self._path, "".join(f"{line}\n" for line in lines))
        except OSError as error:
            self._report_once(f"cannot write {self._path}: {error.strerror}")
            return False
        finally:
            self._state = self._stat()
        return True

    def _stat(self) -> tuple[int, int, int] | None:
        """Return values that show whether the file has changed, or None if there is no file and no symbolic link."""
        for look in (os.stat, os.lstat):
            with suppress(OSError):
                found = look(self._path)
                return found.st_ino, found.st_mtime_ns, found.st_size
        return None


class WatchedExclusions:
    """Reads and writes the file of excluded devices in a `Disk` thread, so that the event loop does not block."""

    def __init__(self, spec: RunSpec, elastic: Elastic, disk: Disk, record: Callable[[Trouble], object]) -> None:
        """Write the initial file. The event loop passes problems with the file to `record`."""
        self._disk, self._record = disk, record
        self._found: deque[tuple[int, frozenset[int]]] = deque()  # number of the run's earlier changes, and devices
        self._troubles: deque[str] = deque()
        self._noted: list[frozenset[int]] = []  # the run's own changes
        self._written = 0  # the number of them that are written
        self._file = Exclusions(
            RunDir(spec.run_dir).excluded, spec.cluster.servers, elastic.excluded, self._troubles.append
        )
        disk.chores["exclusions"] = self._look

    def look(self) -> frozenset[int] | None:
        while self._troubles:
            self._record(Trouble(self._troubles.popleft()))
        if not self._found:
            return None
        known, found = self._found.popleft()
        return found.union(*self._noted[known:])

    def note(self, change: DevicesChanged) -> None:
        self._noted.append(frozenset(() if change.asked_for else change.left_out))

        def write() -> None:
            self._file.note(change)
            self._written += 1

        self._disk.do(write)

    # --- the disk's thread ---

    def _look(self) -> None:
        if (found := self._file.look()) is not None:
            self._found.append((self._written, found))
