"""A run's directory: made whole or not at all, with run.json (the RunSpec, secrets masked) and what is read back from it.

An engine of the user's own (`tlaunch exec`) starts ranks that make the directory themselves, in any order, and note their
processes in it. Such a rank becomes its program, and its end is not recorded: it is seen by its process, on its own machine.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from launcher.core import atomic
from launcher.core.codec import decode, encode, json_text
from launcher.core.env import masked, masked_argv
from launcher.core.errors import RefusedLayoutError, UnreadableError, UsageError
from launcher.core.frozen import frozen
from launcher.core.proc import ProcessId
from launcher.core.records import DEFAULT_GRACE_S, Allotment, RankSpec, ResumedFrom, RunSpec
from launcher.core.run_dir import LATEST, RunDir

SCHEMA = 2
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
_masked = lru_cache(maxsize=256)(masked)  # thousands of ranks have most of their variables alike


def spec_to_json(spec: RunSpec, options: Mapping[str, Any] | None = None) -> str:
    """Return the whole spec as JSON, one rank after the other; a variable that is removed is null.

    `options`: those that made this spec, by name, secrets masked.
    """
    record: dict[str, Any] = {
        "schema": SCHEMA,
        **({} if options is None else {"options": options}),
        "name": spec.name,
        "run_dir": str(spec.run_dir),
        "cwd": str(spec.cwd),
        "master_addr": spec.master_addr,
        "master_port": spec.master_port,
        "supervision": asdict(spec.supervision),
        "console": spec.console,
        "engine": spec.engine,
        "continues": encode(spec.continues),
        "progress_regex": spec.progress_regex,
        "layout": asdict(spec.layout),
        "cluster": {
            "source": None if spec.cluster.source is None else str(spec.cluster.source),
            "servers": [asdict(server) for server in spec.cluster.servers],
        },
        "ranks": [
            {**vars(rank), "argv": masked_argv(rank.argv), "env": masked_environment(rank.env)} for rank in spec.ranks
        ],
    }
    return json_text(record)


def masked_environment(environment: Mapping[str, str | None]) -> dict[str, str | None]:
    return {name: None if value is None else _masked(name, value) for name, value in environment.items()}


@frozen
class Place:
    """The place of a rank, as the rank table has it."""

    global_rank: int
    server_id: str
    server_index: int
    device_id: int


@frozen
class Recorded:
    places: tuple[Place, ...]  # ascending by global rank
    grace_s: float
    max_restarts: int
    engine: str | None = None  # the user's own that started the ranks; None: tlaunch did
    continues: ResumedFrom | None = None
    # Of an elastic run, all that it may use, by the ranks that the whole table gives them.
    devices: tuple[Place, ...] = ()

    def places_in(self, allotment: Allotment | None) -> tuple[Place, ...]:
        """Return the places of the ranks of an attempt, ascending by global rank."""
        if allotment is None or len(self.devices) <= max(allotment.devices):
            return self.places
        return tuple(replace(self.devices[device], global_rank=rank) for rank, device in enumerate(allotment.devices))


def read_recorded(run_dir: RunDir) -> Recorded:
    """Read run.json.

    Raises:
        UnreadableError: it is missing, unreadable, or not a record of a run.
    """
    path = run_dir.run_json
    try:
        fields: Any = json.loads(path.read_bytes())
        supervision = fields.get("supervision", {})
        places = [decode(Place, rank) for rank in fields["ranks"]]
        return Recorded(
            places=_ascending(places),
            grace_s=float(supervision.get("grace_s", fields.get("grace_s", DEFAULT_GRACE_S))),
            max_restarts=int(supervision.get("max_restarts", 0)),
            engine=None if fields.get("engine") is None else str(fields["engine"]),
            devices=_ascending(_devices(fields["cluster"]["servers"])) if supervision.get("elastic") else (),
            continues=_continued(fields),
        )
    except OSError as error:
        raise UnreadableError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnreadableError(f"{path} is no record of a run that this version understands") from error


def read_options(run_dir: RunDir) -> tuple[Mapping[str, Any], Path] | None:
    """Return the options that a run was started with, and the directory that it was started in. None if it was not recorded.

    Raises:
        UnreadableError: run.json is missing, unreadable, or not a record of a run.
    """
    path = run_dir.run_json
    try:
        fields: Any = json.loads(path.read_bytes())
        options, cwd = fields.get("options"), Path(fields["cwd"])
    except OSError as error:
        raise UnreadableError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnreadableError(f"{path} is no record of a run that this version understands") from error
    return (options, cwd) if isinstance(options, dict) else None


def _devices(servers: Any) -> Iterator[Place]:
    for index, server in enumerate(servers):
        for device in server["devices"]:
            yield Place(device["global_rank"], server["server_id"], index, device["device_id"])


def _ascending(places: Iterable[Place]) -> tuple[Place, ...]:
    return tuple(sorted(places, key=lambda place: place.global_rank))


def continued_by(run_dir: RunDir) -> ResumedFrom | None:
    """Return what a run goes on from, as far as its run.json says so. Never raises for what that holds."""
    with suppress(OSError, ValueError, TypeError, AttributeError, RecursionError):
        return _continued(json.loads(run_dir.run_json.read_bytes()))
    return None


def _continued(fields: Mapping[str, Any]) -> ResumedFrom | None:
    found = fields.get("continues")
    return None if found is None else decode(ResumedFrom, found)


# --- making the directory ---


def free_name(runs_dir: Path, wanted: str) -> str:
    """Return `wanted`, or the first of wanted-2, wanted-3, ... that is free in `runs_dir`."""
    names = itertools.chain([wanted], (f"{wanted}-{number}" for number in itertools.count(2)))
    return next(name for name in names if not os.path.lexists(runs_dir / name))


def create_run(
    runs_dir: Path,
    wanted: str,
    specify: Callable[[str], RunSpec],
    files: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> RunSpec:
    """Make the directory of a new run, with a device directory per rank, run.json (with `options`) and `files` (name: text).

    `specify` gives the spec for a name; it is called again if another run takes the name meanwhile. Everything is
    written aside and renamed; on failure nothing is left, `runs_dir` itself included where it was made here. At last
    `latest` points to the new run, if that is possible.

    Raises:
        UnreadableError: no directory can be made or filled there.
    """
    try:
        with _directory(runs_dir):
            while (spec := specify(free_name(runs_dir, wanted))) and not _claim(runs_dir, spec, files or {}, options):
                pass
    except OSError as error:
        no_directory = isinstance(error, FileExistsError | NotADirectoryError)
        why = "it is not a directory" if no_directory else error.strerror
        raise UnreadableError(
            f"{runs_dir}: no run directory can be made here: {why}",
            hint="--runs-dir DIR, or TLAUNCH_RUNS_DIR, names another place",
        ) from error
    _point_latest(runs_dir, spec.name)
    return spec


def _claim(runs_dir: Path, spec: RunSpec, files: Mapping[str, str], options: Mapping[str, Any] | None) -> bool:
    """Make the run's directory; return False if its name has been taken meanwhile."""
    aside = RunDir(runs_dir / f".{spec.name}.{os.urandom(4).hex()}.partial")
    try:
        aside.root.mkdir()
        for rank in spec.ranks:
            aside.device(rank.global_rank).mkdir()
        aside.run_json.write_text(spec_to_json(spec, options), encoding="utf-8")
        for name, text in files.items():
            (aside.root / name).write_text(text, encoding="utf-8")
        aside.root.rename(runs_dir / spec.name)  # refused by the system if a directory with content is there
    except OSError as error:
        if error.errno not in _TAKEN:
            raise
        return False
    finally:
        shutil.rmtree(aside.root, ignore_errors=True)
    return True


def _point_latest(runs_dir: Path, name: str) -> None:
    with suppress(OSError):  # a file system without links, or a directory of that name: the run needs no link
        atomic.point_link(runs_dir / LATEST, name)


@contextmanager
def _directory(path: Path) -> Iterator[None]:
    """Make `path`; if the block fails, remove what had to be made for it."""
    missing = list(itertools.takewhile(lambda parent: not parent.exists(), (path, *path.parents)))
    try:
        path.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for made in missing:
            with suppress(OSError):  # not made after all, or used by another run by now
                made.rmdir()
        raise


def join_run(spec: RunSpec, rank: RankSpec, files: Mapping[str, str] | None = None) -> RunDir:
    """Make the run's directory, with run.json and `files` (name: text), and that of `rank`, which no earlier run has used.

    Ranks may call this at the same time, on one file system or on one per server: the rank that finds no run.json writes
    it, and the others must agree with it. `files` are there for a rank as soon as this returns.

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
                hint="give this run a name that no other has: "
                "TLAUNCH_RUN_ID=$(date +%Y%m%d-%H%M%S) in the environment of all ranks",
            ) from None
        _write_or_compare(run_dir, spec_to_json(spec))
        for name, text in (files or {}).items():
            atomic.write_text(run_dir.root / name, text)  # all ranks have the same
    except OSError as error:
        raise UnreadableError(
            f"{run_dir.root}: this run directory cannot be made or filled: {error.strerror}",
            hint="--runs-dir DIR, or TLAUNCH_RUNS_DIR, names another place",
        ) from error
    return run_dir


def _write_or_compare(run_dir: RunDir, text: str) -> None:
    """Write run.json, or compare it: ranks cannot ask each other, and what the first of them recorded counts for all."""
    if not run_dir.run_json.exists():
        with suppress(FileExistsError):  # another rank was faster
            atomic.write_text(run_dir.run_json, text, replace=False)
            _point_latest(run_dir.root.parent, run_dir.root.name)
            return
    found, own = _agreed_on(run_dir.run_json.read_text(encoding="utf-8")), _agreed_on(text)
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


def _agreed_on(text: str) -> dict[str, Any] | None:
    """Return the fields of a run.json that all ranks of a run share; None if the text is not such a record yet."""
    try:
        fields: Any = json.loads(text)
        layout = " ".join(f"{axis}={degree}" for axis, degree in fields["layout"].items())
        return {"port": fields["master_port"], "layout": layout, "servers": fields["cluster"]["servers"]}
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


# --- ranks of an engine of the user's own ---


def note_process(run_dir: RunDir, global_rank: int, process: ProcessId) -> None:
    """Write which process this rank is, and its program will be.

    Raises:
        OSError: it cannot be written.
    """
    atomic.write_text(run_dir.process(global_rank), json.dumps(asdict(process)) + "\n")


class EngineRanks:
    """The processes of ranks that an engine of the user's own started. Each note is read once."""

    def __init__(self, run_dir: RunDir, recorded: Recorded) -> None:
        self._run_dir = run_dir
        self._places = recorded.places
        self._noted: dict[int, ProcessId] = {}  # by global rank

    def look(self) -> Mapping[int, ProcessId]:
        for place in self._places:
            if place.global_rank not in self._noted:
                with suppress(OSError, ValueError, TypeError, RecursionError):
                    fields = json.loads(self._run_dir.process(place.global_rank).read_bytes())
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
