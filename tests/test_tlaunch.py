"""The package `tlaunch`: the names that programs import, also beside a `launcher` of their own."""

import json
import os
import subprocess
import sys

import pytest

import launcher
import tlaunch

NAMES = {
    "FunctionResult", "LaunchResult", "Run", "RunFailedError", "TlaunchError", "__version__", "beat", "launch", "metric",
}  # fmt: skip
MINE = 'NAME = "mine"\n'
REPORTS = """
tlaunch.beat(3, loss=0.5)
tlaunch.metric(3, loss=0.5)
import launcher
assert launcher.NAME == "mine", launcher
"""


@pytest.fixture(name="python")
def _python(tmp_path):
    def run(code, **variables):
        (tmp_path / "train.py").write_text(code)
        rank = {"TLAUNCH_HEARTBEAT_FILE": str(tmp_path / "heartbeat"), "TLAUNCH_RUN_DIR": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "train.py"], cwd=tmp_path, env={**os.environ, **rank, **variables},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_it_lists_its_names():
    assert set(dir(tlaunch)) == set(dir(launcher)) == set(tlaunch.__all__) == NAMES
    with pytest.raises(AttributeError):
        tlaunch.nothing  # noqa: B018


def test_help_shows_its_functions(python):
    shown = python("import tlaunch; help(tlaunch)")
    assert {"beat(", "launch(", "metric("} <= {word[: word.find("(") + 1] for word in shown.split()}


@pytest.mark.parametrize("first", ["launcher", "tlaunch"])
def test_both_packages_have_the_same_objects(python, first):
    python(f"""
import {first}
{first}.beat, {first}.launch
import launcher, tlaunch
assert all(getattr(launcher, name) is getattr(tlaunch, name) for name in tlaunch.__all__)
from launcher.core.errors import TlaunchError
assert TlaunchError is tlaunch.TlaunchError
""")


def test_it_imports_nothing_until_a_name_is_used(python):
    shown = python("import sys; before = set(sys.modules); import tlaunch; print(*set(sys.modules) - before)")
    assert set(shown.split()) == {"tlaunch", "__future__"}


@pytest.mark.parametrize("where", ["a package", "a module", "on PYTHONPATH", "later", "imported first"])
def test_a_program_with_its_own_launcher_reports(python, tmp_path, where):
    """Both `launcher`s are there, whichever is imported first."""
    directory = tmp_path / "src" if where in {"on PYTHONPATH", "later"} else tmp_path
    directory.mkdir(exist_ok=True)
    if where == "a module":
        (directory / "launcher.py").write_text(MINE)
    else:
        (directory / "launcher").mkdir()
        (directory / "launcher" / "__init__.py").write_text(MINE)
    late = "import sys; import tlaunch; tlaunch.beat(1); sys.path.insert(0, 'src')"
    before = {"later": late, "imported first": "import launcher"}
    variables = {"PYTHONPATH": str(directory)} if where == "on PYTHONPATH" else {}
    python(f"{before.get(where, '')}\nimport tlaunch\n{REPORTS}", **variables)
    assert json.loads((tmp_path / "heartbeat").read_text())["step"] == 3
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["loss"] == 0.5


def test_a_program_with_its_own_launcher_starts_runs(python, tmp_path):
    (tmp_path / "launcher").mkdir()
    (tmp_path / "launcher" / "__init__.py").write_text(MINE)
    shown = python("""
import launcher, tlaunch
result = tlaunch.launch(["sh", "-c", "exit 7"], runs_dir="runs", console="none")
assert isinstance(result, tlaunch.LaunchResult)
try:
    tlaunch.launch(["python", "missing.py"], runs_dir="runs")
except tlaunch.TlaunchError as error:
    print(result.exit_code, launcher.NAME, error.exit_code)
""")
    assert shown.split() == ["7", "mine", "2"]
