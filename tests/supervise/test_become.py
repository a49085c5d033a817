"""A process that becomes a rank's program."""

import os
import signal
import subprocess
import sys

import pytest

BECOME = """
import os, sys
from pathlib import Path
from launcher.supervise.become import become
print("before", flush=True)
log = Path(sys.argv[1]) if sys.argv[1] else None
sys.exit(become(tuple(sys.argv[2:]), {**os.environ, "WORD": "a b$(c)"}, log))
"""


def run(log, *argv, **options):
    command = [sys.executable, "-c", BECOME, log, *map(str, argv)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)


def test_the_program_has_this_process_s_pid_and_the_log(tmp_path):
    """Nothing stays in between; words and variables arrive as they are."""
    log = tmp_path / "train.log"
    log.write_text("earlier\n")
    process = subprocess.Popen(
        [sys.executable, "-c", BECOME, log, "sh", "-c", 'echo $$ "$WORD" "$1"; echo error >&2', "-", "x  y\n"],
        stdout=subprocess.PIPE,
        text=True,
    )
    out, _ = process.communicate(timeout=60)
    assert (out, process.returncode) == ("before\n", 0)
    assert log.read_text() == f"earlier\n{process.pid} a b$(c) x  y\n\nerror\n"


def test_without_a_log_stdout_and_stderr_stay():
    """For an engine that gathers them."""
    done = run("", "sh", "-c", "echo out; echo error >&2; exit 7")
    assert (done.stdout, done.stderr, done.returncode) == ("before\nout\n", "error\n", 7)


@pytest.mark.parametrize(
    ("content", "mode", "code", "reason"),
    [
        ("#!/no/such/interpreter\n", 0o755, 127, "No such file or directory"),
        ("junk", 0o755, 126, "Exec format error"),
        ("#!/bin/sh\n", 0o644, 126, "Permission denied"),
    ],
)
def test_why_a_program_did_not_start_is_told_where_people_look(tmp_path, content, mode, code, reason):
    """On the stderr that this process had, not in the log."""
    program = tmp_path / "program"
    program.write_text(content)
    program.chmod(mode)
    done = run(tmp_path / "log", program)
    assert (done.returncode, done.stderr) == (code, f"error: cannot start {program}: {reason}\n")


def test_signals_are_as_the_engine_left_them():
    """Python's own changes are undone, and what was ignored before stays ignored."""
    show = (
        "import signal; print(*(signal.getsignal(getattr(signal, n)) == signal.SIG_IGN for n in ('SIGHUP', 'SIGUSR1')))"
    )
    shell = "trap '' HUP; exec \"$@\""
    command = ["sh", "-c", shell, "-", sys.executable, "-c", BECOME, "", sys.executable, "-c", show]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "before\nTrue False\n"
    masks = run("", "grep", "SigIgn", "/proc/self/status").stdout.split()
    assert not int(masks[-1], 16) & 1 << (signal.SIGPIPE - 1)


def test_descriptors_of_the_engine_stay_open():
    """PMI talks over one."""
    reader, writer = os.pipe()
    try:
        done = run("", "sh", "-c", f"echo through >/dev/fd/{writer}", pass_fds=(writer,))
        assert done.returncode == 0
        assert os.read(reader, 100) == b"through\n"
    finally:
        os.close(reader)
        os.close(writer)
