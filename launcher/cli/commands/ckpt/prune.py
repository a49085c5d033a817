"""`tlaunch ckpt prune`: remove older checkpoints."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from launcher.checkpoint.index import DamagedError, damage_of, is_checkpoint, partial_name, read_index, step_named
from launcher.cli.options.chosen_run import confirm
from launcher.cli.options.completion import complete_runs_or_files
from launcher.cli.options.run import runs_dir_option
from launcher.cli.options.types import IntRange
from launcher.cli.text.columns import counted, size
from launcher.cli.text.stdout import say, write_out
from launcher.cli.training.resume import resolve_checkpoints
from launcher.core.errors import TlaunchError, UsageError
from launcher.core.machine.owner import ROOT, called, is_own, uids_of_file
from launcher.core.regular_files import bytes_in
from launcher.core.run_dir import RunDir
from launcher.core.text import printable, shell_word
from launcher.runs.status import look
from launcher.runs.store import find_run, means_latest, run_at

EPILOG = """\b
Examples:
  tlaunch ckpt prune --keep 1 --dry-run              # of the latest run
  tlaunch ckpt prune runs/RUN/checkpoints --keep 2

Files are verified against their digests, newest checkpoint first, until N intact checkpoints are found. All others are
removed, including the best and damaged ones. Nothing is removed if no checkpoint is intact, if one cannot be read, or
if the run is still active. tlaunch cannot detect other programs that write to DIR.

Exit codes: 0; 1 no checkpoint is intact, one cannot be removed, or you answered no; 2 wrong usage, no such checkpoint, or the run is
still active.
"""


@click.command(epilog=EPILOG)
@click.argument("run", required=False, metavar="[RUN|DIR]", shell_complete=complete_runs_or_files)
@click.option("--keep", required=True, type=IntRange(min=1), metavar="N", help="Keep the newest N intact checkpoints.")
@click.option("--dry-run", is_flag=True, help="Print the checkpoints that would be removed, without removing them.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@runs_dir_option
def prune(*, run: str | None, keep: int, dry_run: bool, yes: bool, runs_dir: Path) -> None:
    """Remove all but the newest intact checkpoints of a run or directory."""
    found = resolve_checkpoints(runs_dir, str(find_run(runs_dir, None).root) if run is None else run)
    if run is not None and any(is_checkpoint(path) for path in (Path(run), runs_dir / run)):
        raise UsageError(f"{run} is a single checkpoint", hint=f"give its directory: {found[0].parent}")
    if (run is None or means_latest(run)) and os.geteuid() == ROOT:  # root may remove any user's files
        directory = found[0].parent
        if strangers := [uid for uid in uids_of_file(directory) if not is_own(uid)]:
            raise UsageError(
                f"the newest checkpoints, {printable(str(directory))}, belong to {called(strangers[0])}",
                hint=f"to remove these checkpoints, give their directory: `tlaunch ckpt prune {shell_word(str(directory))} --keep {keep}`",
            )
    for directory in {found[0].parent, found[0].parent.resolve()}:  # one of them may be a link to a run's directory
        _check_not_active(directory)
    kept: list[Path] = []
    removed = [path for path in found if len(kept) == keep or not _kept(path, kept)]
    if not kept:
        raise TlaunchError(f"{found[0].parent}: no checkpoint is intact, so none is removed; use `tlaunch ckpt verify`")
    sizes = {path: bytes_in(path) for path in removed}
    if removed and not dry_run and not yes:
        _ask(sizes)
    for path, path_bytes in sizes.items():
        if not dry_run:
            _remove(path)
        write_out(f"{'would remove' if dry_run else 'removed'} {printable(str(path))}, {size(path_bytes)}\n")
    whole, total = counted(len(kept), "intact checkpoint"), size(sum(sizes.values()))
    write_out(f"{'would free' if dry_run else 'freed'} {total}; {whole} left, the newest {kept[0].name}\n")


def _ask(sizes: Mapping[Path, int]) -> None:
    """List the checkpoints to remove and ask. Raises UsageError if stdin is not a terminal; exits with 1 after a no."""
    total = f"{counted(len(sizes), 'checkpoint')}, {size(sum(sizes.values()))}"
    if sys.stdin.isatty():
        for path, path_bytes in sizes.items():
            say(f"{path}, {size(path_bytes)}")
    refusal = f"cannot ask whether to remove {total}: stdin is not a terminal"
    confirm(f"Remove {total}?", refusal, "add --yes or --dry-run")


def _remove(path: Path) -> None:
    step = step_named(path.name)
    assert step is not None, "checkpoints are found by their names"
    # Renamed first, so that a partly removed checkpoint is not mistaken for intact.
    aside = path.rename(path.with_name(partial_name(step, f"{os.urandom(4).hex()}.old")))
    if aside.is_symlink():
        aside.unlink()
    else:
        shutil.rmtree(aside)


def _check_not_active(directory: Path) -> None:
    """Raise UsageError if the run that owns this directory of checkpoints is active, or may be active."""
    root = directory.parent
    if RunDir(root).checkpoints != directory or not RunDir(root).run_json.is_file():
        return
    state = look(run_at(root))
    if state.lives or not (state.state.over or state.report):
        raise UsageError(
            f"{root} is {state.state.value}: the checkpoints of a run cannot be removed before the run ends",
            hint=f"stop the run with `tlaunch stop {shell_word(str(root))}`, or wait until it ends",
        )


def _kept(path: Path, kept: list[Path]) -> bool:
    """Return True if a checkpoint is intact. In this case, also append it to `kept`."""
    try:
        index = read_index(path)
    except DamagedError:
        return False
    for name in index.files:
        if (path / name).is_file():  # else it is damaged
            (path / name).open("rb").close()
    if any(damage_of(path, name, file) for name, file in index.files.items()):
        return False
    kept.append(path)
    return True
