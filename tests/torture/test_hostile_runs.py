"""Runs whose files somebody else has written: no command hangs, breaks, or takes much time or memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SEEDS = os.environ.get("TLAUNCH_HOSTILE_RUNS", "25")


@pytest.mark.slow
def test_no_run_directory_hangs_or_breaks_a_command():
    """One value or one file of each is another one; `TLAUNCH_HOSTILE_RUNS=1000` tries so many."""
    command = [sys.executable, "-m", "tests.torture.hostile_runs", "0", SEEDS]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout
