"""Random schedules of ranks and blows against the real command: right exit code, right report, nothing left."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PLAY = Path(__file__).with_name("play.py")
SEEDS = range(60)


@pytest.mark.slow
@pytest.mark.timeout(4 * 300)  # it takes the place of twenty tests
def test_no_schedule_breaks_a_rule():
    """Whatever ranks do and whatever befalls the launcher: documented exit codes, no process, port or file left."""
    command = [sys.executable, PLAY, *map(str, SEEDS)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\nto repeat one alone: python {PLAY} SEED --keep"


STORM = Path(__file__).with_name("storm.py")
STORMS = os.environ.get("TLAUNCH_TEST_STORMS", "24")


@pytest.mark.slow
@pytest.mark.timeout(4 * 300)
def test_no_storm_leaves_anything():
    done = subprocess.run(
        [sys.executable, STORM, "--count", STORMS],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\nto repeat one alone: python {STORM} --count 1 --keep --first SEED"
