"""Lines about the newest checkpoint of a run and how to resume from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from launcher.checkpoint.index import OWN_NETWORK, Index, checkpoints_in, readable, written_ns
from launcher.checkpoint.model_merge import read_config
from launcher.cli.text.columns import duration
from launcher.cli.text.stdout import as_argument
from launcher.core.errors import UnreadableError
from launcher.core.run_dir import RunDir
from launcher.runs.progress import State
from launcher.runs.status import RunState

LOOKED_AT = 5
TRANSLATION = "transformer"  # the recipe of translation models


def going_on(run_dir: RunDir, ended_ns: int | None) -> Iterator[str]:
    """Yield a line about the newest checkpoint of a run, and a line with the command that resumes from it.

    `ended_ns` is the time at which the run ended.
    """
    if (newest := newest_checkpoint(run_dir)) is None:
        return
    path, index = newest
    before_s = ((ended_ns or 0) - written_ns(path)) / 1e9  # negative if a lost run did not record its end
    when = f", {duration(before_s)} before the end" if before_s >= 0 else ""
    reference = as_argument(run_dir)
    how = f"`tlaunch rerun {reference} --resume {reference}`"
    if index.program == OWN_NETWORK:  # `--resume` is only for bundled programs
        how = f'`train(..., resume="{reference}")` in the program'
    yield f"newest checkpoint: step {index.step:,}{when}"
    yield f"to resume from it: {how}"


def translates(run_dir: RunDir) -> bool:
    """Return True if the run's model is for `tlaunch translate`."""
    with suppress(UnreadableError):
        return read_config(run_dir.model)[0] == TRANSLATION
    return False


def newest_checkpoint(run_dir: RunDir) -> tuple[Path, Index] | None:
    """Return a run's newest readable checkpoint and its index. Only the newest few checkpoints are tried."""
    with suppress(OSError):  # the directory cannot be read
        return next(readable(checkpoints_in(run_dir.checkpoints)[:LOOKED_AT]), None)
    return None


def how_to_resume(state: RunState) -> Iterator[str]:
    """If the run ended without success, yield lines that say how to resume it."""
    if state.engine is None and state.state in {State.FAILED, State.HUNG, State.LOST, State.STOPPED}:
        yield from going_on(state.run_dir, state.ended_ns)
