"""Benchmarks leave nothing behind in the directories of the user who runs them."""

import os
import re
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


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
