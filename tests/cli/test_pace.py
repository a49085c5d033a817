"""How far a run has come, in a few words."""

import subprocess
import sys

from launcher.cli.text.progress_text import GIVEN_UP, ProgressText
from launcher.core.env import TLAUNCH_HEARTBEAT_FILE
from launcher.core.events import RankStarted
from launcher.core.heartbeat import Beat, beat
from launcher.core.run_dir import RunDir
from launcher.runs.progress import RankStart

STARTS = {0: RankStart(RankStarted(0, 1), 0, 0)}


def run_with(directory, step):
    run_dir = RunDir(directory)
    run_dir.device(0).mkdir(exist_ok=True)
    beat({TLAUNCH_HEARTBEAT_FILE: str(run_dir.heartbeat(0))}, Beat(step=step, loss=3.25))
    return run_dir


def test_the_last_beat_is_told_for_a_while_and_forgotten_at_a_restart(tmp_path):
    """The heartbeat is removed before the next attempt begins, and whatever that tells comes from a new one."""
    run_dir = run_with(tmp_path, 7)
    pace = ProgressText(run_dir, on_terminal=False)
    assert pace.text(STARTS) == "step 7, loss 3.2500"
    run_with(tmp_path, 8)
    assert pace.text(STARTS) == "step 7, loss 3.2500"
    run_dir.heartbeat(0).unlink()
    pace.forget()
    assert pace.text(STARTS) == ""


RESTARTED = """
import os, pathlib, sys, time
attempt = os.environ["TLAUNCH_ATTEMPT"]
if attempt == "0":
    pathlib.Path(os.environ["TLAUNCH_HEARTBEAT_FILE"]).write_text('{"step": 7}')
while not os.path.exists("told" + attempt):
    time.sleep(0.01)
if attempt == "0":
    sys.exit(1)
time.sleep(2)
"""


def test_a_program_without_a_heartbeat_is_told_by_its_lines(launcher):
    script = 'echo "step 3 loss 0.5"; echo "at=7"; until [ -e told ]; do sleep 0.01; done'
    by_regex = ("--progress-regex", r"at=(?P<step>\d)")
    for option, words in (((), "1 rank: step 3, loss 0.5000\n"), (by_regex, "1 rank: step 7\n")):
        (launcher.directory / "told").unlink(missing_ok=True)
        argv = ["run", "--console", "status", *option, "--", "sh", "-c", script]
        process = launcher.start(*argv, stderr=subprocess.PIPE, encoding="utf-8")
        assert any(line == words for line in process.stderr)
        (launcher.directory / "told").touch()
        process.communicate(timeout=60)
        assert process.returncode == 0


def test_an_expression_that_takes_too_long_does_not_hang_the_launcher(launcher):
    script = f"echo {'1' * 60}; until [ -e told ]; do sleep 0.01; done"
    argv = ["run", "--console", "status", "--progress-regex", r"(?P<step>(\d+)+)x", "--", "sh", "-c", script]
    process = launcher.start(*argv, stderr=subprocess.PIPE, encoding="utf-8")
    assert any(line == f"1 rank: {GIVEN_UP}\n" for line in process.stderr)
    for command in (["status"], ["top"], ["report"]):
        done = launcher.call(*command)
        assert (done.returncode, "takes too long" in done.stdout + done.stderr) == (0, True), done.stderr
    (launcher.directory / "told").touch()
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_an_attempt_that_has_told_nothing_is_told_as_started(launcher):
    argv = ["run", "--console", "status", "--max-restarts", 1, "--", sys.executable, "-c", RESTARTED]
    process = launcher.start(*argv, stderr=subprocess.PIPE, encoding="utf-8")
    assert any("1 rank: step 7" in line for line in process.stderr)
    (launcher.directory / "told0").touch()
    assert any("restart 1 of 1" in line for line in process.stderr)
    assert process.stderr.readline() == "attempt 1: 1 rank started\n"
    (launcher.directory / "told1").touch()
    _, after = process.communicate(timeout=60)
    assert process.returncode == 0, after
    assert "step 7" not in after
