"""The paths that a training reads from and writes to, and the settings that a person has named."""

from __future__ import annotations

from pathlib import Path

from launcher.core.frozen import frozen


@frozen
class Files:
    data: Path | None = None  # a directory of pairs, or one file; None: the packaged sample
    output: Path | None = None  # of the trained model, which does not exist yet; None: it is not kept
    checkpoints: Path | None = None  # directory; None: none are written
    resume: Path | None = None  # a checkpoint or a directory of them
    strategy: Path | None = None  # directory of the strategy reports; None: no step is recorded
    named: frozenset[str] = frozenset()  # the settings that the command line or a configuration file names
