"""Ranks of a Python that is too old for the failure hook run their programs all the same."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher import preload
from launcher.supervise.fork_server import Unusable
from tests.conftest import executable

from .conftest import PATIENCE_S, listen

MAIN = Path(preload.__file__).with_name("__main__.py")
SOURCE = "import sys\nprint(sys.version_info[:2], sys.argv, sys.path[0], sys.flags.optimize, __name__)\nsys.exit(5)\n"


@pytest.fixture
def python(tmp_path):
    """An interpreter that says it is Python 3.8, under a name that does not."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import sys\nsys.version_info = (3, 8, 20, 'final', 0)\n")
    return str(executable(tmp_path / "python", f'#!/bin/sh\nPYTHONPATH={tmp_path}/site exec {sys.executable} "$@"\n'))


@pytest.mark.parametrize("arguments", [
    ["train.py", "a", "", "-b"], ["-O", "-u", "./train.py"], ["-m", "train", "x"], ["-c", SOURCE, "-y"], ["--", "-t.py"],
    ["-W", "ignore", "-Om", "train"], ["missing.py"],
])  # fmt: skip
def test_it_runs_the_program(ways, python, arguments):
    for name in ("train.py", "-t.py"):
        (ways.cwd / name).write_text(SOURCE)
    expected, found = (run([python, *arguments]) for run in (ways.plain, ways.run))
    assert (found.status, found.log) == (expected.status, expected.log)
    assert found.status != 0


def test_it_preloads_nothing(ways, python):
    fork_server = ways.fork_server([python, "train.py"])
    assert listen(fork_server) == [Unusable("Python 3.8 is older than 3.10")]
    os.waitpid(fork_server.pid, 0)
    assert ways.preload_log.read_text() == ""


def test_its_ranks_run_with_a_note(ways, python):
    (ways.cwd / "train.py").write_text("import json, sys\nprint(sys.version_info[:2])\n")
    argv = [sys.executable, "-m", "launcher", "run", "--devices", "2", "--", python, "train.py"]
    done = subprocess.run(argv, cwd=ways.cwd, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert "ranks start one by one: Python 3.8 is older than 3.10" in done.stderr
    assert [log.read_text() for log in ways.cwd.glob("runs/latest/device*/train.log")] == ["(3, 8)\n"] * 2


def test_any_python_3_can_read_the_first_file():
    ast.parse(MAIN.read_text(), feature_version=(3, 6))
