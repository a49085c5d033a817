"""Find a run again: by directory, by name, or simply the latest."""

from __future__ import annotations

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
        if RunDir(candidate).run_json.is_file():
            return RunDir(candidate.resolve())
    raise UnreadableError(
        f"{reference}: neither a run in {runs_dir} nor a run's directory (no run.json)", hint=_known(runs_dir)
    )


def run_names(runs_dir: Path) -> tuple[str, ...]:
    """The runs in `runs_dir`, oldest first as far as names begin with their time. Empty if there is no directory."""
    if not runs_dir.is_dir():
        return ()
    return tuple(sorted(path.parent.name for path in runs_dir.glob("[!.]*/run.json") if path.parent.name != LATEST))


def _latest(runs_dir: Path) -> RunDir:
    latest = RunDir(runs_dir / LATEST)
    if latest.run_json.is_file():
        return RunDir(latest.root.resolve())
    raise UnreadableError(f"{runs_dir}: there is no latest run here", hint=_known(runs_dir))


def _known(runs_dir: Path, limit: int = 3) -> str:
    names = run_names(runs_dir)
    if not names:
        return f"{runs_dir} holds no runs; --runs-dir names another place"
    return f"the newest of {len(names)} runs in {runs_dir}: {', '.join(reversed(names[-limit:]))}"
