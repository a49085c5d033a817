"""Random schedules of ranks and blows against the real command: right exit code, right report, nothing left."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

PLAY = Path(__file__).with_name("play.py")
SEEDS = range(60)
AT_ONCE = 10  # most of a schedule's time is waiting
PATIENCE_S = 240  # for one of them


@pytest.mark.slow
@pytest.mark.timeout(4 * 300)  # it takes the place of twenty tests
def test_no_schedule_breaks_a_rule():
    """Whatever ranks do and whatever befalls the launcher: documented exit codes, no process, port or file left."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        plays = list(pool.map(play, SEEDS))
    failed = [done.stdout for done in plays if done.returncode != 0]
    assert not failed, "\n".join([*failed, f"to repeat one alone: python {PLAY} SEED --keep"])


def play(seed):
    return subprocess.run(
        [sys.executable, PLAY, str(seed)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
