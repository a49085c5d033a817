"""Options that a project's file gives."""

import json
import sys

import pytest

from launcher.cli.commands.run import run
from launcher.cli.options.project_file import _check_owners, read_project_file
from launcher.core.errors import UsageError
from tests.programs import acted_run

PRINT = (sys.executable, "-c", "import os; print(os.environ.get('A'), os.environ.get('B'))")
FILE = """
runs-dir = "all runs"

[run]
devices = 2
hang-timeout = "10m"
env = ["A=1", "API_TOKEN=hunter2"]
no-preload = true
"""


def options_of(launcher, *typed, **options):
    done = launcher.call("run", "--dry-run", "--json", *typed, "--", "true", code=0, **options)
    record = json.loads(done.stdout)
    told = [line for line in done.stderr.splitlines() if line.startswith("from ")]
    return record["options"] | {"runs": record["run_dir"].rpartition("/")[0]}, told


def test_a_file_gives_options(launcher):
    launcher.write("tlaunch.toml", FILE)
    options, told = options_of(launcher)
    given = {"devices": 2, "env": ["A=1", "API_TOKEN=********"], "hang_timeout": 600.0, "no_preload": True}
    assert options == {"command": ["true"], **given, "runs": str(launcher.directory / "all runs")}
    assert len(told) == 1
    assert all(word in told[0] for word in ("tlaunch.toml", "--devices=2", "--no-preload", "--hang-timeout=10m"))
    assert "hunter2" not in told[0]
    launcher.run("run", "--", *PRINT, code=0)
    assert not launcher.runs.exists()
    assert "finished" in launcher.call("status", code=0).stdout
    assert "--devices=2" in launcher.call("rerun", "--env", "API_TOKEN=x", "--dry-run", code=0).stdout
    assert launcher.call("explain", "--", "true", code=0).stdout.startswith("rank 0 of 2")


def test_a_person_has_the_last_word(launcher, sample_tables):
    launcher.write("tlaunch.toml", f"{FILE}set = ['train.steps=3']\ndetach = true\n")
    given = ("--devices", 3, "--env", "B=2", "--env", "A=3")
    options, told = options_of(launcher, *given, env={"TLAUNCH_RUNS_DIR": "here"})
    assert (options["devices"], options["env"]) == (3, ["API_TOKEN=********", "B=2", "A=3"])
    assert options["runs"] == str(launcher.directory / "here")
    assert all(word not in told[0] for word in ("devices", "runs-dir", "--set", "detach"))
    options, told = options_of(launcher, "--rank-table", sample_tables / "rank_table_8pcs.json")
    assert "devices" not in options
    assert "devices" not in told[0]
    assert options_of(launcher, "--max-restarts", 0)[0].get("max_restarts") is None


def test_a_file_may_be_ignored(launcher):
    launcher.write("tlaunch.toml", "[run]\ndevices = ")
    assert launcher.call("run", "--dry-run", "--", "true").returncode == 2
    launcher.call("--no-config", "run", "--dry-run", "--", "true", code=0)
    launcher.call("run", "--dry-run", "--", "true", env={"TLAUNCH_NO_CONFIG": "1"}, code=0)
    assert "--no-config" in launcher.call("--help", code=0).stdout
    assert "Usage: " in launcher.call("run", "--help", code=0).stdout


@pytest.mark.parametrize("name", ["tlaunch.toml", "pyproject.toml"])
def test_the_file_of_a_repository_holds_below_its_root(launcher, name):
    prefix = "tool.tlaunch." if name == "pyproject.toml" else ""
    top = f"[{prefix[:-1]}]\nruns-dir = 'out'\n" if prefix else "runs-dir = 'out'\n"
    launcher.write(f"project/{name}", f"{top}[{prefix}run]\ndevices = 2\n")
    launcher.write("project/below/other/pyproject.toml", "[project]\nname = 'tlaunch'\n[tool.other]\n")
    inside = launcher.directory / "project/below/other"
    assert "devices" not in options_of(launcher, cwd=inside)[0]
    (launcher.directory / "project/.git").mkdir()
    options, told = options_of(launcher, cwd=inside)
    assert (options["devices"], options["runs"]) == (2, str(launcher.directory / "project/out"))
    assert f"../../{name}" in told[0]
    launcher.write("project/below/tlaunch.toml", "[run]\ndevices = 3\n")
    assert options_of(launcher, cwd=inside)[0]["devices"] == 3


@pytest.mark.parametrize("kept", ["{}", "{}/step-5", "{}-run", "{}-run/checkpoints/step-5"])
@pytest.mark.parametrize("name", ["kept", "auto"])
def test_a_checkpoint_is_looked_for_beside_the_file(launcher, kept, name):
    kept = kept.format(name)
    for made in (f"{name}/step-5", f"{name}-run/checkpoints/step-5"):
        launcher.write(f"project/{made}/index.json", "{}")
    launcher.write(f"project/{name}-run/run.json", "{}")
    (launcher.directory / "project/.git").mkdir()
    (launcher.directory / "project/below").mkdir()
    launcher.write("project/tlaunch.toml", f"[run]\nresume = '{kept}'\n")
    assert resumed(launcher, "below") == (kept if kept == "auto" else str(launcher.directory / "project" / kept))
    assert resumed(launcher, ".") == kept


def test_a_run_to_go_on_from_is_no_path(launcher):
    """Nor is what stands in the directory of runs; a directory that happens to be called so holds no checkpoint."""
    for made in (".git", "below", "baseline"):
        (launcher.directory / "project" / made).mkdir(parents=True)
    for kept in ("baseline", "latest", "latest/checkpoints/step-5"):
        launcher.write("project/tlaunch.toml", f"[run]\nresume = '{kept}'\n")
        assert resumed(launcher, "below") == kept


def resumed(launcher, cwd):
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(launcher.directory / "project" / cwd)
        file = read_project_file(str(launcher.directory / "project/tlaunch.toml"), "", ["run"])
        return file.defaults(("run",), run)["resume"]


WRONG = {
    "runs-dir = 3": 1,
    "\n[run]\ndevice = 2": 3,
    "[run]\ndevices = '2'": 2,
    "[run]\ndevices = true": 2,
    "[run]\ndevices = 0": 2,
    "[run]\nelastic = 1": 2,
    "[run]\nenv = 'A=1'": 2,
    "[run]\nenv = [1, true]": 2,
    "[run]\nconsole = 'rank'": 2,
    "[run]\nhang-timeout = 'soon'": 2,
    "[run]\nrank-table = ''": 2,
    '[run]\nrank-table = "a\\u0000b"': 2,
    '[run]\nenv = ["A=1", "B=\\u0000"]': 2,
    '[run]\nconfig = "\\u0000"': 2,
    "[run.devices]\na = 1": 1,
    "run = 3": 1,
    "# tables\n[rum]\na = 1": 2,
    "[exec]\ndevices = 2": 1,
    "[rerun]\ndevices = 2": 1,
    "[explain]\ndevices = 2": 1,
    "devices = 2": 1,
    "[run": None,
    "[run]\na = '\udcff'": None,
}


@pytest.mark.parametrize("name", ["tlaunch.toml", "pyproject.toml"])
def test_what_a_file_may_not_hold_is_told_with_its_line(launcher, name, snapshot):
    told = []
    for text, line in WRONG.items():
        if name == "pyproject.toml":
            head, table, rest = text.partition("[")
            text = f"{head}[tool.tlaunch.{rest}" if table and "= [" not in text[:8] else f"[tool.tlaunch]\n{text}"  # noqa: PLW2901
            line = line if line is None or table else line + 1  # noqa: PLW2901
        launcher.write(name, text, errors="surrogateescape")
        shown = launcher.refused(2, "run --dry-run -- true")
        assert line is None or f"{name}:{line}: " in shown, (text, shown)
        told.append(shown)
    assert "\n\n".join(told) == snapshot


def test_what_only_looks_like_a_table_in_a_shared_file_is_none(launcher):
    """A text that mentions the header is another tool's; a list of tables is refused."""
    for text in ('text = """\n[tool.tlaunch.run]\n"""\n', 'tool = 3\ntext = """\n[tool.tlaunch.run]\n"""\n'):
        launcher.write("pyproject.toml", text)
        launcher.call("ps", code=0)
    launcher.write("pyproject.toml", "[[tool.tlaunch]]\n[tool.tlaunch.run]\ndevices = 2\n")
    assert "pyproject.toml: " in launcher.refused(2, "run --dry-run -- true")


def test_tables_of_groups_are_checked(launcher):
    launcher.write("tlaunch.toml", "[table.generate]\ndevices = 3\n")
    assert launcher.call("table", "generate", code=0).stdout.count("device_id") == 3
    for entry, line in (("[table.generat]\ndevices", 1), ("[table]\ngenerate", 2)):
        launcher.write("tlaunch.toml", f"{entry} = 3\n")
        assert f"tlaunch.toml:{line}: " in launcher.call("table", "explain", "RT101", code=2).stderr


def test_completion_and_ranks_of_an_engine_read_no_file(launcher):
    """Each rank would read another file where servers share none."""
    launcher.write("tlaunch.toml", "[run]\ndevices = ")
    launcher.call("completion", "bash", code=0)
    words = {"_TLAUNCH_COMPLETE": "bash_complete", "COMP_WORDS": "tlaunch run --consol", "COMP_CWORD": "2"}
    assert launcher.call(env=words).stdout.split() == ["plain,--console"]
    assert "tlaunch.toml" not in launcher.call("exec", "--", "true", code=2).stderr


def test_a_job_file_holds_what_held_when_it_was_rendered(launcher):
    launcher.write("tlaunch.toml", "[render]\nmax-restarts = 2\nrank-table = 'none.json'\nenv = ['A=1']\n")
    script = launcher.call("render", "slurm", "--devices", 2, "--env", "B=2", "--", "true", code=0).stdout
    assert all(f" --env {pair} " in script for pair in ("A=1", "B=2"))
    assert " --no-config run --engine slurm " in script
    assert "--max-restarts=2" in script


def test_no_run_here_is_no_reason_to_look_elsewhere_if_a_file_says_where(launcher):
    launcher.write("tlaunch.toml", "runs-dir = 'out'\n")
    acted_run.make(launcher.directory / "out" / "a", cwd="/")
    assert launcher.call("ps", "--all", code=0).stdout.splitlines()[1].startswith("a ")


def test_a_trusted_directory_may_name_a_user_who_does_not_exist(monkeypatch, tmp_path):
    """Others that the variable names count all the same. Files of one's own, or of root, need no variable at all."""
    monkeypatch.setenv("HOME", "~")  # unknown
    for named, uid in (("~/project", 0), (f"~nosuchuser/project:{tmp_path}", 65533)):
        monkeypatch.setenv("TLAUNCH_SAFE_DIRECTORY", named)
        _check_owners(str(tmp_path / "tlaunch.toml"), [uid])
    monkeypatch.setenv("TLAUNCH_SAFE_DIRECTORY", "~nosuchuser/project")
    with pytest.raises(UsageError, match="uid 65533"):
        _check_owners(str(tmp_path / "tlaunch.toml"), [65533])
