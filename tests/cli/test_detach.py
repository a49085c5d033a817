"""`tlaunch run --detach`, and the fork behind it."""

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.core.machine.proc import stat
from tests.conftest import PATIENCE_S

from .conftest import read_until

# What the launcher does around `detach`: the wish says how the child fares.
DRIVER = """
import os, signal, sys, time
from pathlib import Path
from launcher.cli.launch.detach import detach

log, wish = Path(sys.argv[1]), sys.argv[2]
kept = os.open(os.devnull, os.O_RDONLY)
print("said before", flush=False)
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
if wish.startswith("held-back"):
    os.kill(os.getpid(), int(wish.split()[1]))
detached = detach(log)
if detached.is_parent:
    sys.exit(detached.wait_started("the-name", "the-name"))
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
print("said by the child", os.getpid(), flush=True)
heard = [signal.SIGUSR1, signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
signal.pthread_sigmask(signal.SIG_SETMASK, heard)
if wish == "fail":
    print("error: no luck", file=sys.stderr)
    sys.exit(3)
if wish == "die":
    os.kill(os.getpid(), signal.SIGKILL)
if wish == "wait" or wish.startswith("held-back"):
    number = signal.sigwait(heard)
    if number != signal.SIGUSR1:
        sys.exit(f"ended by {number.name}")
os.fstat(kept)
detached.report_started()
detached.report_started()
while not log.with_name("go").exists():
    time.sleep(0.01)
print("said at the end", sys.stdin.read() == "", flush=True)
"""


# A shell that stays: it makes stdin its terminal, runs a command and waits.
IN_TERMINAL = """
import fcntl, subprocess, sys, termios, time
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
subprocess.run(sys.argv[1:])
print("over", flush=True)
time.sleep(1000)
"""


@pytest.fixture
def log(tmp_path):
    yield tmp_path / "console.log"
    (tmp_path / "go").touch()


def start(log, wish, **options):
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen([sys.executable, "-c", DRIVER, log, wish], **pipes, start_new_session=True, **options)


def child_of(log, wait_until):
    said = wait_until(lambda: log.exists() and "child" in log.read_text() and log.read_text(), "the child's word")
    return int(said.split()[4])


def test_the_parent_returns_when_the_run_has_started(log, wait_until):
    reader, writer = os.pipe()  # another descriptor that a shell had opened: its reader need not wait either
    process = start(log, "start", pass_fds=[writer])
    os.close(writer)
    output, errors = process.communicate(timeout=PATIENCE_S)
    assert os.read(reader, 1) == b""
    os.close(reader)
    child = child_of(log, wait_until)
    assert (process.returncode, output) == (0, b"said before\nthe-name\n")
    assert errors.endswith(b" the-name\n")
    assert (stat(child).session, stat(child).living) == (child, True)
    log.with_name("go").touch()
    wait_until(lambda: "said at the end True" in log.read_text(), "the end")
    assert "said before" not in log.read_text()


@pytest.mark.parametrize(("wish", "code"), [("fail", 3), ("die", 137)])
def test_a_start_that_fails_is_told(log, wish, code):
    process = start(log, wish)
    output, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, output) == (code, b"said before\n")
    assert b"said by the child" in errors
    assert (b"error: no luck" in errors) == (wish == "fail")


def test_closing_the_terminal_does_not_reach_it(log, wait_until):
    leader, follower = pty.openpty()
    driver = [sys.executable, "-c", DRIVER, log, "start"]
    shell = subprocess.Popen(
        [sys.executable, "-c", IN_TERMINAL, *driver], stdin=follower, stdout=follower, stderr=follower,
        start_new_session=True,
    )  # fmt: skip
    os.close(follower)
    read_until(leader, b"over")
    child = child_of(log, wait_until)
    os.close(leader)
    assert shell.wait(PATIENCE_S) == -signal.SIGHUP
    assert stat(child).living
    log.with_name("go").touch()
    wait_until(lambda: "said at the end" in log.read_text(), "the end")


@pytest.mark.parametrize(
    ("number", "held_back"), [(signal.SIGINT, False), (signal.SIGTERM, True), (signal.SIGHUP, False)]
)
def test_an_end_that_is_asked_for_before_the_start_ends_the_run(log, wait_until, number, held_back):
    """Ctrl-C, `kill` and a hangup reach the parent only, which hands them on, also if they were held back until then."""
    process = start(log, f"held-back {int(number)}" if held_back else "wait")
    child = child_of(log, wait_until)
    if not held_back:
        process.send_signal(number)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + number
    assert number.name.encode() in errors
    wait_until(lambda: stat(child) is None or not stat(child).living, "the end of the child")
    assert f"ended by {number.name}" in log.read_text()


def test_a_hangup_that_is_ignored_ends_nothing(log, wait_until):
    process = start(log, "wait", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    child = child_of(log, wait_until)
    process.send_signal(signal.SIGHUP)
    os.kill(child, signal.SIGUSR1)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, output) == (0, b"said before\nthe-name\n")


def test_a_parent_that_is_killed_leaves_a_detached_run(log, wait_until):
    process = start(log, "wait")
    child = child_of(log, wait_until)
    process.kill()
    output, _ = process.communicate()
    os.kill(child, signal.SIGUSR1)
    log.with_name("go").touch()
    assert (process.returncode, output) == (-signal.SIGKILL, b"said before\n")
    wait_until(lambda: "said at the end" in log.read_text(), "the end")


def test_a_run_goes_on_without_its_terminal(launcher, wait_until):
    done = launcher.run("run", "--detach", "--devices", 2, "--", "sh", "-c", "echo ready; exec sleep 1000", code=0)
    name = done.stdout.strip()
    run_dir = launcher.wait_ready(2)
    assert (run_dir.name, done.stderr.split()[-1]) == (name, name)
    assert launcher.call("status", name).stdout.startswith(f"{name}: running for")
    assert launcher.call("stop", name).returncode == 0
    console_log = Path(run_dir / "console.log")
    wait_until(lambda: "stopped after" in console_log.read_text(), "the closing words")
    assert console_log.stat().st_mode & 0o777 == (run_dir / "device0" / "train.log").stat().st_mode & 0o777
    assert launcher.processes() == []


def test_a_run_elsewhere_is_named_by_its_path(launcher):
    done = launcher.run("run", "--detach", "--runs-dir", "runs/others", "--", "sleep", "1000")
    reference = done.stderr.split()[-1]
    assert reference == f"runs/others/{done.stdout.strip()}"
    assert max(map(len, done.stderr.splitlines())) < 80
    assert launcher.call("stop", "--kill", reference).returncode == 0
