"""Record and find ranks that an engine (mpirun, srun) started with `tlaunch exec`, without an agent.

Ranks create the run's directory themselves, in any order. Each records its process there and then becomes the user's
program. The exit status is not recorded: the end of a rank is seen from its process, only on its own machine.
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
    """Create the run directory with run.json, the given files, and a directory for `rank`.

    Ranks may call this concurrently, on a shared file system or on one per server. The first rank writes run.json, and
    the others must agree with it. `files` exist when this returns. Raises UsageError if an earlier run of this name has
    this rank, or the directory belongs to another user; RefusedLayoutError if the ranks do not agree; UnreadableError
    if the directory cannot be created or filled.
    """
    run_dir = RunDir(spec.run_dir)
    with filling(run_dir):
        run_dir.device(rank.global_rank).mkdir(parents=True, exist_ok=True)
        for directory in (run_dir.root, run_dir.device(rank.global_rank)):
            check_own_directory(directory)
        try:  # O_EXCL: only one process can create a rank's env.log, also on NFS
            os.close(os.open(run_dir.env_log(rank.global_rank), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            raise UsageError(
                f"{run_dir.root} already contains an earlier run",
                hint="give this run a unique name: "
                "set `TLAUNCH_RUN_ID=$(date +%Y%m%d-%H%M%S)` in the environment of all ranks",
            ) from None
        _write_or_compare(run_dir, spec_to_json(spec))
        for name, text in (files or {}).items():
            atomic.write_text(run_dir.root / name, text)  # the same on all ranks
    return run_dir


def _write_or_compare(run_dir: RunDir, text: str) -> None:
    """Write `text` to run.json if the file is missing. If the file contradicts `text`, raise RefusedLayoutError."""
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
        "port": f"this rank has MASTER_PORT {own['port']}, the first has {found['port']}",
        "layout": f"this rank has {own['layout']}, the first has {found['layout']}",
        "servers": "this rank has a different rank table from the first",
    }
    named = ", ".join(text for key, text in differences.items() if own[key] != found[key])
    raise RefusedLayoutError(
        f"ranks of {run_dir.root.name} were started with different settings: {named}",
        hint="start all ranks with the same options and the same rank table, in a new run directory",
    )


def _agreed_on(fields: Any) -> dict[str, Any] | None:
    """Return the fields of run.json that must be equal on all ranks, or None if run.json is not a run record."""
    try:
        layout = " ".join(f"{axis}={degree}" for axis, degree in fields["layout"].items())
        return {"port": fields["master_port"], "layout": layout, "servers": fields["cluster"]["servers"]}
    except (KeyError, TypeError, AttributeError):
        return None


def note_process(run_dir: RunDir, global_rank: int, process: ProcessId) -> None:
    """Record the process of this rank in the run directory. Raises OSError."""
    atomic.write_text(run_dir.process(global_rank), json.dumps(asdict(process)) + "\n")


@contextmanager
def announcement(run_dir: RunDir, *, without_mark: bool) -> Iterator[bool]:
    """Yield True on the first rank of a server, and False on other ranks. Only the first rank announces the run.

    The other ranks wait until the first leaves the block, because an engine ends all ranks when one fails. The first
    rank is determined by a file in the run's directory. If that file cannot be written, `without_mark` is yielded.
    """
    try:
        file = open(run_dir.announced, "ab", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK, 0o666))  # noqa: SIM115
    except OSError:  # for example a pipe without a reader
        yield without_mark
        return
    with file:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            is_first = os.fstat(file.fileno()).st_size == 0
            os.ftruncate(file.fileno(), 1)  # a sparse byte needs no space, even on a full disk
        except OSError:
            is_first = without_mark
        yield is_first


class EngineRanks:
    """Reads the process records of ranks that an engine such as mpirun started. Each record is read once."""

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
        """Return True if every rank has ended. Set `all_noted` if every rank that was started has a process record."""
        # Processes of other machines are not visible; processes from before this machine's last boot have ended.
        here = socket.gethostname()
        if not self._noted or not all(process.host == here and not process.lives for process in self._noted.values()):
            return False
        servers = {place.server_index for place in self._places if place.global_rank in self._noted}
        without = [place for place in self._places if place.global_rank not in self._noted]
        return not without or (all_noted and all(place.server_index in servers for place in without))
