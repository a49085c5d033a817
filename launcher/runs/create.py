"""Make a run's directory: whole or not at all, and never over an older one; or each rank its own part, in any order."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from launcher.core import atomic
from launcher.core.errors import RefusedLayoutError, UnreadableError, UsageError
from launcher.core.records import RankSpec, RunSpec
from launcher.core.run_dir import LATEST, RunDir
from launcher.runs.record import spec_to_json

_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)


def free_name(runs_dir: Path, wanted: str) -> str:
    """`wanted`, or the first of wanted-2, wanted-3, ... that nothing in `runs_dir` is called yet."""
    names = itertools.chain([wanted], (f"{wanted}-{number}" for number in itertools.count(2)))
    return next(name for name in names if not os.path.lexists(runs_dir / name))


def create_run(
    runs_dir: Path, wanted: str, specify: Callable[[str], RunSpec], files: Mapping[str, str] | None = None
) -> RunSpec:
    """Make the directory of a new run, with a device directory per rank, run.json and `files` (name: text).

    `specify` gives the spec for a name; it is asked again when someone else takes the name meanwhile. Everything is
    written aside and renamed; on failure nothing is left, `runs_dir` itself included where it was made here. At last
    `latest` points to the new run, if that is possible.

    Raises:
        UnreadableError: no directory can be made or filled there.
    """
    try:
        with _directory(runs_dir):
            spec = _claim(runs_dir, wanted, specify, files or {})
    except OSError as error:
        no_directory = isinstance(error, FileExistsError | NotADirectoryError)
        why = "it is not a directory" if no_directory else error.strerror
        raise UnreadableError(
            f"{runs_dir}: no run directory can be made here: {why}",
            hint="--runs-dir DIR, or TLAUNCH_RUNS_DIR, names another place",
        ) from error
    with suppress(OSError):  # a file system without links, or a directory of that name: the run goes on without
        atomic.point_link(runs_dir / LATEST, spec.name)
    return spec


def _claim(runs_dir: Path, wanted: str, specify: Callable[[str], RunSpec], files: Mapping[str, str]) -> RunSpec:
    while True:
        spec = specify(free_name(runs_dir, wanted))
        aside = RunDir(runs_dir / f".{spec.name}.{os.urandom(4).hex()}.partial")
        try:
            aside.root.mkdir()
            for rank in spec.ranks:
                aside.device(rank.global_rank).mkdir()
            aside.run_json.write_text(spec_to_json(spec), encoding="utf-8")
            for name, text in files.items():
                (aside.root / name).write_text(text, encoding="utf-8")
            aside.root.rename(runs_dir / spec.name)  # refused by the system if a directory with content is there
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
        else:
            return spec
        finally:
            shutil.rmtree(aside.root, ignore_errors=True)


@contextmanager
def _directory(path: Path) -> Iterator[None]:
    """Have `path` exist; if the block fails, take away again what had to be made for it."""
    missing = list(itertools.takewhile(lambda parent: not parent.exists(), (path, *path.parents)))
    try:
        path.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for made in missing:
            with suppress(OSError):  # not made after all, or someone else uses it by now
                made.rmdir()
        raise


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
        try:  # one process alone succeeds in making a rank's env.log, on NFS too
            os.close(os.open(run_dir.env_log(rank.global_rank), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            raise UsageError(
                f"{run_dir.root} holds an earlier run already",
                hint="give this one a name that no other has: "
                "TLAUNCH_RUN_ID=$(date +%Y%m%d-%H%M%S) in the environment of all ranks",
            ) from None
        _record(run_dir, spec)
        for name, text in (files or {}).items():
            atomic.write_text(run_dir.root / name, text)  # all ranks have the same
    except OSError as error:
        raise UnreadableError(
            f"{run_dir.root}: this run directory cannot be made or filled: {error.strerror}",
            hint="--runs-dir DIR, or TLAUNCH_RUNS_DIR, names another place",
        ) from error
    return run_dir


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
