"""The checkpoints that `--resume` and `tlaunch ckpt` mean."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from launcher.checkpoint.index import (
    INDEX,
    Index,
    checkpoints_in,
    differing_setting,
    is_checkpoint,
    readable,
)
from launcher.cli.launch.options import RunOptions
from launcher.core.errors import UnreadableError
from launcher.core.records import Continued
from launcher.core.run_dir import RunDir
from launcher.logs.terminal import escaped
from launcher.runs.store import find_run, run_names

AUTO = "auto"


def checkpoint_meant(
    options: RunOptions, program: str, settings: Mapping[str, Any], named: Collection[str]
) -> Path | None:
    """Return a checkpoint, or a directory of some, from which the training goes on; None where there is none for "auto".

    `named`: the settings that a person has set.

    Raises:
        UnreadableError: no such checkpoint or run.
        UsageError: several runs' names begin so.
    """
    if options.resume == AUTO:
        data = "" if options.data is None else str(options.data.absolute())
        fitting = (
            (index.step, found)
            for found, index in _indexed(options.runs_dir)
            if index.program == program and index.data == data and not differing_setting(index, settings, named)
        )
        _, newest = max(fitting, key=lambda pair: (_written_ns(pair[1]), pair[0]), default=(0, None))
        return None if newest is None else newest.parent  # where others stand if its files are damaged
    assert options.resume is not None, "it was asked for"
    newest, *others = checkpoints_meant(options.runs_dir, options.resume)
    return newest.parent if others else newest


def checkpoints_meant(runs_dir: Path, reference: str) -> list[Path]:
    """Return the checkpoint at a path, those in a directory, or those of a run, the newest first.

    Raises:
        UnreadableError: there are none.
        UsageError: several runs' names begin so.
    """
    path = Path(reference)
    if reference and is_checkpoint(path):
        return [path.absolute()]
    if reference and (found := checkpoints_in(path)):
        return [each.absolute() for each in found]
    run = find_run(runs_dir, reference)
    if not (found := checkpoints_in(run.checkpoints)):
        raise UnreadableError(
            f"{escaped(reference)}: this run has no checkpoint", hint="--set checkpoint.every_steps=N writes them"
        )
    return [each.absolute() for each in found]


def continued(meant: Path) -> Continued | None:
    """Return the newest checkpoint of those that `checkpoint_meant` gave, and its run; None where no index can be read."""
    for path, index in readable([meant] if is_checkpoint(meant) else checkpoints_in(meant)):
        run = path.parent.parent
        return Continued(path, index.step, run.name if RunDir(run).run_json.is_file() else None)
    return None


def _indexed(runs_dir: Path) -> Iterator[tuple[Path, Index]]:
    """Yield the checkpoints of all runs that have an index which can be read."""
    for name in run_names(runs_dir):
        yield from readable(path.absolute() for path in checkpoints_in(RunDir(runs_dir / name).checkpoints))


def _written_ns(checkpoint: Path) -> int:
    with suppress(OSError):  # another run may be removing it
        return (checkpoint / INDEX).stat().st_mtime_ns
    return 0
