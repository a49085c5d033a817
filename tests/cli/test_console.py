"""What a person sees of a run, and that a stdout in trouble never disturbs it."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.core.report import Report

GO = 'until [ -e "$TLAUNCH_RUN_DIR/go" ]; do sleep 0.01; done'
FAILING_OBSERVER = """
from launcher.cli.launch import attendance
from launcher.cli.text import console
from launcher.cli import main

class Failing(console.Console):
    def tick(self):
        raise RuntimeError("seen once")

attendance.Console = Failing
main.main(["run", "--devices", "2", "--", "sh", "-c", "sleep 0.5; exit $((RANK * 7))"])
"""


def report_of(launcher):
    return Report.from_json((launcher.latest / "report.json").read_text())


def full_pipe():
    """A pipe that takes nothing until someone reads."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"." * 4096)
    except BlockingIOError:
        os.set_blocking(writer, True)
    return reader, writer


def test_a_stdout_that_refuses_is_forgotten(launcher):
    """A full disk behind stdout is told once; the run goes on and ends with its own code."""
    with Path("/dev/full").open("w") as full:
        process = launcher.start(
            "run", "--devices", 2, "--", "sh", "-c", "echo hi; sleep 0.5; echo more",
            stdout=full, stderr=subprocess.PIPE, env={"PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert errors.count(b"No space left on device") == 1
    assert b"ended well" in errors
    assert report_of(launcher).exit_code == 0


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_a_stdout_that_does_not_block_loses_nothing(launcher, unbuffered):
    """A small non-blocking pipe with a slow reader gets every byte."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writer, False)
    process = launcher.start(
        "run", "--", "seq", 100_000, stdout=writer, stderr=subprocess.PIPE, env={"PYTHONUNBUFFERED": unbuffered}
    )
    os.close(writer)
    with os.fdopen(reader, "rb") as shown:
        lines = shown.read().split()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert lines == [b"%d" % number for number in range(1, 100_001)]


def test_an_observer_that_fails_is_let_go(launcher):
    """The head goes on without it to the run's own exit code, and nobody calls an unwatched end a good one."""
    done = subprocess.run(
        [sys.executable, "-c", FAILING_OBSERVER], cwd=launcher.directory, env=launcher.environment({}),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 7, done.stderr
    assert done.stderr.count("RuntimeError: seen once") == 1
    assert "not watched to its end" in done.stderr
    assert "ended well" not in done.stderr
    assert report_of(launcher).culprit == 1


def test_logs_are_not_read_for_nobody(launcher, wait_until):
    """Once stdout's reader has left, the launcher reads no more of a log that grows and grows."""
    reader, writer = os.pipe()
    process = launcher.start("run", "--", "sh", "-c", f"echo first; {GO}; seq 6000000", stdout=writer)
    os.close(writer)
    assert os.read(reader, 6) == b"first\n"
    os.close(reader)
    (launcher.latest / "go").touch()
    most = 0

    def ended():
        nonlocal most
        most = max(most, bytes_read(process.pid))
        return process.poll() is not None

    wait_until(ended, "the end")
    assert process.returncode == 0
    assert 0 < most < (launcher.latest / "device0" / "train.log").stat().st_size / 2


def bytes_read(pid):
    """By all read calls of a process, the imports of Python included; 0 once it has gone."""
    try:
        return int(Path(f"/proc/{pid}/io").read_text().split()[1])
    except OSError:
        return 0


def test_only_the_end_of_a_large_rest_is_shown(launcher, wait_until):
    """What stdout did not take while ranks ran is shown from near its end; stderr says how much is missing, where."""
    reader, writer = full_pipe()
    process = launcher.start("run", "--", "seq", 2_000_000, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    wait_until((launcher.latest / "report.json").is_file, "the end of the ranks")
    message = read_until(process, b"not shown")
    with os.fdopen(reader, "rb") as shown:
        lines = shown.read().lstrip(b".").splitlines()
    assert process.wait(60) == 0
    assert b"device0/train.log" in message
    whole = (launcher.latest / "device0" / "train.log").stat().st_size
    assert sum(len(line) + 1 for line in lines) + int(message.split()[1]) == whole
    assert lines[-1] == b"2000000"


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "non-blocking"])
def test_a_stdout_that_nobody_reads_does_not_hold_the_end(launcher, blocking):
    """SIGTERM ends a run whose stdout is a full pipe, though its reader stays and reads nothing."""
    reader, writer = full_pipe()
    os.set_blocking(writer, blocking)
    script = "echo ready; seq 1000000; sleep 1000"
    process = launcher.start("run", "--grace", 5, "--", "sh", "-c", script, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    launcher.wait_ready(1)
    process.terminate()
    _, errors = process.communicate(timeout=60)
    os.close(reader)
    assert process.returncode == 143, errors
    assert b"SIGTERM: ending all ranks" in errors
    assert b"nothing more is shown on stdout: to show the rest took more than 2 s" in errors


def test_a_grace_that_was_cut_short_is_not_claimed(launcher, programs, wait_until):
    """After a second interrupt the closing words say that ranks were ended at once."""
    process = launcher.start(
        "run", "--grace", 1000, "--", sys.executable, programs / "stubborn.py", "ignore", stderr=subprocess.PIPE
    )
    launcher.wait_ready(1)
    process.send_signal(signal.SIGINT)
    wait_until(lambda: "Stopping" in (launcher.latest / "events.jsonl").read_text(), "the first interrupt")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"1 by SIGKILL (signal 9) at once" in errors
    assert b"1000 s of grace" not in errors


@pytest.mark.parametrize(
    ("code", "words"), [(0, b"every rank ended well; ending 1 process that"), (3, b"ending processes that ranks left")]
)
def test_waiting_for_leftovers_is_told_while_it_lasts(launcher, programs, code, words):
    """While a grandchild is given its grace, a person reads what is being waited for."""
    script = f'"{sys.executable}" "{programs / "stubborn.py"}" double-fork ignore child-only; exit {code}'
    process = launcher.start("run", "--grace", 1000, "--", "sh", "-c", script, stderr=subprocess.PIPE)
    read_until(process, words)
    process.send_signal(signal.SIGINT)
    read_until(process, b"Ctrl-C again")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == code


def read_until(process, words):
    """The first line of stderr with `words`."""
    line = b""
    while words not in line:
        line = process.stderr.readline()
        assert line, f"never said: {words}"
    return line


def test_a_log_that_is_gone_is_not_called_empty(launcher):
    """A rank that fails after its log was removed is told with the system's words."""
    done = launcher.run("run", "--", "sh", "-c", 'rm "$TLAUNCH_RUN_DIR/device0/train.log"; exit 4')
    assert done.returncode == 4
    assert "which cannot be read: No such file or directory" in done.stderr
    assert "which is empty" not in done.stderr


def test_the_last_lines_are_those_of_the_last_attempt(launcher):
    """A rank that said something, was started again and failed without a word."""
    script = '[ "$TLAUNCH_ATTEMPT" = 1 ] || echo said before; exit $((4 + TLAUNCH_ATTEMPT))'
    done = launcher.run("run", "--max-restarts", 1, "--", "sh", "-c", script)
    assert done.returncode == 5, done.stderr
    closing = done.stderr[done.stderr.index("error:") :]
    assert "to which this attempt wrote nothing" in closing
    assert "said before" not in closing
    assert "said before" not in launcher.run("why").stdout


COLOURED = """
import io, os, sys
from launcher.cli.text.status_line import StatusLine
os.environ["COLUMNS"] = "20"

class Terminal(io.StringIO):
    def isatty(self):
        return True

terminal = Terminal()
StatusLine(terminal).show("\\x1b[1;31m" + "red" * 3 + "\\x1b[0m" + "." * 30)
print(ascii(terminal.getvalue()))
"""


def test_a_status_line_is_cut_by_columns(launcher):
    """Colours take none, and none is left open at the cut."""
    done = subprocess.run(
        [sys.executable, "-c", COLOURED.replace("\\\\", "\\")], cwd=launcher.directory, env=launcher.environment({}),
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == repr("redredred" + "." * 9)


def test_a_second_interrupt_is_told_as_killing(launcher, programs, wait_until):
    """Once killed, nothing is said to be waited for."""
    process = launcher.start(
        "run", "--grace", 1000, "--", sys.executable, programs / "stubborn.py", "ignore", stderr=subprocess.PIPE
    )
    launcher.wait_ready(1)
    process.send_signal(signal.SIGINT)
    wait_until(lambda: "Stopping" in (launcher.latest / "events.jsonl").read_text(), "the first interrupt")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    _, killing, after = errors.partition(b"killing all ranks\n")
    assert killing
    assert after.startswith(b"stopped after"), after
    assert b"1 by SIGKILL (signal 9) at once, when asked again" in after


def test_sigquit_kills_and_says_so(launcher, programs):
    """Once, and nobody is said to have asked again."""
    process = launcher.start(
        "run", "--grace", 1000, "--", sys.executable, programs / "stubborn.py", "ignore", stderr=subprocess.PIPE
    )
    launcher.wait_ready(1)
    process.send_signal(signal.SIGQUIT)
    _, errors = process.communicate(timeout=60)
    assert (errors.count(b"killing all ranks"), b"to end" in errors) == (1, False)
    assert b"1 by SIGKILL (signal 9) at once; logs" in errors


def test_a_long_line_is_cut_and_the_cut_is_said(launcher):
    """On a terminal, and among the last words; whoever takes stdout in a pipe gets all of it."""
    program = ["--", "python", "-c", "print('x' * 50_000); raise SystemExit(3)"]
    done = launcher.run("run", *program)
    assert done.returncode == 3
    assert done.stdout == "x" * 50_000 + "\n"
    assert "  | " + "x" * 1000 + "… 47 KiB more\n" in done.stderr
    assert max(map(len, launcher.run("why").stdout.splitlines())) < 1050
    master, terminal = os.openpty()
    process = launcher.start("run", *program, stdout=terminal)
    os.close(terminal)
    with os.fdopen(master, "rb") as screen:
        assert screen.readline().decode().startswith("x" * 1000 + "… 47 KiB more")
        assert process.wait(60) == 3


def test_a_restart_does_not_look_like_a_new_run(launcher):
    """The attempt is told at once, and the directory only the first time."""
    script = f'[ "$TLAUNCH_ATTEMPT" = 1 ] || exit 4; {GO}'
    process = launcher.start("run", "--max-restarts", 1, "--", "sh", "-c", script, stderr=subprocess.PIPE)
    assert read_until(process, b"restart 1 of 1") == b"restart 1 of 1\n"
    assert process.stderr.readline() == b"attempt 1: 1 rank started\n"
    (launcher.latest / "go").touch()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors


def test_the_log_of_the_culprit_stands_by_itself(launcher):
    """Below the stacks, of which it is no part."""
    done = launcher.run("run", "--devices", 2, "--", "sh", "-c", '[ "$RANK" = 0 ] && sleep 1000; echo sorry; exit 5')
    lines = done.stderr.splitlines()
    log = next(number for number, line in enumerate(lines) if line.startswith("log of rank 1: runs/"))
    assert lines[log].endswith("device1/train.log, its last lines:")
    assert lines[log + 1 : log + 3] == ["  | sorry", "the others: 1 by SIGTERM (signal 15)"]


NARROW = """
import io, os
from launcher.cli.text.status_line import StatusLine
os.environ["COLUMNS"] = "41"

class Terminal(io.StringIO):
    def isatty(self):
        return True

for why in ("rank 3: ValueError: " + "x" * 90 + "; ", "rank 3; ", ""):
    terminal = Terminal()
    StatusLine(terminal).show("3 ranks of 4 to end", why)
    print(ascii(terminal.getvalue()))
"""


def test_a_narrow_terminal_cuts_the_failure_first(launcher):
    """How many ranks are left is what changes."""
    done = subprocess.run(
        [sys.executable, "-c", NARROW], cwd=launcher.directory, env=launcher.environment({}),
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        ascii("rank 3: ValueErro…; 3 ranks of 4 to end"),
        "'rank 3; 3 ranks of 4 to end'",
        "'3 ranks of 4 to end'",
    ]
