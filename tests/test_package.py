"""The wheel holds all that a checkout has at run time."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module", name="installed")
def _installed(tmp_path_factory):
    directory = tmp_path_factory.mktemp("wheel")
    built = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", directory]
    subprocess.run(built, cwd=ROOT, check=True, capture_output=True)
    [wheel] = directory.glob("tlaunch-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory / "site-packages")
    return directory / "site-packages"


def python(installed, *arguments):
    program = f"import sys; sys.path.insert(0, {str(installed)!r}); {arguments[0]}"
    command = [sys.executable, "-c", program, *map(str, arguments[1:])]
    return subprocess.run(command, cwd=installed, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("name", "file"),
    [("rank_tables", "rank_table_8pcs.json"), ("templates", "transformer.toml"), ("templates", "render/bash.sh.j2")],
)
def test_data_is_found_from_an_installed_copy(installed, name, file):
    done = python(installed, f"from launcher.core.resources import data_dir; print(data_dir({name!r}))")
    assert done.stdout.strip() == str(installed / "launcher" / "_data" / name), done.stderr
    assert (installed / "launcher" / "_data" / name / file).read_bytes() == (ROOT / name / file).read_bytes()


def test_the_readme_command_works_from_an_installed_copy(installed):
    options = ["--rank-table", "rank_tables/rank_table_8pcs.json", "--config", "recipes/transformer/tutorial.toml"]
    words = ["run", *options, "--mp", "2", "--pp", "2", "--dry-run"]
    done = python(installed, "from launcher.cli.main import main; main()", *words)
    assert done.returncode == 0, done.stderr
    assert "RANK_ID=7" in done.stdout


def test_the_built_in_corpus_comes_with_the_wheel(installed, tmp_path):
    writes = "from pathlib import Path; from launcher.corpus.sample import write_sample; print(write_sample(Path(sys.argv[1]))[0])"
    done = python(installed, writes, tmp_path)
    assert Path(done.stdout.strip()).read_text().count("\n") == 12_000, done.stderr


def test_the_wheel_has_the_package_that_programs_import(installed):
    assert (installed / "tlaunch" / "py.typed").is_file()
    [entry_points] = installed.glob("tlaunch-*.dist-info/entry_points.txt")
    assert "tlaunch = _tlaunch_command:main" in entry_points.read_text()
    assert (installed / "_tlaunch_command.py").is_file()
    command = [sys.executable, installed / "tlaunch", "run", "--devices", "1", "--set", "train.steps=1", "--dry-run"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert f"{installed / 'tlaunch'} -m launcher.trainer" in done.stdout, done.stderr
