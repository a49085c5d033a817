"""How far a run has come, in a few words."""

import sys

from launcher.cli.pace import Pace
from launcher.core.env import TLAUNCH_HEARTBEAT_FILE
from launcher.core.heartbeat import Beat, beat
from launcher.core.run_dir import RunDir


def run_with(directory, step):
    run_dir = RunDir(directory)
    run_dir.device(0).mkdir(exist_ok=True)
    beat({TLAUNCH_HEARTBEAT_FILE: str(run_dir.heartbeat(0))}, Beat(step=step, loss=3.25))
    return run_dir


def test_the_last_beat_is_told_for_a_while(tmp_path):
    """Where every text is a line of its own, a new one comes rarely."""
    pace = Pace(run_with(tmp_path, 7), on_terminal=False)
    assert pace.text() == "step 7, loss 3.2500"
    run_with(tmp_path, 8)
    assert pace.text() == "step 7, loss 3.2500"


def test_what_another_attempt_told_is_forgotten(tmp_path):
    """At once: its heartbeat is removed before the next attempt begins, and whatever that tells comes from a new one."""
    run_dir = run_with(tmp_path, 7)
    pace = Pace(run_dir, on_terminal=False)
    pace.text()
    run_dir.heartbeat(0).unlink()
    pace.forget()
    assert pace.text() == ""


RESTARTED = """
import os, pathlib, sys, time
if os.environ["TLAUNCH_ATTEMPT"] == "0":
    pathlib.Path(os.environ["TLAUNCH_HEARTBEAT_FILE"]).write_text('{"step": 7}')
    time.sleep(2)
    sys.exit(1)
time.sleep(2)
"""


def test_an_attempt_that_has_told_nothing_is_told_as_started(launcher):
    """And not with the words of the one before."""
    done = launcher.run("run", "--console", "status", "--max-restarts", 1, "--", sys.executable, "-c", RESTARTED)
    assert done.returncode == 0, done.stderr
    before, after = done.stderr.split("restart 1 of 1")
    assert "1 rank: step 7" in before
    assert "attempt 1: 1 rank started" in after
    assert "step 7" not in after
