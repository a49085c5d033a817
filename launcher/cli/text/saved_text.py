"""Lines about the newest checkpoint of a run and how to resume from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from launcher.checkpoint.index import OWN_NETWORK, Index, checkpoints_in, readable
from launcher.cli.text.stdout import as_argument
from launcher.core.run_dir import RunDir
from launcher.runs.progress import State
from launcher.runs.status import RunState

LOOKED_AT = 5


def going_on(run_dir: RunDir, reference: str) -> Iterator[str]:
    """Yield a line with the newest checkpoint of a run and the command that resumes from it.

    `reference` is the RUN argument, quoted for a shell and safe to show.
    """
    if (index := newest_checkpoint(run_dir)) is None:
        return
    how = f"tlaunch rerun {reference} --resume {reference}"
    if index.program == OWN_NETWORK:  # `--resume` is only for bundled programs
        how = f'train(..., resume="{reference}") in the program'
    yield f"newest checkpoint: step {index.step:,}; to resume from it: {how}"


def newest_checkpoint(run_dir: RunDir) -> Index | None:
    """Return the index of a run's newest readable checkpoint. Only the newest few checkpoints are tried."""
    with suppress(OSError):  # the directory cannot be read
        return next((index for _, index in readable(checkpoints_in(run_dir.checkpoints)[:LOOKED_AT])), None)
    return None


def how_to_resume(state: RunState) -> Iterator[str]:
    """If the run ended without success, yield a line that says how to resume it."""
    if state.engine is None and state.state in {State.FAILED, State.HUNG, State.LOST, State.STOPPED}:
        yield from going_on(state.run_dir, as_argument(state.run_dir))
