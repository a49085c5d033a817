"""The run by which the doctor measures links: an ordinary `tlaunch run` in a directory of its own, without a word."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

LINKS = "launcher.trainer.links"
SECONDS = 10
JOIN_S = 60.0
GRACE_S = 2.0
STARTS_S = 120.0  # for torch to be imported on a slow file system
LAST_BYTES = 64 << 10
REPEATED = ("engine_options", "env")  # options that may stand there several times
FLAGS = {"engine_options": "--engine-option"}


def words_of(options: Mapping[str, Any]) -> list[str]:
    """What a person would type after `tlaunch run` to get the same servers, and ranks that measure their links."""
    return [*_words(options), "--name", "links", "--", sys.executable, "-m", LINKS, "--seconds", str(SECONDS)]


def _words(options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        for each in value if name in REPEATED else (value,):
            if each is not None:
                yield f"{FLAGS.get(name, '--' + name.replace('_', '-'))}={each}"


def trial_options(options: Mapping[str, Any], runs_dir: Path, coordinator_port: int) -> dict[str, Any]:
    """Those of the examination, but for what two runs at the same time cannot share."""
    own = {"runs_dir": runs_dir, "coordinator_port": coordinator_port, "join_timeout": JOIN_S, "grace": GRACE_S}
    by_engine = options["engine"] in {"mpi", "slurm"}  # whose runs take nothing that is for servers started by hand
    return {**options, **own, "console": "none", **({"coordinator_port": None, "server": None} if by_engine else {})}


class TrialRun:
    """One server's part of it, or all. Its words go to `log`."""

    def __init__(self, options: Mapping[str, Any], log: Path) -> None:
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "launcher", "run", *words_of(options)],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip

    def attend(self, meanwhile: Callable[[float], None]) -> int:
        """Its exit code; 124 where it had to be ended. Blocks; `meanwhile` gets moments until which it may wait."""
        deadline = time.monotonic() + 3 * SECONDS + JOIN_S + STARTS_S
        try:
            while self._process.poll() is None and time.monotonic() < deadline:
                meanwhile(time.monotonic() + 0.1)
            return 124 if self._process.poll() is None else self._process.returncode
        finally:
            self._end()

    def why(self) -> str:
        """What it complained of."""
        with suppress(OSError):
            lines = self._log.read_bytes()[-LAST_BYTES:].decode(errors="replace").splitlines()
            told = [line.strip() for line in lines if line.strip()]
            return next((line for line in told if line.startswith(("error:", "rank "))), told[-1] if told else "")
        return ""

    def _end(self) -> None:
        for number, patience_s in ((signal.SIGTERM, 5 * GRACE_S), (signal.SIGKILL, GRACE_S)):
            if self._process.poll() is None:
                self._process.send_signal(number)
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(patience_s)
