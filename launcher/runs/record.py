"""Create a run's directory atomically; write and read its run.json, the RunSpec with secrets masked."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from launcher.core import atomic
from launcher.core.codec import decode, encode, json_text, read_json, real_number
from launcher.core.errors import UnreadableError
from launcher.core.frozen import frozen
from launcher.core.records import DEFAULT_GRACE_S, DeviceAssignment, ResumedFrom, RunSpec
from launcher.core.run_dir import LATEST, RunDir
from launcher.preload.masking import masked, masked_argv

SCHEMA = 2
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
_masked = lru_cache(maxsize=256)(masked)  # thousands of ranks share most of their variables


def spec_to_json(spec: RunSpec, options: Mapping[str, Any] | None = None) -> str:
    """Return the complete spec of a run as JSON. A null value marks an environment variable that the run removes.

    `options`: the command-line options of the run, by name, with secrets masked.
    """
    supervision = spec.supervision
    if supervision.scheduler is not None:  # its command may be the user's
        supervision = replace(supervision, scheduler=masked_argv(supervision.scheduler))
    record: dict[str, Any] = {
        "schema": SCHEMA,
        **({} if options is None else {"options": options}),
        "name": spec.name,
        "run_dir": str(spec.run_dir),
        "cwd": str(spec.cwd),
        "master_addr": spec.master_addr,
        "master_port": spec.master_port,
        "supervision": asdict(supervision),
        "console": spec.console,
        "engine": spec.engine,
        "continues": encode(spec.continues),
        "progress_regex": spec.progress_regex,
        "stdin": spec.stdin,
        "offers_stdin": spec.offers_stdin,
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
class RankPlace:
    global_rank: int
    server_id: str
    server_index: int
    device_id: int


@frozen
class Recorded:
    places: tuple[RankPlace, ...]  # ascending by global rank
    grace_s: float
    max_restarts: int
    engine: str | None = None  # the external engine that started the ranks; None: tlaunch did
    continues: ResumedFrom | None = None
    init_from: str | None = None  # path of the initial model
    # All devices of an elastic run, by their rank in the complete rank table.
    devices: tuple[RankPlace, ...] = ()

    def places_in(self, allotment: DeviceAssignment | None) -> tuple[RankPlace, ...]:
        """Return the server and device of each rank of an attempt, ascending by global rank."""
        if allotment is None or len(self.devices) <= max(allotment.devices):
            return self.places
        return tuple(replace(self.devices[device], global_rank=rank) for rank, device in enumerate(allotment.devices))


def read_recorded(run_dir: RunDir) -> Recorded:
    """Read run.json. Raises UnreadableError if it is missing, unreadable or not a run record."""
    with _understood(run_dir):
        fields = read_json(run_dir.run_json)
        supervision = fields.get("supervision", {})
        grace_s = real_number(supervision.get("grace_s", fields.get("grace_s", DEFAULT_GRACE_S)))
        if grace_s is None:
            raise ValueError("grace_s is not a finite number")
        servers = fields["cluster"]["servers"] if supervision.get("elastic") else ()
        devices = (
            {**device, "server_id": server["server_id"], "server_index": index}
            for index, server in enumerate(servers)
            for device in server["devices"]
        )
        return Recorded(
            places=_ascending(fields["ranks"]),
            grace_s=grace_s,
            max_restarts=decode(int, supervision.get("max_restarts", 0)),
            engine=None if fields.get("engine") is None else decode(str, fields["engine"]),
            devices=_ascending(devices),
            continues=_continued(fields),
            init_from=_initial(fields),
        )


def read_options(run_dir: RunDir) -> tuple[Mapping[str, Any], Path] | None:
    """Return a run's recorded options and working directory, or None if no options were recorded."""
    with _understood(run_dir):
        fields = read_json(run_dir.run_json)
        options, cwd = fields.get("options"), Path(fields["cwd"])
    return (options, cwd) if isinstance(options, dict) else None


def read_fields(run_dir: RunDir) -> Mapping[str, Any]:
    """Return the content of run.json. The result is empty if the file cannot be read or is not a JSON object."""
    with suppress(OSError, ValueError):
        if isinstance(fields := read_json(run_dir.run_json), dict):
            return fields
    return {}


@contextmanager
def _understood(run_dir: RunDir) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UnreadableError(f"{run_dir.run_json} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnreadableError(f"{run_dir.run_json} is not a valid run record for this version of tlaunch") from error


def _ascending(places: Iterable[Any]) -> tuple[RankPlace, ...]:
    return tuple(sorted((decode(RankPlace, place) for place in places), key=lambda place: place.global_rank))


def continued_by(run_dir: RunDir) -> ResumedFrom | None:
    """Return the checkpoint that a run resumed from, or None if its run.json names none."""
    with suppress(ValueError):
        return _continued(read_fields(run_dir))
    return None


def initial_model_of(run_dir: RunDir) -> str | None:
    """Return the path of the model that a run started from, or None if its run.json names none."""
    with suppress(ValueError, AttributeError):
        return _initial(read_fields(run_dir))
    return None


def _initial(fields: Mapping[str, Any]) -> str | None:
    found = fields.get("options", {}).get("init_from")
    return None if found is None else decode(str, found)


def _continued(fields: Mapping[str, Any]) -> ResumedFrom | None:
    found = fields.get("continues")
    return None if found is None else decode(ResumedFrom, found)


# --- making the directory ---

_ELSEWHERE = "choose another directory with `--runs-dir DIR` or TLAUNCH_RUNS_DIR"


@contextmanager
def filling(run_dir: RunDir) -> Iterator[None]:
    """Convert an OSError in the block into an UnreadableError about the run directory."""
    try:
        yield
    except OSError as error:
        raise UnreadableError(
            f"{run_dir.root}: cannot create the run directory or write to it: {error.strerror}", hint=_ELSEWHERE
        ) from error


def free_name(runs_dir: Path, wanted: str) -> str:
    """Return the first name among `wanted`, wanted-2, wanted-3, ... that is free in `runs_dir`."""
    names = itertools.chain([wanted], (f"{wanted}-{number}" for number in itertools.count(2)))
    return next(name for name in names if not os.path.lexists(runs_dir / name))


def create_run(
    runs_dir: Path,
    wanted: str,
    specify: Callable[[str], RunSpec],
    files: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> RunSpec:
    """Create the directory of a new run with a directory for each rank, run.json and the given files.

    `specify` returns the spec for a name. It is called again if another run takes the name in the meantime. The
    directory is written under a temporary name and renamed. On failure everything is removed, also `runs_dir` if it was
    created by this call. Finally the link `latest` is updated if possible. Raises UnreadableError.
    """
    try:
        with _directory(runs_dir):
            while (spec := specify(free_name(runs_dir, wanted))) and not _claim(runs_dir, spec, files or {}, options):
                pass
    except OSError as error:
        no_directory = isinstance(error, FileExistsError | NotADirectoryError)
        why = "it is not a directory" if no_directory else error.strerror
        raise UnreadableError(f"cannot create a run directory in {runs_dir}: {why}", hint=_ELSEWHERE) from error
    point_latest(runs_dir, spec.name)
    return spec


def _claim(runs_dir: Path, spec: RunSpec, files: Mapping[str, str], options: Mapping[str, Any] | None) -> bool:
    """Create the run's directory. Return False if the run's name has been taken in the meantime."""
    aside = RunDir(runs_dir / f".{spec.name}.{os.urandom(4).hex()}.partial")
    try:
        aside.root.mkdir()
        for rank in spec.ranks:
            aside.device(rank.global_rank).mkdir()
        aside.run_json.write_text(spec_to_json(spec, options), encoding="utf-8")
        for name, text in files.items():
            (aside.root / name).write_text(text, encoding="utf-8")
        aside.root.rename(runs_dir / spec.name)  # fails if a non-empty directory exists
    except OSError as error:
        if error.errno not in _TAKEN:
            raise
        return False
    finally:
        shutil.rmtree(aside.root, ignore_errors=True)
    return True


def point_latest(runs_dir: Path, name: str) -> None:
    """Point the link `latest` to the run called `name`. Ignore errors, since the link is optional."""
    with suppress(OSError):  # no link support, or a directory of that name: the link is optional
        atomic.point_link(runs_dir / LATEST, name)


@contextmanager
def _directory(path: Path) -> Iterator[None]:
    """Create `path` and its parents. If the block fails, remove the directories that were created."""
    missing = list(itertools.takewhile(lambda parent: not parent.exists(), (path, *path.parents)))
    try:
        path.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for made in missing:
            with suppress(OSError):  # not created, or already used by another run
                made.rmdir()
        raise
