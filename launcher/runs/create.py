"""Make a run's directory: whole or not at all, and never over an older one."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from launcher.core import atomic
from launcher.core.errors import UnreadableError
from launcher.core.records import RunSpec
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
        raise UnreadableError(
            f"{runs_dir}: no run directory can be made here: {_why(error)}",
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
            _fill(aside, spec, files)
            aside.root.rename(runs_dir / spec.name)  # refused by the system if a directory with content is there
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
        else:
            return spec
        finally:
            shutil.rmtree(aside.root, ignore_errors=True)


def _fill(aside: RunDir, spec: RunSpec, files: Mapping[str, str]) -> None:
    aside.root.mkdir()
    for rank in spec.ranks:
        aside.device(rank.global_rank).mkdir()
    aside.run_json.write_text(spec_to_json(spec), encoding="utf-8")
    for name, text in files.items():
        (aside.root / name).write_text(text, encoding="utf-8")


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


def _why(error: OSError) -> str:
    return "it is not a directory" if isinstance(error, FileExistsError | NotADirectoryError) else str(error.strerror)
