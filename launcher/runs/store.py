"""Find a run by directory, name, prefix of a name, or as the latest."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from launcher.core.errors import UnreadableError, UsageError
from launcher.core.events import AgentStarted
from launcher.core.machine.owner import is_trusted
from launcher.core.machine.proc import ProcessId
from launcher.core.run_dir import LATEST, RunDir
from launcher.core.text import did_you_mean, near
from launcher.logs.terminal import escaped
from launcher.runs.event_reader import EventReader
from launcher.runs.owner import is_of_owner, owner_of

MAX_NAMED = 8  # matching runs named in a message; the others are counted
_LATEST = re.compile(rf"{LATEST}(?:~[0-9]{{1,9}})?")
_TIMED = re.compile(r"(?P<time>\d{8}-\d{6}-)(?P<given>.+)")  # as named by `tlaunch run`
_SERVER = re.compile(r"server(0|[1-9][0-9]{0,8})")
_COUNTED = re.compile(r"-\d+$")  # distinguishes runs started in the same second


def find_run(runs_dir: Path, reference: str | None, note: Callable[[str], None] = lambda _: None) -> RunDir:
    """Return the run that `reference` names, or the latest run if `reference` is None. `note` receives warnings."""
    if reference is None:
        return _latest(runs_dir, note)
    if means_latest(reference):
        return _older(runs_dir, int(reference.partition("~")[2] or 0), note)
    newest, *others = find_runs(runs_dir, reference)
    if others:
        note(f"the newest of {len(others) + 1} runs named {escaped(reference)} (tlaunch ps --all lists them)")
    return newest


def find_runs(runs_dir: Path, reference: str) -> tuple[RunDir, ...]:
    """Return the run whose directory or name is `reference`, or else all runs with this --name, newest first.

    If there are none, return the only run whose name or --name starts with `reference`. Raises UnreadableError if there
    is no such run, and UsageError if `reference` is empty, or a prefix of several runs' names.
    """
    if not reference:  # otherwise it would mean the current directory
        raise UsageError("RUN is empty", hint="pass a run name, or omit RUN; check for an empty shell variable")
    for candidate in (runs_dir / reference, Path(reference)):
        if _is_file(RunDir(candidate).run_json):
            return (run_at(candidate.resolve()),)
    names = newest_first(runs_dir)
    given = given_names(names)
    called = [name for name in names if reference in given[name]]
    if not called:
        called = [name for name in names if any(each.startswith(reference) for each in (name, *given[name]))]
        if len(called) > 1:
            raise UsageError(
                f"{len(called)} runs have names that start with {escaped(reference)}: {_listed(called)}",
                hint="give more of the name",
            )
    if called:
        return tuple(run_at((runs_dir / name).resolve()) for name in called)
    why = f"no run in {runs_dir} has this name, and it is not a run's directory"
    for candidate in (Path(reference), runs_dir / reference):
        if os.path.isdir(candidate):  # noqa: PTH112 - see `_is_file`
            why = _why_no_run(candidate)
    words = dict.fromkeys(itertools.chain(*given.values(), names))
    hint = did_you_mean(map(escaped, near(reference, words))) or _known(runs_dir)
    raise UnreadableError(f"{escaped(reference)}: {why}", hint=hint)


def place_among(places: Iterable[Path], reference: str | None) -> Path | None:
    """Return the directory in `places` that contains the run `reference` (default: the newest run), or None.

    Raises UsageError if several contain a run of that name, or, if none does, a run with that prefix.
    """
    if reference is None or means_latest(reference):
        newest = [(_started_ns(place, names[0]), place) for place in places if (names := newest_first(place))]
        return max(newest, default=(0, None))[1]
    found: dict[Path, tuple[RunDir, ...]] = {}
    for place in places:
        with suppress(UnreadableError):
            found[place] = find_runs(place, reference)
    exact = [place for place, runs in found.items() if runs[0].root.name == reference]
    meant = exact or list(found)
    if len(meant) > 1:
        roots = [str(found[place][0].root) for place in meant]
        raise UsageError(
            f"{len(meant)} runs match {escaped(reference)}: {_listed(roots)}", hint="give the run's directory"
        )
    return meant[0] if meant else None


def newest_with(places: Iterable[Path], has_it: Callable[[RunDir], bool]) -> RunDir | None:
    """Return the most recently started run in `places` for which `has_it` returns True, or None."""
    newest: list[tuple[int, Path]] = []
    for place in places:
        found = (name for name in newest_first(place) if has_it(RunDir(place / name)))
        newest += [(_started_ns(place, name), place / name) for name in itertools.islice(found, 1)]
    return run_at(max(newest)[1].resolve()) if newest else None


def means_latest(reference: str) -> bool:
    """Return True if `reference` is "latest" or refers to an earlier run, such as "latest~2"."""
    return _LATEST.fullmatch(reference) is not None


def run_at(root: Path) -> RunDir:
    """Return the RunDir of the run in the directory `root`.

    The directory may contain only one part per server, if servers do not share the launcher's file system or a run.sh
    started each. Then return the part of this machine, or else the first.
    """
    if os.path.lexists(RunDir(root).events):
        return RunDir(root)
    names = (path.parent.name for path in root.glob("server[0-9]*/events.jsonl"))
    found = sorted(int(match[1]) for name in names if (match := _SERVER.fullmatch(name)))
    parts = [RunDir(root, server_index) for server_index in found]
    for part in parts if len(parts) > 1 else ():
        first = next(EventReader(part.events).read(), None)
        if first is not None and isinstance(first.event, AgentStarted) and first.event.agent.is_local:
            return part
    return parts[0] if parts else RunDir(root)


def last_agent(run_dir: RunDir) -> ProcessId | None:
    """Return the process of a run's last agent on this server, or None if it does not belong to the run's owner."""
    agent, reader = None, EventReader(run_dir.events)
    for stamped in reader.read():
        if isinstance(stamped.event, AgentStarted):
            agent = stamped.event.agent
    owner = owner_of(run_dir, frozenset(reader.uids))
    return agent if agent is not None and is_of_owner(agent, owner, run_dir.events) else None


def run_names(runs_dir: Path) -> tuple[str, ...]:
    """Return the sorted names of the runs in `runs_dir`. Names that start with a time are thus oldest first."""
    if not os.path.isdir(runs_dir):  # noqa: PTH112 - see `_is_file`
        return ()
    return tuple(sorted(path.parent.name for path in runs_dir.glob("[!.]*/run.json") if path.parent.name != LATEST))


def newest_first(runs_dir: Path) -> list[str]:
    """Return the names of the runs in `runs_dir`, most recently started first."""
    return sorted(run_names(runs_dir), key=lambda name: (_started_ns(runs_dir, name), name), reverse=True)


def _started_ns(runs_dir: Path, name: str) -> int:
    # run.json is written once, before the start; a run's name may not start with its time.
    with suppress(OSError):  # removed in the meantime
        return (runs_dir / name / "run.json").stat().st_mtime_ns
    return 0


def _is_file(path: Path) -> bool:
    return os.path.isfile(path)  # noqa: PTH113 - Path.is_file raises if a name is too long or not accessible


def given_names(names: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Map each run directory's name, such as 20261121-120000-NAME-2, to the --name values that the run may have had."""
    all_names = frozenset(names)
    called: dict[str, tuple[str, ...]] = {}
    for name in names:
        called[name] = ()
        if timed := _TIMED.fullmatch(name):
            given = timed["given"]
            first = _COUNTED.sub("", given)
            is_second = first != given and f"{timed['time']}{first}" in all_names
            called[name] = (given, first) if is_second else (given,)
    return called


# --- the latest ---


def _latest(runs_dir: Path, note: Callable[[str], None]) -> RunDir:
    """Return the run that `latest` links to, or the newest readable run if there is no trusted link.

    Job files do not update the link. In a sticky directory only its owner can.
    """
    latest = RunDir(runs_dir / LATEST)
    is_named = os.path.lexists(latest.root) and is_trusted(os.lstat(latest.root).st_uid)
    if is_named and os.access(latest.run_json, os.R_OK):
        return run_at(latest.root.resolve())
    why = f"{latest.root}: {_why_no_run(Path(os.path.realpath(latest.root)))}"
    for name in newest_first(runs_dir):
        if os.access(RunDir(runs_dir / name).run_json, os.R_OK):
            if is_named:
                note(f"{why}; this is {escaped(name)}, the newest run")
            return run_at((runs_dir / name).resolve())
    raise UnreadableError(why if is_named else f"no readable run found in {runs_dir}", hint=_known(runs_dir))


def _older(runs_dir: Path, steps: int, note: Callable[[str], None]) -> RunDir:
    latest = _latest(runs_dir, note)
    if not steps:
        return latest
    names = newest_first(runs_dir)
    older = names[names.index(latest.root.name) + 1 :] if latest.root.name in names else names
    if steps > len(older):
        oldest = f"{LATEST}~{len(older)}" if older else LATEST
        raise UnreadableError(f"{LATEST}~{steps} does not exist; the oldest run in {runs_dir} is {oldest}")
    return run_at((runs_dir / older[steps - 1]).resolve())


# --- missing runs ---


def _why_no_run(directory: Path) -> str:
    run_json = RunDir(directory).run_json
    if _is_file(run_json):
        return f"{escaped(str(run_json))} is not readable"
    if not os.path.isdir(directory):  # noqa: PTH112 - see `_is_file`
        return f"{escaped(str(directory))} is gone"
    if not os.access(directory, os.X_OK):
        return f"{escaped(str(directory))} is not accessible"
    hint = " (a job file of an older tlaunch makes none)" if any(directory.glob("device[0-9]*")) else ""
    return f"{escaped(str(directory))} has no run.json{hint}"


def _known(runs_dir: Path) -> str:
    names = newest_first(runs_dir)
    if not names:
        return f"{runs_dir} contains no runs; choose another directory with `--runs-dir`"
    return f"the newest of {len(names)} runs in {runs_dir}: {', '.join(map(escaped, names[:3]))}"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MAX_NAMED
    return ", ".join(map(escaped, names[:MAX_NAMED])) + (f" and {more} more" if more > 0 else "")
