"""A run's directory where nobody makes it before the ranks start: every rank makes its own part, in any order."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

from launcher.core import atomic
from launcher.core.errors import UnreadableError, UsageError
from launcher.core.records import RankSpec, RunSpec
from launcher.core.run_dir import LATEST, RunDir
from launcher.runs.record import spec_to_json


def join_run(spec: RunSpec, rank: RankSpec, files: Mapping[str, str] | None = None) -> RunDir:
    """Have the run's directory, with run.json and `files` (name: text), and that of `rank`, which no earlier run has used.

    Ranks may call this at the same time, on one file system or on one per server: the lowest rank of each server writes
    run.json where it finds none. `files` are there for a rank as soon as this returns.

    Raises:
        UsageError: an earlier run of the same name has had this rank.
        UnreadableError: the directory cannot be made or filled.
    """
    run_dir = RunDir(spec.run_dir)
    try:
        run_dir.device(rank.global_rank).mkdir(parents=True, exist_ok=True)
        _claim(run_dir, rank.global_rank)
        for name, text in (files or {}).items():
            atomic.write_text(run_dir.root / name, text)  # all ranks have the same
        if rank.local_rank == 0:
            _record(run_dir, spec)
    except OSError as error:
        raise UnreadableError(
            f"{run_dir.root}: this run directory cannot be made or filled: {error.strerror}",
            hint="--runs-dir DIR, or TLAUNCH_RUNS_DIR, names another place",
        ) from error
    return run_dir


def _claim(run_dir: RunDir, global_rank: int) -> None:
    """Make this rank's env.log, of which only one process succeeds, on NFS too."""
    try:
        os.close(os.open(run_dir.env_log(global_rank), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        raise UsageError(
            f"{run_dir.root} holds an earlier run already",
            hint="give this one a name that no other has: TLAUNCH_RUN_ID=$(date +%Y%m%d-%H%M%S) in the environment of all ranks",
        ) from None


def _record(run_dir: RunDir, spec: RunSpec) -> None:
    with suppress(FileExistsError):  # that of a rank of another server
        atomic.write_text(run_dir.run_json, spec_to_json(spec), mode=0o600, replace=False)
    with suppress(OSError):  # a file system without links, or a directory of that name: the run goes on without
        atomic.point_link(run_dir.root.parent / LATEST, run_dir.root.name)
