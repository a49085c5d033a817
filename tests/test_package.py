"""The wheel, installed in an empty environment: it holds all that a checkout has at run time."""

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import urllib.request
from pathlib import Path

import pytest

from tests.conftest import PATIENCE_S

ROOT = Path(__file__).parents[1]
OWN = f"{sys.version_info.major}.{sys.version_info.minor}"
INSTALL_S = 300
TABLE = "rank_tables/rank_table_8pcs.json"


class Environment:
    """A virtual environment with the wheel and the dependencies that it names, and an empty directory to work in."""

    def __init__(self, python, wheel, directory):
        self.cwd = directory / "work"
        self.cwd.mkdir()
        self.bin = directory / "venv" / "bin"
        self.variables = {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}"}
        subprocess.run([python, "-m", "venv", self.bin.parent], check=True, capture_output=True, timeout=INSTALL_S)
        self.run("python", "-m", "pip", "install", "--quiet", wheel, timeout=INSTALL_S)
        self.site = Path(self.run("python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())

    def run(self, *command, timeout=PATIENCE_S):
        """Return what a command of this environment writes to stdout."""
        argv = [self.bin / command[0], *map(str, command[1:])]
        done = subprocess.run(
            argv, cwd=self.cwd, env=self.variables, capture_output=True, text=True, timeout=timeout, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, *command):
        argv = [self.bin / command[0], *command[1:]]
        return subprocess.Popen(argv, cwd=self.cwd, env=self.variables, stdout=subprocess.PIPE, text=True)


@pytest.fixture(scope="module", name="wheel")
def _wheel(tmp_path_factory):
    directory = tmp_path_factory.mktemp("wheel")
    built = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", directory]
    subprocess.run(built, cwd=ROOT, check=True, capture_output=True)
    [wheel] = directory.glob("tlaunch-*.whl")
    return wheel


@pytest.fixture(scope="module", name="installed")
def _installed(wheel, tmp_path_factory):
    """An environment of the Python that runs the tests, which also finds the trainer's libraries."""
    environment = Environment(sys.executable, wheel, tmp_path_factory.mktemp("own"))
    # The directory's own .pth files, which lead to the checkout, are not read.
    (environment.site / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    return environment


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_commands_work_in_an_empty_environment(wheel, installed, tmp_path, version):
    """`validate`, `run` and `report --live`, without the checkout."""
    python = f"python{version}"
    if version == OWN:
        environment = installed
    elif (
        shutil.which(python) is None or subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode
    ):
        pytest.skip(f"{python} is not installed")
    else:
        environment = Environment(python, wheel, tmp_path)
    environment.run("tlaunch", "validate", TABLE)
    name = environment.run("tlaunch", "run", "--detach", "--devices", 2, "--", "sleep", "1000").strip()
    served = environment.start("tlaunch", "report", "--live", name)
    try:
        address = served.stdout.readline().strip()
        with urllib.request.urlopen(f"{address}news?seen=0", timeout=PATIENCE_S) as news:
            assert name in news.read().decode()
    finally:
        environment.run("tlaunch", "stop", name)
        served.send_signal(signal.SIGINT)
        served.communicate(timeout=PATIENCE_S)


def test_the_bundled_trainer_works_in_an_empty_environment(installed):
    """It reads its built-in corpus and configuration from the wheel."""
    config = ["--config", "recipes/transformer/tutorial.toml", "--set", "train.steps=2"]
    output = installed.run("tlaunch", "run", "--devices", "2", "--name", "trained", *config, timeout=INSTALL_S)
    assert re.search(r"step: 2, loss is \d", output)
    assert installed.run("python", "-c", "import launcher; print(launcher.__file__)").startswith(str(installed.site))


def test_the_sample_files_are_those_of_the_checkout(installed):
    for name in ("rank_tables", "templates"):
        compared = ["diff", "-r", "-x", "__pycache__", ROOT / name, installed.site / "launcher" / "_data" / name]
        subprocess.run(compared, check=True, capture_output=True)


def test_the_wheel_has_the_package_that_programs_import(installed):
    """With its types."""
    assert (installed.site / "tlaunch" / "py.typed").is_file()
    assert installed.run("python", "-c", "import tlaunch; print(tlaunch.beat.__module__)")
