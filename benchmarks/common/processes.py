"""Start, wait for and end the measured programs, and read their CPU time and memory."""

from __future__ import annotations

import compileall
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import launcher

BIN = Path(sys.executable).parent
PROGRAMS = Path(__file__).parents[1] / "programs"
PATIENCE_S = 900
TICK_S = 0.01
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def compile_launcher() -> None:
    """As pip does with what it installs; an editable installation is left as it is."""
    compileall.compile_dir(Path(launcher.__file__).parent, quiet=1)


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """While the process runs, which must bring it about."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert process.poll() is None, f"it has ended with {process.returncode}"
        assert time.monotonic() < deadline, "it never came"
        time.sleep(TICK_S)


@contextmanager
def running(argv: Sequence[str], stdout: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is ended behind the block."""
    process = subprocess.Popen(argv, stdout=stdout, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def cpu_s(pid: int) -> float:
    """What a process has taken so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def children_cpu_s() -> float:
    """What all children that were waited for have taken."""
    times = os.times()
    return times.children_user + times.children_system
