"""The paths that a training reads and writes, and the directory of the run that it belongs to."""

from __future__ import annotations

import os
from pathlib import Path

from launcher.core.env import TLAUNCH_RUN_DIR
from launcher.core.frozen import frozen
from launcher.core.run_dir import RunDir


def own_run() -> RunDir | None:
    """Return the run directory of this process, or None if `tlaunch run` did not start it."""
    root = os.environ.get(TLAUNCH_RUN_DIR)
    return RunDir(Path(root)) if root else None


@frozen
class Files:
    data: tuple[Path, ...] = ()  # a directory or a file, or a source and a target file; empty: the packaged sample
    output: Path | None = None  # directory to create for the trained model; None: do not save it
    checkpoints: Path | None = None  # directory; None: write no checkpoints
    resume: Path | None = None  # a checkpoint or a directory of checkpoints
    init_from: Path | None = None  # a model or a checkpoint: initial weights and tokenizer of a new training
    strategy: Path | None = None  # directory of the strategy reports; None: record no step
    named: frozenset[str] = frozenset()  # settings set on the command line or in a configuration file
