"""The input and output paths of a training, and the names of the settings that the user set."""

from __future__ import annotations

from pathlib import Path

from launcher.core.frozen import frozen


@frozen
class Files:
    data: Path | None = None  # a directory of pairs, or one file; None: the packaged sample
    output: Path | None = None  # directory to create for the trained model; None: do not save it
    checkpoints: Path | None = None  # directory; None: write no checkpoints
    resume: Path | None = None  # a checkpoint or a directory of checkpoints
    strategy: Path | None = None  # directory of the strategy reports; None: record no step
    named: frozenset[str] = frozenset()  # settings set on the command line or in a configuration file
