"""Remove finished runs: decide which runs can be removed, which must stay and why."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from launcher.core.atomic import point_link, renamed_error
from launcher.core.frozen import frozen
from launcher.core.run_dir import LATEST, RunDir
from launcher.runs.progress import State
from launcher.runs.record import initial_model_of
from launcher.runs.registry import registered
from launcher.runs.status import RunState, look
from launcher.runs.store import newest_first, run_at
from launcher.runs.training_history import runs_before

_REMOVED = ".removed"  # suffix of a run directory whose files are being removed, and of run.json in it


@frozen
class FoundRun:
    root: Path  # as found, perhaps a link
    state: RunState
    stays: str | None  # why it must not be removed, or None

    @property
    def over_ns(self) -> int:
        return self.state.ended_ns or self.state.started_ns or 0


def runs_found(runs_dir: Path) -> list[FoundRun]:
    """Return all runs in `runs_dir`, newest first."""
    roots = (runs_dir / name for name in newest_first(runs_dir))
    states = ((root, look(run_at(root))) for root in roots)
    return [FoundRun(root, state, _why_it_stays(root, state)) for root, state in states]


def _why_it_stays(root: Path, state: RunState) -> str | None:
    if root.is_symlink():
        return "it is a link"
    if state.state.going_on:
        return f"it is {state.state.value}"
    if state.lives:
        return "some of its processes are still running"
    uncertain = {
        State.ELSEWHERE: f"it may be active on {state.host or 'another machine'}",
        State.UNWATCHED: f"it was started by {state.engine}, and its end is not known",
        State.UNKNOWN: "it was written by another version of tlaunch",
    }
    if state.state is State.ELSEWHERE and state.host == socket.gethostname():
        del uncertain[state.state]  # it was active before the last boot of this machine
    is_anothers = os.geteuid() not in {0, os.lstat(root).st_uid}
    return uncertain.get(state.state) or ("it belongs to another user" if is_anothers else None)


def needed_among(roots: Collection[Path], others: Iterable[Path]) -> dict[Path, str]:
    """Find the runs in `roots` that runs in `others` were resumed from or started from. Map each to the reason."""
    by_place = {os.path.realpath(root): root for root in roots}
    found: dict[Path, str] = {}
    for other in others:
        model = initial_model_of(RunDir(other))
        needed = [(earlier.root, "was resumed from it") for earlier, _ in runs_before(RunDir(other))]
        needed += [(path, "started from its model") for path in (Path(model).parents if model else ())]
        for path, why in needed:
            if (root := by_place.get(os.path.realpath(path))) is not None:
                found.setdefault(root, f"run {other.name} {why}")
    return found


class Removal:
    """Removes runs one by one. A run is kept if another run was resumed or started from it meanwhile."""

    def __init__(self, runs_dir: Path, known: Iterable[Path]) -> None:
        """Prepare the removals. The runs in `known` were already checked: none needs a run to be removed."""
        self._runs_dir = runs_dir
        self._known: dict[Path, set[str]] = {}
        for root in known:
            self._known.setdefault(root.parent, {LATEST}).add(root.name)

    def remove(self, root: Path) -> str | None:
        """Remove a run, or return the reason if it must stay.

        The directory is renamed first, so that no reader sees a run with missing files. Raises FileNotFoundError if
        another process has removed it, and OSError if files remain, which then have a hidden name.
        """
        if why := needed_among([root], self._started_meanwhile()).get(root):
            return why
        aside = root.with_name(f".{root.name}.{os.urandom(4).hex()}{_REMOVED}")
        with renamed_error(root, aside):
            root.rename(aside)
        with suppress(OSError):
            RunDir(aside).run_json.rename(_mark(aside))
        _remove_files(aside)
        with suppress(FileNotFoundError):  # already removed, perhaps by another process in `finish_earlier`
            shutil.rmtree(aside)
        return None

    def _started_meanwhile(self) -> Iterator[Path]:
        # List each directory once: many removals take quadratic time here.
        here = self._runs_dir.resolve()
        for place in (self._runs_dir, *(place for place in registered() if place != here)):
            known = self._known.get(place, {LATEST})
            with suppress(FileNotFoundError, PermissionError):
                for name in os.listdir(place):  # noqa: PTH208
                    if name not in known and not name.startswith("."):
                        yield place / name

    def finish_earlier(self) -> None:
        """Finish interrupted removals. Skip directories without a marker file, because a user may have made them."""
        for left in self._runs_dir.glob(f".*.{'[0-9a-f]' * 8}{_REMOVED}"):
            if os.path.lexists(_mark(left)) and not left.is_symlink():
                _remove_files(left)

    def mend_latest(self) -> None:
        """Point `latest` to the newest remaining run if the link's target is gone."""
        latest = self._runs_dir / LATEST
        if not latest.is_symlink() or latest.exists():
            return
        with suppress(OSError):  # no command needs the link
            pointed = None
            while (newest := next(iter(newest_first(self._runs_dir)), None)) not in {pointed, None}:
                point_link(latest, newest or "")
                pointed = newest  # this may have replaced the link of a run that has just started
            if pointed is None:
                latest.unlink()


def _mark(aside: Path) -> Path:
    """Return the path of the file that marks a run as being removed: the renamed run.json."""
    return aside / f"run.json{_REMOVED}"


def _remove_files(aside: Path) -> None:
    """Remove as many files of a run as possible. Remove subdirectories first, so that the marker file stays longest."""
    with suppress(OSError), os.scandir(aside) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
    shutil.rmtree(aside, ignore_errors=True)
