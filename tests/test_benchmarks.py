"""Benchmarks import only what exists, and leave nothing behind in the directories of the user who runs them."""

import ast
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
EARLIER = "earlier_trainer.py"  # runs with an earlier version of the package


def test_runs_are_noted_in_a_directory_that_goes_with_the_benchmark(tmp_path):
    program = (
        "import common, os; from launcher.core.resources import state_dir; os.makedirs(d := state_dir()); print(d)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=BENCHMARKS, env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert Path(done.stdout.strip()).is_absolute()
    assert not Path(done.stdout.strip()).parent.exists()
    assert list(tmp_path.iterdir()) == []


def test_all_that_start_tlaunch_do_so():
    texts = {path.name: path.read_text(encoding="utf-8") for path in BENCHMARKS.rglob("*.py")}
    starting = {name for name, text in texts.items() if '"tlaunch"' in text}
    assert starting
    assert {name for name in starting if not re.search(r"^from common\.", texts[name], re.MULTILINE)} == set()


@pytest.mark.parametrize("path", sorted(BENCHMARKS.rglob("*.py")), ids=lambda path: str(path.relative_to(BENCHMARKS)))
def test_names_that_a_benchmark_imports_exist(path):
    if path.name == EARLIER:
        pytest.skip("its names are of an earlier version")
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "launcher":
            module = import_module(node.module)
            for name in node.names:
                assert hasattr(module, name.name) or import_module(f"{node.module}.{name.name}")
