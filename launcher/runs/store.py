"""Find a run again: by directory, by name, or simply the latest."""

from __future__ import annotations

import os
from pathlib import Path

from launcher.core.errors import UnreadableError
from launcher.core.run_dir import LATEST, RunDir


def find_run(runs_dir: Path, reference: str | None) -> RunDir:
    """The run that `reference` means: a run's directory, a run's name in `runs_dir`, or None for the latest.

    Raises:
        UnreadableError: there is no such run.
    """
    if reference is None:
        return _latest(runs_dir)
    for candidate in (runs_dir / reference, Path(reference)):
        if _is_file(RunDir(candidate).run_json):
            return run_at(candidate.resolve())
    raise UnreadableError(
        f"{reference}: neither a run in {runs_dir} nor a run's directory (no run.json)", hint=_known(runs_dir)
    )


def run_at(root: Path) -> RunDir:
    """The run in this directory. Where only files of another server than the head's are, they tell of that server's part.

    Of several such servers, which share a disk but not with the head, it is the first one's.
    """
    if os.path.lexists(RunDir(root).events):
        return RunDir(root)
    parts = [int(path.parent.name[len("server") :]) for path in root.glob("server[0-9]*/events.jsonl")]
    return RunDir(root, min(parts, default=None))


def run_names(runs_dir: Path) -> tuple[str, ...]:
    """The runs in `runs_dir`, oldest first as far as names begin with their time. Empty if there is no directory."""
    if not os.path.isdir(runs_dir):  # noqa: PTH112 - see `_is_file`
        return ()
    return tuple(sorted(path.parent.name for path in runs_dir.glob("[!.]*/run.json") if path.parent.name != LATEST))


def _is_file(path: Path) -> bool:
    return os.path.isfile(path)  # noqa: PTH113 - Path.is_file raises where a name is too long or may not be looked at


def _latest(runs_dir: Path) -> RunDir:
    latest = RunDir(runs_dir / LATEST)
    if _is_file(latest.run_json):
        return run_at(latest.root.resolve())
    if os.path.lexists(latest.root):
        raise UnreadableError(
            f"{latest.root}: {os.path.realpath(latest.root)} has no run.json: a job file has started it without tlaunch "
            "run or exec, or it is gone",
            hint=_known(runs_dir),
        )
    raise UnreadableError(f"{runs_dir}: there is no latest run here", hint=_known(runs_dir))


def _known(runs_dir: Path, limit: int = 3) -> str:
    names = sorted(run_names(runs_dir), key=lambda name: _begun_ns(runs_dir / name))
    if not names:
        return f"{runs_dir} holds no runs; --runs-dir names another place"
    return f"the newest of {len(names)} runs in {runs_dir}: {', '.join(reversed(names[-limit:]))}"


def _begun_ns(root: Path) -> int:
    """run.json is written before the start, and never again; a run's own name need not begin with its time."""
    try:
        return RunDir(root).run_json.stat().st_mtime_ns
    except OSError:  # removed meanwhile
        return 0
