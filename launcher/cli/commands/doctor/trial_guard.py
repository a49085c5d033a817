"""Start `tlaunch run` for the doctor's measurement of links, so that it ends with the doctor, however that ends.

It then removes what both have made, which a doctor that is killed cannot do.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

from launcher.cli.launch.options import RunOptions
from launcher.cli.launch.start import run
from launcher.cli.main import exit_after
from launcher.core.codec import decode, encode
from launcher.core.errors import exit_code_of
from launcher.core.frozen import frozen
from launcher.doctor.probe_handler import forget
from launcher.supervise.spawn import signal_of_parents_end

OWN_DIRECTORY = "tlaunch-doctor-"  # how the name of a directory for temporary files begins that a doctor has made


@frozen
class Remains:
    """All that a measurement leaves on this server."""

    runs_dir: Path  # made by its runs, and for no others
    parent: bool  # whether the directory above was made for it, too
    directory: Path  # of the doctor's own files

    def remove(self) -> None:
        forget(self.runs_dir, parent=self.parent)
        if self.directory.name.startswith(OWN_DIRECTORY):
            shutil.rmtree(self.directory, ignore_errors=True)


def guarded(options: RunOptions, remains: Remains) -> list[str]:
    """Return the command that runs what those options say, as a child of this thread."""
    setup = [os.getpid(), str(remains.runs_dir), remains.parent, str(remains.directory)]
    return [
        sys.executable,
        "-m",
        "launcher.cli.commands.doctor.trial_guard",
        json.dumps(setup),
        json.dumps(encode(options)),
    ]


def _guard(setup: str, options: str) -> NoReturn:
    doctor_pid, runs_dir, parent, directory = json.loads(setup)
    signal.signal(signal.SIGTERM, _end)  # until the run takes it
    try:
        signal_of_parents_end(signal.SIGTERM)
        if os.getppid() != doctor_pid:  # it was killed before this process could ask for a signal
            _end(signal.SIGTERM, None)
        exit_after(lambda: run(decode(RunOptions, json.loads(options))).exit_code)
    finally:
        if os.getppid() != doctor_pid:
            Remains(Path(runs_dir), parent, Path(directory)).remove()


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(exit_code_of(-number))


if __name__ == "__main__":
    _guard(*sys.argv[1:])
