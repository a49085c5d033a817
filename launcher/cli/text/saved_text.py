"""The lines that say how far a run that was ended is saved, and which command goes on from there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from launcher.checkpoint.index import OWN_NETWORK, checkpoints_in, readable
from launcher.core.run_dir import RunDir


def going_on(run_dir: RunDir, reference: str) -> Iterator[str]:
    """Yield the lines that name the newest checkpoint of a run and the command that goes on from it; none where it has none.

    `reference` names the run in a shell, and is safe to show.
    """
    with suppress(OSError):  # the directory cannot be read
        for _, index in readable(checkpoints_in(run_dir.checkpoints)):
            yield f"its newest checkpoint is that of step {index.step:,}; to go on from it, with the same options:"
            if index.program == OWN_NETWORK:  # a script's: `tlaunch run --resume` is for bundled programs
                yield f'  train(..., resume="{reference}") in the program'
            else:
                yield f"  tlaunch run ... --resume {reference}"
            return
