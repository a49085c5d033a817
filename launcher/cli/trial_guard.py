"""What the doctor starts to measure links: `tlaunch run`, which ends with the doctor, however that ends.

Nobody else could remove what they made then: a doctor that is killed has no last word.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from launcher.cli.main import main
from launcher.core.errors import exit_code_of
from launcher.core.frozen import frozen
from launcher.doctor.examinee import forget
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


def guarded(words: Sequence[str], remains: Remains) -> list[str]:
    """The command that is `tlaunch run` with those words, as a child of this thread."""
    told = [os.getpid(), str(remains.runs_dir), remains.parent, str(remains.directory)]
    return [sys.executable, "-m", "launcher.cli.trial_guard", json.dumps(told), *words]


def _guard(told: str, words: Sequence[str]) -> NoReturn:
    doctor_pid, runs_dir, parent, directory = json.loads(told)
    signal.signal(signal.SIGTERM, _end)  # until the run takes it
    try:
        signal_of_parents_end(signal.SIGTERM)
        if os.getppid() != doctor_pid:  # it was killed before this process could ask for a signal
            _end(signal.SIGTERM, None)
        main(["run", *words])
    finally:
        if os.getppid() != doctor_pid:
            Remains(Path(runs_dir), parent, Path(directory)).remove()
    raise AssertionError("main does not return")


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(exit_code_of(-number))


if __name__ == "__main__":
    _guard(sys.argv[1], sys.argv[2:])
