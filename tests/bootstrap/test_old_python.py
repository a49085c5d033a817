"""Pythons that are too old for the failure hook run their programs all the same."""

import ast
import os
import select
import shutil
import subprocess
from pathlib import Path

import pytest

from launcher import bootstrap
from launcher.program.command import parse_python
from launcher.supervise.fork_server import ForkServer, Unusable

MAIN = Path(bootstrap.__file__).with_name("__main__.py")
SOURCE = "import sys\nprint(sys.argv, sys.path[0], sys.flags.optimize, __name__)\nsys.exit(5)\n"


@pytest.fixture(params=["2.7", "3.6", "3.7"])
def version(request):
    return request.param


@pytest.fixture
def python(version, tmp_path):
    """An interpreter of that version, under a name that does not tell it."""
    found = shutil.which(f"python{version}")
    if found is None or subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode:
        pytest.skip(f"Python {version} is not installed")
    link = tmp_path / "python"
    link.symlink_to(Path(found).resolve())
    return str(link)


@pytest.mark.parametrize("arguments", [
    ["train.py", "a", "", "-b"], ["-O", "-u", "./train.py"], ["-m", "train", "x"], ["-c", SOURCE, "-y"], ["--", "-t.py"],
    ["-W", "ignore", "-Om", "train"], ["missing.py"],
])  # fmt: skip
def test_it_runs_the_program(ways, python, arguments):
    """With its options and arguments, output and status."""
    for name in ("train.py", "-t.py"):
        (ways.cwd / name).write_text(SOURCE)
    expected, found = (run([python, *arguments]) for run in (ways.plain, ways.run))
    assert (found.status, found.log) == (expected.status, expected.log)
    assert found.status != 0


def test_it_preloads_nothing(ways, python, version, tmp_path):
    """And says why."""
    argv = [python, "train.py"]
    command = parse_python(argv, os.environ["PATH"], ways.cwd)
    log = tmp_path / "preload.log"
    fork_server = ForkServer(command, (), argv_shown=argv, common_environment=os.environ, cwd=ways.cwd, log=log)
    assert select.select([fork_server], [], [], 60)[0]
    assert fork_server.take() == [Unusable(f"Python {version} is older than 3.8")]
    os.waitpid(fork_server.pid, 0)
    assert log.read_text() == ""


def test_any_python_can_read_the_first_file():
    """No syntax in it is newer than Python 2.7; none of those that are common today, at least."""
    tree = ast.parse(MAIN.read_text(), feature_version=(3, 4))
    newer = (
        ast.JoinedStr
        | ast.AnnAssign
        | ast.NamedExpr
        | ast.Nonlocal
        | ast.Starred
        | ast.AsyncFunctionDef
        | ast.YieldFrom
    )
    assert not [node for node in ast.walk(tree) if isinstance(node, newer)]
    assert not [node for node in ast.walk(tree) if getattr(node, "annotation", None) or getattr(node, "returns", None)]
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.arguments) and node.kwonlyargs]
