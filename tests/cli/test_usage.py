"""What click refuses is said in the voice of every other error, with a hint that can be followed."""

import os
import shlex

import pytest

from launcher.cli import main as cli

SAID = {
    "run --device 4": "tlaunch run has no option --device\nhint: did you mean --devices?",
    "run --rank-tabel t.json": "tlaunch run has no option --rank-tabel\nhint: did you mean --rank-table?",
    "run --quiet": "tlaunch run has no option --quiet\nhint: `tlaunch run --help` lists them",
    "run --nproc-per-node 4": "tlaunch run has no option --nproc-per-node\nhint: here it is --devices",
    "run --nproc_per_node=4": "tlaunch run has no option --nproc_per_node\nhint: here it is --devices",
    "run -np 4": "tlaunch run has no option -n\nhint: here it is --devices",
    "stop --all": "tlaunch stop has no option --all\nhint: `tlaunch stop --help` lists them",
    "logs --tail 3": "tlaunch logs has no option --tail\nhint: here it is --lines",
    "stop --tail 3": "tlaunch stop has no option --tail\nhint: `tlaunch stop --help` lists them",
    "--foo": "tlaunch has no option --foo\nhint: `tlaunch --help` lists them",
    "runn": "tlaunch has no command runn\nhint: did you mean run?",
    "table gen": "tlaunch table has no command gen\nhint: did you mean generate?",
    "data sampel": "tlaunch data has no command sampel\nhint: did you mean sample?",
    "zounds": "tlaunch has no command zounds\nhint: `tlaunch --help` lists them",
    "train.py": "tlaunch has no command train.py\nhint: `tlaunch run --devices N -- python train.py` starts it",
    "table train.py": "tlaunch table has no command train.py\nhint: `tlaunch table --help` lists them",
    "run --devices": "--devices needs a value",
    "run --detach=3": "--detach takes no value",
    "run --devices four": "--devices: 'four' is not a whole number",
    "run --devices 0": "--devices: 0 is less than 1",
    "run --devices 100000": "--devices: 100000 is more than 65536",
    "run --max-restarts 10000000": "--max-restarts: 10000000 is more than 1000000",
    "run --micro-batches x": "--micro-batches: 'x' is not a whole number",
    "run --hang-timeout 10m": "--hang-timeout: '10m' is not a number of seconds\nhint: write 600",
    "run --join-timeout 1.5h": "--join-timeout: '1.5h' is not a number of seconds\nhint: write 5400",
    "run --grace nan": "--grace: 'nan' is not a number of seconds",
    "run --grace -1": "--grace: -1 is less than 0",
    "run --grace inf": "--grace: inf is more than 604800",
    "run --engine slrum": "--engine: 'slrum' is none of mpi, slurm, hand\nhint: did you mean slurm?",
    "render": "KIND is missing\nhint: choose from bash, mpirun, slurm, kubernetes, hostfile, rankfile",
    "render csh": "KIND: 'csh' is none of bash, mpirun, slurm, kubernetes, hostfile, rankfile",
    "exec --": "COMMAND is missing\nhint: usage: tlaunch exec [OPTIONS] -- COMMAND [ARG]...",
    "exec": "COMMAND is missing\nhint: usage: tlaunch exec [OPTIONS] -- COMMAND [ARG]...",
    "validate": "FILE is missing\nhint: usage: tlaunch validate [OPTIONS] FILE...",
    "data preprocess": "--fr is missing\nhint: usage: tlaunch data preprocess [OPTIONS]",
    "status a b": "tlaunch status takes nothing more: b\nhint: usage: tlaunch status [OPTIONS] [RUN]",
    "doctor --devices 2 train.py": "tlaunch doctor takes nothing more: train.py\n"
    "hint: a COMMAND, whose files are to be compared, stands after --",
    "doctor --dp 2": "--dp: doctor takes no layout, all devices of the table are examined\nhint: leave it out",
}


@pytest.mark.parametrize("typed", SAID)
def test_wrong_usage_is_an_error_with_a_hint(typed, capsys):
    """The exit code is 2, and nothing of another voice is said."""
    assert cli._run(cli.tlaunch, shlex.split(typed)) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"error: {SAID[typed]}\n")


@pytest.mark.parametrize("option", ["--rank-table", "--data", "--runs-dir"])
def test_a_file_that_may_not_be_read_is_told_as_its_reader_would(option, capsys, tmp_path, monkeypatch):
    """As `tlaunch validate` says it of the same file."""
    path = tmp_path / "table.json"
    path.touch()
    monkeypatch.setattr(os, "access", lambda *_arguments, **_options: False)  # root may read everything
    assert cli._run(cli.tlaunch, ["run", option, str(path)]) == 2
    assert capsys.readouterr().err == f"error: {path} cannot be read: Permission denied\n"


def test_a_wrong_value_of_the_environment_is_told_by_its_variable(capsys, monkeypatch):
    """Nobody finds an option that was not typed."""
    monkeypatch.setenv("TLAUNCH_MAX_TABLE_SIZE", "much")
    assert cli._run(cli.tlaunch, ["validate", "table.json"]) == 2
    assert capsys.readouterr().err.startswith("error: TLAUNCH_MAX_TABLE_SIZE: 'much' is no size\n")
    assert cli._run(cli.tlaunch, ["validate", "--max-table-size", "more", "table.json"]) == 2
    assert capsys.readouterr().err.startswith("error: --max-table-size: 'more' is no size\n")


@pytest.mark.parametrize("group", [[], ["table"], ["data"]])
def test_a_group_without_a_command_shows_its_help(group, launcher):
    done = launcher.run(*group)
    assert "Usage: tlaunch " in done.stdout + done.stderr
    assert "error: " not in done.stderr


@pytest.mark.parametrize("typed", ["stop", "status", "logs", "validate", "table show", "run --dry-run --rank-table"])
def test_an_empty_name_means_nothing_that_is_there(typed, launcher):
    """A variable of a script that is empty names neither the directory nor the run in which it stands."""
    launcher.directory.joinpath("run.json").write_text("{}")
    done = launcher.run(*typed.split(), "")
    assert (done.returncode, done.stdout) == (2, "")
    assert "(an empty variable?)" in done.stderr


def test_a_bad_value_of_a_variable_is_called_by_the_variable(launcher):
    """Nobody has typed the option that it stands for."""
    done = launcher.run("validate", "t.json", env={"TLAUNCH_MAX_TABLE_SIZE": "x"})
    assert done.returncode == 2
    assert done.stderr.startswith("error: TLAUNCH_MAX_TABLE_SIZE: 'x' is no size\n")


EMPTY = [
    "run --devices 2 --", "run --", "run --detach --", "run --dry-run --", "explain --rank 1 --devices 2 --",
    "render bash --devices 2 --", "render hostfile --devices 2 --", "doctor --",
]  # fmt: skip


@pytest.mark.parametrize("typed", EMPTY)
def test_nothing_after_two_dashes_starts_no_demo(typed, launcher):
    """A variable of a script that is empty must not train the bundled model."""
    done = launcher.run(*typed.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: nothing stands after --, where COMMAND is expected\nhint: ")
    assert not launcher.runs.exists()


@pytest.mark.parametrize("typed", ["run --dry-run", "run --devices 1 --dry-run -- echo --", "explain -- true"])
def test_no_dashes_at_all_or_something_after_them_is_fine(typed, launcher):
    assert launcher.run(*typed.split()).returncode == 0
