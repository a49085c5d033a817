"""A run's directory where nobody makes it before the ranks start: every rank makes its own part, in any order."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from launcher.core import atomic
from launcher.core.errors import RefusedLayoutError, UnreadableError, UsageError
from launcher.core.records import RankSpec, RunSpec
from launcher.core.run_dir import LATEST, RunDir
from launcher.runs.record import spec_to_json


def join_run(spec: RunSpec, rank: RankSpec, files: Mapping[str, str] | None = None) -> RunDir:
    """Have the run's directory, with run.json and `files` (name: text), and that of `rank`, which no earlier run has used.

    Ranks may call this at the same time, on one file system or on one per server: who finds no run.json writes it, and
    the others must agree with it. `files` are there for a rank as soon as this returns.

    Raises:
        UsageError: an earlier run of the same name has had this rank.
        RefusedLayoutError: the ranks do not agree.
        UnreadableError: the directory cannot be made or filled.
    """
    run_dir = RunDir(spec.run_dir)
    try:
        run_dir.device(rank.global_rank).mkdir(parents=True, exist_ok=True)
        _claim(run_dir, rank.global_rank)
        _record(run_dir, spec)
        for name, text in (files or {}).items():
            atomic.write_text(run_dir.root / name, text)  # all ranks have the same
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
    text = spec_to_json(spec)
    if run_dir.run_json.exists():
        _check_agreement(run_dir, text)
        return
    try:
        atomic.write_text(run_dir.run_json, text, replace=False)
    except FileExistsError:  # another rank was faster
        _check_agreement(run_dir, text)
        return
    with suppress(OSError):  # a file system without links, or a directory of that name: the run goes on without
        atomic.point_link(run_dir.root.parent / LATEST, run_dir.root.name)


def _check_agreement(run_dir: RunDir, text: str) -> None:
    """Ranks cannot ask each other: what the first of them recorded stands for all."""
    found = _agreed_on(run_dir.run_json.read_text(encoding="utf-8"))
    own = _agreed_on(text)
    if found is None or own is None or found == own:
        return
    raise RefusedLayoutError(
        f"ranks of {run_dir.root.name} were not started alike: {', '.join(_differences(found, own))}",
        hint="all ranks need the same options and the same rank table, and a run directory that no earlier run has used",
    )


def _agreed_on(text: str) -> dict[str, Any] | None:
    """Return the fields of a run.json that all ranks of a run share; None if the text is not such a record yet."""
    try:
        fields: Any = json.loads(text)
        layout = " ".join(f"{axis}={ways}" for axis, ways in fields["layout"].items())
        return {"port": fields["master_port"], "layout": layout, "servers": fields["cluster"]["servers"]}
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _differences(found: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[str]:
    """Yield each difference between this rank's record and that of the first rank."""
    if own["port"] != found["port"]:
        yield f"this one has MASTER_PORT {own['port']}, the first had {found['port']}"
    if own["layout"] != found["layout"]:
        yield f"this one has {own['layout']}, the first had {found['layout']}"
    if own["servers"] != found["servers"]:
        yield "this one has another rank table than the first"
