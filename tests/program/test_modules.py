"""Find modules that `python -m` would not find, without running Python. In doubt, a module counts as found."""

import subprocess
import sys
from pathlib import Path

import pytest

from launcher.program.module_search import missing_module
from launcher.program.program_command import parse_python


@pytest.fixture
def missing(tmp_path, monkeypatch):
    """Return a function to the name that `python WORDS` would not find. It checks that Python executes nothing."""
    for name, text in {
        "train.py": "", "package/__init__.py": "", "package/tool.py": "", "package/inner/__init__.py": "",
        "package/inner/__main__.py": "", "bare/tool.py": "", "moving/__init__.py": "__path__.append('elsewhere')\n",
        "lib/far.py": "", "own/sitecustomize.py": "", "compiled/__init__.pyc": "",
        "hooked/__init__.py": "from hooked import helper\n", "hooked/helper.py": "", "ending/__init__.py": "raise SystemExit(0)\n",
        "calling/__init__.py": "import tool\ntool.add(__name__)\n",
    }.items():  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path)

    def name(*words: str, **variables: str) -> str | None:
        environment = {"PATH": "", **variables}
        for known in ("HOME",):
            monkeypatch.setenv(known, variables.get(known, "/"))
            environment.setdefault(known, "/")
        command = parse_python([sys.executable, *words], None, tmp_path)
        assert command is not None
        found = missing_module(command, tmp_path, environment)
        if found is not None:
            argv = [sys.executable, *words]
            assert subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, check=False).returncode == 1
        return found

    return name


@pytest.mark.parametrize(("target", "name"), [
    ("nosuchmod", "nosuchmod"), ("nosuch.deep.mod", "nosuch"), ("package.nosuch", "package.nosuch"),
    ("package", "package.__main__"), ("bare", "bare.__main__"), ("train.py", "train.py"), ("./train.py", "./train.py"),
    ("package.tool.x", "package.tool.x"), ("email.nosuch", "email.nosuch"), ("far", "far"),
])  # fmt: skip
def test_what_python_does_not_find_is_named(missing, target, name):
    assert missing("-m", target) == name


@pytest.mark.parametrize("target", [
    "train", "package.tool", "package.inner", "bare.tool", "http.server", "pytest", "moving.any", "compiled.x",
    "hooked.virtual", "ending", "ending.sub", "calling.any", "os.path",
])  # fmt: skip
def test_what_is_there_or_may_be_is_not(missing, target):
    assert missing("-m", target) is None


def test_the_search_is_that_of_the_ranks(missing, tmp_path):
    assert missing("-m", "far", PYTHONPATH="lib") is None
    assert missing("-E", "-m", "far", PYTHONPATH="lib") == "far"
    assert missing("-I", "-m", "train") == "train"
    assert missing("-E", "-m", "train", PYTHONSAFEPATH="1") is None
    assert missing("-m", "nosuch", PYTHONPATH="own") is None
    assert missing("train.py") is None


def test_of_another_python_nothing_is_known(tmp_path):
    """Not even of one that is the same file, linked from another directory, as virtual environments are."""
    link = tmp_path / "bin" / "python3"
    link.parent.mkdir()
    link.symlink_to(Path(sys.executable).resolve())
    command = parse_python([str(link), "-m", "nosuchmod"], None, tmp_path)
    assert command is not None
    assert missing_module(command, tmp_path, {}) is None
