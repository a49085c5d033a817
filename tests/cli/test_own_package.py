"""tlaunch's processes take tlaunch's package, whatever the current directory and PYTHONPATH have of that name."""

import sys
from itertools import cycle
from pathlib import Path

import pytest

from launcher.core.resources import START, START_BY_NAME, module_argv
from launcher.program.digests import digests_of
from launcher.program.preload_scan import modules_to_preload
from launcher.program.program_command import PythonCommand
from launcher.program.program_files import own_module

TAKEN = "raise SystemExit('taken')\n"
COMMAND = Path(sys.executable).with_name("tlaunch")
MODULES = ("trainer", "trainer.decode", "trainer.checkpoint.foreign", "trainer.links")
WAYS = {
    "command": ([COMMAND, "--version"], ("PYTHONPATH", "empty entry")),
    "module": ([sys.executable, "-m", "tlaunch", "--version"], ("current directory", "PYTHONPATH", "empty entry")),
    "directory": ([sys.executable, START, "--version"], ("current directory", "PYTHONPATH", "empty entry")),
    "image": ([sys.executable, *START_BY_NAME, "--version"], ("current directory", "PYTHONPATH")),
}


@pytest.fixture(name="planted")
def _planted(launcher):
    def plant(where, form="package"):
        directory = "library" if where == "PYTHONPATH" else "."
        for name in ("launcher", "launcher/cli", "launcher/trainer"):
            launcher.write(f"{directory}/{name}.py" if form == "module" else f"{directory}/{name}/__init__.py", TAKEN)
        if where == "current directory":  # PYTHONPATH is the user's to replace anything by
            for name in ("json", "click", "torch"):
                launcher.write(f"{name}.py", TAKEN)
        values = {"current directory": {}, "PYTHONPATH": {"PYTHONPATH": str(launcher.directory / "library")}}
        return values.get(where, {"PYTHONPATH": ":/nowhere"})

    return plant


@pytest.mark.parametrize("form", ["package", "module"])
@pytest.mark.parametrize(("way", "where"), [(way, where) for way, (_, places) in WAYS.items() for where in places])
def test_the_command_starts(launcher, planted, way, where, form):
    done = launcher.ended(list(map(str, WAYS[way][0])), env=planted(where, form), code=0)
    assert done.stdout.startswith("tlaunch, version")


@pytest.mark.parametrize("form", ["tlaunch.py", "tlaunch/__init__.py"])
def test_the_command_is_not_that_of_a_project_called_tlaunch(launcher, form):
    launcher.write(f"library/{form}", TAKEN)
    done = launcher.ended([str(COMMAND), "--version"], env={"PYTHONPATH": str(launcher.directory / "library")}, code=0)
    assert done.stdout.startswith("tlaunch, version")


@pytest.mark.parametrize(
    ("module", "where"), [*zip(MODULES, cycle(("current directory", "PYTHONPATH", "empty entry")))]
)
def test_a_module_of_the_trainer_starts(launcher, planted, module, where):
    done = launcher.ended(module_argv(f"launcher.{module}", "--help"), env=planted(where), code=0)
    assert done.stdout.startswith("usage:")


@pytest.mark.parametrize("preload", [True, False])
@pytest.mark.parametrize("form", ["package", "module"])
def test_a_program_gets_its_own(launcher, form, preload):
    launcher.write("launcher.py" if form == "module" else "launcher/__init__.py", "NAME = 'mine'\n")
    launcher.write("train.py", "import json, launcher\nimport numpy\nprint(launcher.NAME)\n")
    words = ["run", "--devices", "2", "--console", "all", *["--no-preload"] * (not preload)]
    done = launcher.ended([COMMAND, *words, "--", sys.executable, "train.py"], code=0)
    assert [line.split()[-1] for line in done.stdout.splitlines()] == ["mine"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("where", ["current directory", "PYTHONPATH"])
def test_the_bundled_trainer_is_forked(launcher, planted, where):
    settings = "train.steps=1 train.translations=0 train.device=cpu model.d_model=32 model.feed_forward_dim=32"
    words = [f"--set={setting}" for setting in settings.split()]
    environment = {**planted(where), "OMP_NUM_THREADS": "1"}
    launcher.ended([COMMAND, "run", "--devices", "1", *words], env=environment, code=0)
    events = (launcher.runs / "latest" / "events.jsonl").read_text()
    assert '"Preloaded"' in events
    assert "loss is" in (launcher.runs / "latest" / "device0" / "train.log").read_text()


def command(kind, target, *arguments):
    return PythonCommand(sys.executable, (), kind, target, arguments)


@pytest.mark.parametrize("started", [
    command("script", START, "-m", "launcher.trainer", "x"), command("code", START_BY_NAME[1], "-m", "launcher.trainer", "x"),
    command("script", "/other/place/tlaunch", "-m", "launcher.trainer", "x"), command("module", "launcher.trainer", "x"),
])  # fmt: skip
def test_the_trainer_is_recognised(tmp_path, started):
    found = own_module(started, tmp_path, {})
    assert (found.kind, found.target, found.arguments) == ("module", "launcher.trainer", ("x",))
    assert "launcher.trainer.programs.transformer" in modules_to_preload(started, tmp_path, {})


@pytest.mark.parametrize("started", [
    command("script", START, "run"), command("script", START, "-m", "train"), command("script", START, "-m"),
    command("script", "train.py", "-m", "launcher.trainer"), command("code", "pass"), command("module", "train"),
])  # fmt: skip
def test_other_programs_are_not(tmp_path, started):
    assert own_module(started, tmp_path, {}) is None


def test_a_module_of_a_programs_own_launcher_is_the_programs(launcher):
    launcher.write("launcher/__init__.py")
    launcher.write("launcher/trainer.py", "import numpy\n")
    assert own_module(command("module", "launcher.trainer"), launcher.directory, {}) is None
    assert modules_to_preload(command("module", "launcher.trainer"), launcher.directory, {}) == ("numpy",)
    found = digests_of([sys.executable, "-m", "launcher.trainer"], {}, launcher.directory)
    assert set(found) == {"launcher/__init__.py", "launcher/trainer.py"}
