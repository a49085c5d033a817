"""Start runs with logs to follow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from common.processes import BIN, PATIENCE_S, PROGRAMS, wait_until

TLAUNCH = str(BIN / "tlaunch")
FOLLOWED, TAIL = "logs -f", "tail -F"
BLOCK_BYTES = 1 << 17  # of a pipe that is read


@dataclass(frozen=True)
class Took:
    """Seconds."""

    wall_s: float
    cpu_s: float


class Bench:
    """Runs in one temporary directory."""

    def __init__(self, folder: Path, scale: float) -> None:
        self.folder, self.scale = folder, scale
        self.runs = folder  # of the last run that was started

    def times(self, count: int) -> int:
        return max(1, round(count * self.scale))

    def new_run(self, ranks: int, *program: str) -> list[str]:
        """The command of a run, in a folder of its own."""
        self.runs = Path(tempfile.mkdtemp(dir=self.folder))
        runs = ["--runs-dir", str(self.runs)]
        return [TLAUNCH, "run", "--console", "none", "--devices", str(ranks), *runs, "--", *program]

    def logs_argv(self, *options: str) -> list[str]:
        return [TLAUNCH, "logs", "--runs-dir", str(self.runs), *options]

    def files(self, ranks: int) -> list[str]:
        return [str(self.runs / "latest" / f"device{rank}" / "train.log") for rank in range(ranks)]

    def writers(self, ranks: int, lines: int) -> tuple[subprocess.Popen[bytes], Path]:
        """A run of ranks that write, and the folder where they note their CPU time."""
        noted = Path(tempfile.mkdtemp(dir=self.folder))
        program = [sys.executable, str(PROGRAMS / "writes_lines.py"), str(lines)]
        argv = self.new_run(ranks, *program)
        environment = {**os.environ, "BENCH_TIMES": str(noted)}
        return subprocess.Popen(argv, env=environment, stderr=subprocess.DEVNULL), noted

    @contextmanager
    def sleepers(self, ranks: int) -> Iterator[None]:
        """A run of ranks that write nothing, once all their logs are there."""
        run = subprocess.Popen(self.new_run(ranks, "sleep", "3600"), stderr=subprocess.DEVNULL)
        try:
            wait_until(lambda: all(Path(path).exists() for path in self.files(ranks)), run)
            yield
        finally:
            run.send_signal(signal.SIGTERM)
            run.wait(PATIENCE_S)
