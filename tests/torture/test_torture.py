"""Random schedules of ranks and blows against the real command: right exit code, right report, nothing left."""

import subprocess
import sys
from pathlib import Path

import pytest

PLAY = Path(__file__).with_name("play.py")
SEEDS = range(200)
AT_ONCE = 10  # most of a schedule's time is waiting
PATIENCE_S = 240


@pytest.mark.slow
@pytest.mark.parametrize("first", SEEDS[::AT_ONCE])
def test_no_schedule_breaks_a_rule(first):
    """Whatever ranks do and whatever befalls the launcher: documented exit codes, no process, port or file left."""
    plays = [
        subprocess.Popen([sys.executable, PLAY, str(seed)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for seed in range(first, first + AT_ONCE)
    ]
    told = [play.communicate(timeout=PATIENCE_S)[0] for play in plays]
    failed = [text for play, text in zip(plays, told, strict=True) if play.returncode != 0]
    assert not failed, "\n".join([*failed, f"to repeat one alone: python {PLAY} SEED --keep"])
