"""What a person sees of a run, and that a stdout in trouble never disturbs it."""

import fcntl
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from launcher.cli.text.run_status_line import StatusLine
from launcher.cluster.launcher_loop import SAME_REQUEST_S

from .transcript import normalised

GO = 'until [ -e "$TLAUNCH_RUN_DIR/go" ]; do sleep 0.01; done'
FAILING_OBSERVER = """
from launcher.cli.text import console
from launcher.cli import main

class Failing(console.Console):
    def tick(self):
        raise RuntimeError("seen once")

console.Console = Failing
main.main(["run", "--devices", "2", "--", "sh", "-c", "sleep 0.5; exit $((RANK * 7))"])
"""


def full_pipe():
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"." * 4096)
    except BlockingIOError:
        os.set_blocking(writer, True)
    return reader, writer


def test_a_stdout_that_does_not_block_loses_nothing(launcher):
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writer, False)
    process = launcher.start("run", "--", "seq", 100_000, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    with os.fdopen(reader, "rb") as shown:
        lines = shown.read().split()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert lines == [b"%d" % number for number in range(1, 100_001)]


def test_chosen_ranks_are_shown(launcher, snapshot):
    done = launcher.run("run", "-n", 4, "--console", "0,2-3", "--", "sh", "-c", "echo line of $RANK", code=0)
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] line of {rank}" for rank in (0, 2, 3)]
    assert launcher.call("run", "-n", 2, "--console", "rank1", "--", "true", code=2).stderr == snapshot
    assert launcher.call("run", "-n", 2, "--console", "0,2", "--", "true", code=2).stderr == snapshot


def test_an_observer_that_fails_is_let_go(launcher):
    """The head goes on without it to the run's own exit code, and nobody calls an unwatched end a good one."""
    done = launcher.python(FAILING_OBSERVER)
    assert done.returncode == 7, done.stderr
    assert done.stderr.count("RuntimeError: seen once") == 1
    assert "succeeded" not in done.stderr
    assert launcher.report.verdict.culprit == 1


def test_logs_are_not_read_for_nobody(launcher, wait_until):
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
    try:
        return int(Path(f"/proc/{pid}/io").read_text().split()[1])
    except OSError:
        return 0


def test_only_the_end_of_a_large_rest_is_shown(launcher, wait_until):
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


def test_a_stdout_that_nobody_reads_does_not_hold_the_end(launcher):
    reader, writer = full_pipe()
    script = "echo ready; seq 1000000; sleep 1000"
    process = launcher.start("run", "--grace", 5, "--", "sh", "-c", script, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    launcher.wait_ready(1)
    process.terminate()
    _, errors = process.communicate(timeout=60)
    os.close(reader)
    assert process.returncode == 143, errors
    assert b"SIGTERM: " in errors
    assert b"stdout: " in errors


def test_a_run_that_is_killed_says_so(launcher, programs, snapshot):
    deaf = ["--grace", 1000, "--", sys.executable, programs / "stubborn.py", "ignore"]
    process = launcher.start("run", "--devices", 1, "--name", "n", *deaf, stderr=subprocess.PIPE)
    started = read_until(process, b"started")
    launcher.wait_ready(1)
    process.send_signal(signal.SIGINT)
    started += read_until(process, b"Ctrl-C again")
    time.sleep(SAME_REQUEST_S)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    told = normalised((started + errors).decode(), launcher.directory).splitlines()
    assert [line for line in told if " ending, " not in line] == snapshot  # how many are left, if the second is late


@pytest.mark.parametrize(("code", "words"), [(0, b"terminating 1 process"), (3, b"terminating processes")])
def test_waiting_for_leftovers_is_told_while_it_lasts(launcher, programs, code, words):
    script = f'"{sys.executable}" "{programs / "stubborn.py"}" double-fork ignore child-only; exit {code}'
    process = launcher.start("run", "--grace", 1000, "--", "sh", "-c", script, stderr=subprocess.PIPE)
    read_until(process, words)
    before_s, burnt_s = cpu_s(process.pid), time.process_time()
    while time.process_time() - burnt_s < 0.4:
        pass
    assert cpu_s(process.pid) - before_s < 0.2
    process.send_signal(signal.SIGINT)
    read_until(process, b"Ctrl-C again")
    time.sleep(SAME_REQUEST_S)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == code


def cpu_s(pid):
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return sum(sum(each.cpu_times()[:2]) for each in processes)


def read_until(process, words):
    line = b""
    while words not in line:
        line = process.stderr.readline()
        assert line, f"never said: {words}"
    return line


def test_a_log_that_is_gone_is_not_called_empty(launcher):
    done = launcher.run("run", "--", "sh", "-c", 'rm "$TLAUNCH_RUN_DIR/device0/train.log"; exit 4')
    assert done.returncode == 4
    assert ("No such file or directory" in done.stderr, "empty" in done.stderr) == (True, False)


def test_the_last_lines_are_those_of_the_last_attempt(launcher):
    script = '[ "$TLAUNCH_ATTEMPT" = 1 ] || echo said before; exit $((4 + TLAUNCH_ATTEMPT))'
    done = launcher.run("run", "--max-restarts", 1, "--", "sh", "-c", script)
    assert done.returncode == 5, done.stderr
    closing = done.stderr[done.stderr.index("error:") :]
    assert ("device0/train.log" in closing, "said before" in closing) == (True, False)
    assert "said before" not in launcher.call("why").stdout


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("columns", "shown", "row"), [
    # Colours take no column, and none is left open at the cut.
    (20, ["\x1b[1;31m" + "red" * 3 + "\x1b[0m" + "." * 30], "redredred" + "." * 9),
    # How many ranks are left is what changes, and is cut last.
    (41, ["3 ranks of 4 to end", f"rank 3: ValueError: {'x' * 90}; "], "rank 3: ValueErro…; 3 ranks of 4 to end"),
    (41, ["3 ranks of 4 to end", "rank 3; "], "rank 3; 3 ranks of 4 to end"),
    (41, ["3 ranks of 4 to end", ""], "3 ranks of 4 to end"),
])  # fmt: skip
def test_a_status_line_is_cut_by_columns(monkeypatch, columns, shown, row):
    monkeypatch.setenv("COLUMNS", str(columns))
    terminal = Terminal()
    StatusLine(terminal).show(*shown)
    assert terminal.getvalue() == row


def test_a_long_line_is_cut_and_the_cut_is_said(launcher):
    program = ["--", "python", "-c", "print('x' * 50_000); raise SystemExit(3)"]
    done = launcher.run("run", *program)
    assert done.returncode == 3
    assert done.stdout == "x" * 50_000 + "\n"
    assert ", last lines:\n  | " + "x" * 1000 + "… 47 KiB more\n" in done.stderr
    why = launcher.call("why").stdout
    assert "\nrank 0: exit code 3, at " in why
    assert max(map(len, why.splitlines())) < 1050
    master, terminal = os.openpty()
    process = launcher.start("run", *program, stdout=terminal)
    os.close(terminal)
    with os.fdopen(master, "rb") as screen:
        assert screen.readline().decode().startswith("x" * 1000 + "… 47 KiB more")
        assert process.wait(60) == 3
