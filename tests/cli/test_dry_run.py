"""`--dry-run`: exact, pasteable, and without any effect."""

import json
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from launcher.cli.launch.dry_run import _variables
from launcher.core.records import Cluster, Layout, RankSpec, RunSpec
from launcher.core.resources import module_argv


def test_lines_can_be_pasted_into_a_shell(launcher):
    (launcher.directory / "a b").mkdir()
    words = ["it's", "a  b", "$HOME", "", "*", "new\nline"]
    show = "print(sys.argv[1:], *map(os.environ.get, ['RANK', 'X', 'OMPI_COMM_WORLD_RANK', 'NCCL_DEBUG']))"
    program = ["python", "-c", f"import os, sys; {show}"]
    env = {"OMPI_COMM_WORLD_RANK": "1", "NCCL_DEBUG": "INFO"}  # the first is what another launcher has left
    done = launcher.call(
        "run", "--devices", 2, "--env", "X=1 'two'", "--dry-run", "-v", "--", *program, *words, env=env
    )
    shown = done.stdout.split("# rank ")[1:]
    assert len(shown) == 2
    for rank, text in enumerate(shown):
        line = text.partition("\n")[2]
        assert launcher.shell(line, env=env).stdout == f"{words} {rank} 1 'two' None INFO\n"


def test_comments_say_who_is_where_and_nothing_is_created(launcher, sample_tables):
    table = sample_tables / "rank_table_8pcs.json"
    done = launcher.call("run", "--rank-table", table, "--mp", 2, "--pp", 2, "--dry-run", "-v", "--", "touch", "x")
    comments = [line for line in done.stdout.splitlines() if line.startswith("#")]
    assert len(comments) == 8
    assert "device 5, pp=1 dp=0 mp=1" in comments[5]
    assert list(launcher.directory.iterdir()) == []


def test_a_summary_has_variables_once_and_those_that_differ(launcher, snapshot):
    words = ["--devices", 4, "--mp", 2, "--master-port", 29876, "--stdin", 1, "--set", "train.steps=3"]
    shown = launcher.call("run", *words, "--dry-run", code=0).stdout
    run = re.search("run directory: .*/(.*)", shown)[1]
    for text, name in (
        (run, "RUN"),
        (str(launcher.directory), "DIRECTORY"),
        (shlex.join(module_argv("")[:-1]), "TLAUNCH"),
    ):
        shown = shown.replace(text, name)
    assert re.sub(r"NUM_THREADS=\d+", "NUM_THREADS=N", shown) == snapshot


def test_secrets_are_masked(launcher):
    arguments = ["run", "--env", "API_KEY=s3cr3t", "--env", "PROXY=http://me:s3cr3t@host", "--dry-run"]
    lines = launcher.call(*arguments, "-v", "--", "true").stdout
    summary = launcher.call(*arguments, "--", "true").stdout
    as_json = launcher.call(*arguments, "--json", "--", "true").stdout
    assert "s3cr3t" not in lines + summary + as_json
    assert "API_KEY=********" in summary
    assert "masked: API_KEY, PROXY" in lines


def test_a_project_file_does_not_act_on_the_terminal(launcher):
    launcher.write("tlaunch.toml", '[run]\nenv = ["X=\\u001b[2Jhidden"]\nname = "a"\ndevices = 1\n')
    for words in (["--dry-run"], ["--dry-run", "--engine", "mpi"], ["--dry-run", "--json"], ["-v", "--dry-run"]):
        done = launcher.call("run", *words, "--", "echo", "\x1b]0;title\x07", code=0)
        assert "\x1b" not in done.stdout + done.stderr
        assert "2Jhidden" in done.stdout


def test_the_bundled_trainer_is_shown_with_its_options(launcher):
    (launcher.directory / "my.toml").write_text("[train]\nmicro_batches = 4\n")
    done = launcher.call(
        "run", "--devices", 4, "--pp", 2, "--recipe", "transformer", "--config", "my.toml", "--set", "train.steps=3",
        "--dry-run", "--json",
    )  # fmt: skip
    spec = json.loads(done.stdout)
    config = str(launcher.directory / "my.toml")
    given = ["--recipe", "transformer", "--config", config, "--set", "train.steps=3"]
    assert spec["ranks"][0]["argv"] == [*module_argv("launcher.trainer"), *given]
    assert spec["layout"]["micro_batches"] == 4
    assert spec["console"] == "rank0"


def test_json_and_run_json_are_one_format(launcher):
    arguments = ["run", "--devices", 2, "--name", "same", "--master-port", 29876]
    shown = json.loads(launcher.call(*arguments, "--dry-run", "--json", "--", "true").stdout)
    assert launcher.run(*arguments, "--", "true").returncode == 0
    kept = (launcher.latest / "run.json").read_text()
    shown["offers_stdin"] = json.loads(kept)["offers_stdin"]  # the two commands have different stdins
    assert json.loads(kept.replace(json.loads(kept)["name"], shown["name"])) == shown


def test_binding_and_supervision_are_shown(launcher):
    options = "--devices 1 --bind core --max-restarts 2 --grace 3 --no-preload --dry-run"
    arguments = ["run", *options.split()]
    spec = json.loads(launcher.call(*arguments, "--json", "--", "true").stdout)
    assert sorted(spec["ranks"][0]["cpus"]) == sorted(os.sched_getaffinity(0))
    assert spec["schema"] == 2
    assert (spec["supervision"]["max_restarts"], spec["supervision"]["grace_s"]) == (2, 3)
    assert spec["supervision"]["preload"] is None
    comment = launcher.call(*arguments, "-v", "--", "true").stdout.splitlines()[0]
    assert f", cpus {min(os.sched_getaffinity(0))}" in comment


@pytest.fixture(name="by_mpirun")
def _by_mpirun(launcher, table_of):
    if not shutil.which("mpirun", path=str(Path(sys.executable).parent)):
        pytest.skip("no mpirun beside this Python")
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    table = table_of({"127.0.0.1": [0, 1], "127.0.0.2": [2]})

    def dry_run(*arguments, env=None):
        options = ["--engine", "mpi", "--rank-table", table, "--dry-run", *arguments]
        return launcher.call("run", *options, env={**root, **(env or {})})

    return dry_run


@pytest.mark.parametrize("option", ["--mpi-ranks", "--no-mpi-ranks"])
def test_an_engine_is_shown_with_the_processes_that_it_starts(by_mpirun, option):
    shown = by_mpirun(option, "--", "true").stdout
    assert ("TLAUNCH_MEMBERS=0x2,1x1" in shown) is (option == "--mpi-ranks")
    command = json.loads(by_mpirun(option, "--json", "--", "true").stdout)["engine_command"]
    [hosts] = [text.split() for path, text in command["files"].items() if path.endswith("hosts")]
    assert len(hosts) == (3 if option == "--mpi-ranks" else 2)
    assert ("TLAUNCH_MEMBERS" in command["env"]) is (option == "--mpi-ranks")
    assert Path(command["argv"][0]).name == "mpirun"
    assert command["engine"]


def test_secrets_of_an_engine_are_masked(by_mpirun):
    options = ["--engine-option=-x", "--engine-option=API_TOKEN=s3cr3t", "--engine-option=--password=s3cr3t"]
    lines, as_json = by_mpirun(*options, "--", "true"), by_mpirun(*options, "--json", "--", "true")
    assert (lines.returncode, as_json.returncode) == (0, 0), lines.stderr + as_json.stderr
    assert "API_TOKEN" in lines.stdout
    assert "s3cr3t" not in lines.stdout + as_json.stdout
    env = json.loads(as_json.stdout)["engine_command"]["env"]
    assert env["TLAUNCH_COORDINATOR_TOKEN"] == "********"


def test_an_engine_that_is_not_here_cannot_be_shown(launcher, sample_tables):
    options = ["--engine", "mpi", "--rank-table", sample_tables / "rank_table_16pcs.json", "--dry-run", "--json"]
    done = launcher.call("run", *options, "--", "/bin/true", env={"PATH": str(launcher.directory)})
    assert (done.returncode, done.stdout) == (2, "")
    assert "mpirun" in done.stderr
    assert "hint: " in done.stderr


@pytest.mark.parametrize(("source", "is_noted"), [
    ("< samples.txt", True), ("<<< text", True), ("< empty.txt", False), ("< /dev/null", False), ("<&-", False),
    ("--rank-table /dev/stdin < table.json", False),
])  # fmt: skip
def test_data_that_ranks_do_not_get_are_noted(launcher, sample_tables, source, is_noted):
    launcher.write("samples.txt", "1\n2\n")
    launcher.write("empty.txt")
    launcher.write("table.json", (sample_tables / "rank_table_2pcs.json").read_text())
    done = launcher.shell(f'"$@" {source} --dry-run -- true', "run", code=0)
    assert ("standard input" in done.stderr) == is_noted, done.stderr


def test_an_empty_value_is_not_shown_as_unset():
    envs = ({"A": "1"}, {"A": ""}, {"A": None})
    ranks = tuple(RankSpec(rank, rank, "h", 0, rank, ("true",), variables) for rank, variables in enumerate(envs))
    spec = RunSpec("n", Path("/runs/n"), Cluster(()), Layout(3), ranks, Path("/"), "h", 1)
    assert "  A: '', unset" in list(_variables(spec))
