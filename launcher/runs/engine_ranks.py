"""The ranks of an engine of the user's own (`tlaunch exec`), which make the run's directory themselves, in any order.

They note their processes in it. Such a rank becomes its program, and its end is not recorded: it is seen by its process, on its
own machine.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any

from launcher.core import atomic
from launcher.core.codec import decode, parse_json, read_json
from launcher.core.errors import RefusedLayoutError, UsageError
from launcher.core.machine.proc import ProcessId
from launcher.core.records import RankSpec, RunSpec
from launcher.core.run_dir import RunDir
from launcher.runs.owner import check_own_directory
from launcher.runs.record import Recorded, filling, point_latest, spec_to_json

MAX_PROCESS_BYTES = 4096


def join_run(spec: RunSpec, rank: RankSpec, files: Mapping[str, str] | None = None) -> RunDir:
    """Make the run's directory, with run.json and `files` (name: text), and that of `rank`, which no earlier run has used.

    Ranks may call this at the same time, on one file system or on one per server: the rank that finds no run.json writes
    it, and the others must agree with it. `files` are there for a rank as soon as this returns.

    Raises:
        UsageError: an earlier run of the same name has had this rank, or the directory belongs to another user.
        RefusedLayoutError: the ranks do not agree.
        UnreadableError: the directory cannot be made or filled.
    """
    run_dir = RunDir(spec.run_dir)
    with filling(run_dir):
        run_dir.device(rank.global_rank).mkdir(parents=True, exist_ok=True)
        for directory in (run_dir.root, run_dir.device(rank.global_rank)):
            check_own_directory(directory)
        try:  # one process alone succeeds in making a rank's env.log, on NFS too
            os.close(os.open(run_dir.env_log(rank.global_rank), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            raise UsageError(
                f"{run_dir.root} holds an earlier run already",
                hint="give this run a name that no other has: "
                "TLAUNCH_RUN_ID=$(date +%Y%m%d-%H%M%S) in the environment of all ranks",
            ) from None
        _write_or_compare(run_dir, spec_to_json(spec))
        for name, text in (files or {}).items():
            atomic.write_text(run_dir.root / name, text)  # all ranks have the same
    return run_dir


def _write_or_compare(run_dir: RunDir, text: str) -> None:
    """Write run.json, or compare it: ranks cannot ask each other, and what the first of them recorded counts for all."""
    if not run_dir.run_json.exists():
        with suppress(FileExistsError):  # another rank was faster
            atomic.write_text(run_dir.run_json, text, replace=False)
            point_latest(run_dir.root.parent, run_dir.root.name)
            return
    try:
        found, own = _agreed_on(read_json(run_dir.run_json)), _agreed_on(parse_json(text))
    except ValueError:  # not written yet
        return
    if found is None or own is None or found == own:
        return
    differences = {
        "port": f"this one has MASTER_PORT {own['port']}, the first had {found['port']}",
        "layout": f"this one has {own['layout']}, the first had {found['layout']}",
        "servers": "this one has another rank table than the first",
    }
    named = ", ".join(text for key, text in differences.items() if own[key] != found[key])
    raise RefusedLayoutError(
        f"ranks of {run_dir.root.name} were not started alike: {named}",
        hint="all ranks need the same options and the same rank table, and a run directory that no earlier run has used",
    )


def _agreed_on(fields: Any) -> dict[str, Any] | None:
    """Return the fields of a run.json that all ranks of a run share; None if it is not such a record."""
    try:
        layout = " ".join(f"{axis}={degree}" for axis, degree in fields["layout"].items())
        return {"port": fields["master_port"], "layout": layout, "servers": fields["cluster"]["servers"]}
    except (KeyError, TypeError, AttributeError):
        return None


def note_process(run_dir: RunDir, global_rank: int, process: ProcessId) -> None:
    """Write which process this rank is, and its program will be.

    Raises:
        OSError: it cannot be written.
    """
    atomic.write_text(run_dir.process(global_rank), json.dumps(asdict(process)) + "\n")


@contextmanager
def announcement(run_dir: RunDir, *, without_mark: bool) -> Iterator[bool]:
    """Yield whether this rank is to announce the run: the first of its server is, and others wait until it has done so.

    A rank becomes its program after that alone: an engine ends all ranks when one fails, also those that are still to begin.
    `without_mark`: whether it is to where the run's directory does not take the mark that one has done so.
    """
    try:
        file = open(run_dir.announced, "ab", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK, 0o666))  # noqa: SIM115
    except OSError:  # a pipe without a reader is one
        yield without_mark
        return
    with file:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            is_first = os.fstat(file.fileno()).st_size == 0
            os.ftruncate(file.fileno(), 1)  # a byte that is not written takes no room of a full disk
        except OSError:
            is_first = without_mark
        yield is_first


class EngineRanks:
    """The processes of ranks that an engine of the user's own started. Each note is read once."""

    def __init__(self, run_dir: RunDir, recorded: Recorded) -> None:
        self._run_dir = run_dir
        self._places = recorded.places
        self._noted: dict[int, ProcessId] = {}  # by global rank

    def look(self) -> Mapping[int, ProcessId]:
        for place in self._places:
            if place.global_rank not in self._noted:
                with suppress(OSError, ValueError):
                    fields = read_json(self._run_dir.process(place.global_rank), MAX_PROCESS_BYTES)
                    self._noted[place.global_rank] = decode(ProcessId, fields)
        return self._noted

    def ended(self, *, all_noted: bool) -> bool:
        """Return True if every rank has ended, as far as is known here, by the last look.

        `all_noted`: a rank without a note, on a server where others have one, did not start and will never write one.
        """
        # Processes of another machine cannot be seen; those of this one before its last start have ended.
        here = socket.gethostname()
        if not self._noted or not all(process.host == here and not process.lives for process in self._noted.values()):
            return False
        servers = {place.server_index for place in self._places if place.global_rank in self._noted}
        without = [place for place in self._places if place.global_rank not in self._noted]
        return not without or (all_noted and all(place.server_index in servers for place in without))
