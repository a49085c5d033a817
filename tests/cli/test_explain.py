"""`tlaunch explain`: where each variable of a rank comes from, and no effect."""

import json
import os
import re
import shlex
import sys

import pytest

from launcher.recipes.load import load_settings
from launcher.recipes.settings import aliases_of, all_settings, as_toml
from launcher.recipes.transformer.transformer_settings import TransformerSettings

LEFT = {
    "RANK": "3", "WORLD_SIZE": "16", "TORCHELASTIC_RUN_ID": "old", "TORCHELASTIC_USE_AGENT_STORE": "old", "OMPI_COMM_WORLD_RANK": "1",
    "CUDA_VISIBLE_DEVICES": "0", "OMP_NUM_THREADS": "3", "NCCL_DEBUG": "INFO",
}  # fmt: skip


@pytest.fixture(name="explained")
def _explained(launcher):
    def explained(*arguments, env=None):
        done = launcher.call("explain", "--no-preload", *arguments, "--", "true", env={**LEFT, **(env or {})}, code=0)
        assert list(launcher.directory.iterdir()) == []
        return {line.split()[0]: line for line in done.stdout.splitlines() if line}

    return explained


def test_each_variable_has_its_value_and_origin(explained):
    options = ("--env", "X=1", "--master-port", 29876, "--detach", "--grace", 3)
    rows = explained("--devices", 4, "--mp", 2, "--rank", 3, *options)
    assert rows["rank"].endswith("device 3 of server 127.0.0.1, pp=0 dp=1 mp=1")
    assert rows["RANK"].split()[1:] == ["3", "layout:", "process", "3", "of", "--devices"]
    assert rows["WORLD_SIZE"].split()[1:] == ["4", "layout:", "dp=2", "*", "mp=2", "*", "pp=1,", "was", "16"]
    assert rows["X"].split()[1:] == ["1", "--env"]
    assert rows["MASTER_PORT"].split()[1:3] == ["29876", "tlaunch:"]
    assert rows["OMP_NUM_THREADS"].split()[1:3] == ["3", "inherited:"]
    removed = rows["TORCHELASTIC_USE_AGENT_STORE"].split()[1:]
    assert removed == ["(removed)", "removed:", "set", "by", "torchrun?,", "was", "old"]
    assert rows["TORCHELASTIC_RUN_ID"].split()[2:] == ["tlaunch:", "time", "and", "--name,", "was", "old"]
    assert rows["CUDA_VISIBLE_DEVICES"].split()[1:] == ["0", "inherited"]
    assert "torchrun?" in rows
    assert "NCCL_DEBUG" not in rows


def test_a_setting_is_explained(launcher, snapshot):
    """By its name here or in another tool. A section is a table."""
    assert launcher.scene(
        "explain train.learning_rate", "explain schedule", "explain --recipe quickstart strategies",
        "explain --recipe quickstart data", "explain layers", code=0,
    ) == snapshot  # fmt: skip
    assert launcher.call("explain", "lr", code=0).stdout == launcher.call("explain", "train.lr", code=0).stdout
    after = launcher.call("explain", "train.momentum", "--recipe", "resnet50", code=0)
    assert after.stdout == launcher.call("explain", "--recipe", "resnet50", "train.momentum", code=0).stdout
    assert launcher.call("explain", "strategies", "--recipe=quickstart", code=0).stdout.startswith("strategies.NAME")
    shown = json.loads(launcher.call("explain", "train", "--json", code=0).stdout)
    names = [name for name in all_settings(TransformerSettings) if name.startswith("train.")]
    assert list(shown) == names
    assert shown["train.precision"]["choices"] == ["float32", "float64", "bfloat16"]


def test_what_is_no_setting_is_a_program_or_refused(launcher, snapshot):
    assert launcher.refused(
        2, "explain train.zounds", "explain train.learing_rate", "explain train.momentum", "explain tp", "explain --all train.seed", "explain zounds",
        "explain train.py",
    ) == snapshot  # fmt: skip
    launcher.write("train", "#!/bin/sh\n").chmod(0o755)
    path = f"{launcher.directory}:{os.environ['PATH']}"
    assert "command: train\n" in launcher.call("explain", "train", env={"PATH": path}, code=0).stdout


def test_what_it_shows_is_what_a_rank_gets(launcher):
    """With --all the rank's whole environment, also what tlaunch has no say in."""
    program = [sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))"]
    arguments = ["--devices", 2, "--master-port", 29876, "--name", "n", "--no-preload"]
    done = launcher.call("explain", "--rank", 1, "--all", "--json", *arguments, "--", *program, env=LEFT)
    shown = {one["name"]: one["value"] for one in json.loads(done.stdout)["variables"]}
    assert shown["NCCL_DEBUG"] == "INFO"
    launcher.run("run", *arguments, "--", *program, env=LEFT, code=0)
    got = json.loads((launcher.latest / "device1/train.log").read_text())
    run_id = got["TLAUNCH_RUN_ID"]
    for name, value in shown.items():
        if value is None:
            assert name not in got
        elif name != "_" and "****" not in value:
            assert got[name].replace(run_id, "RUN") == value.replace(shown["TLAUNCH_RUN_ID"], "RUN"), name


def test_a_rank_tables_devices_are_named(explained, sample_tables):
    rows = explained("--rank-table", sample_tables / "rank_table_16pcs.json", "--rank", 9)
    assert "rank table: device 1 of server" in rows["DEVICE_ID"]
    assert rows["MASTER_PORT"].split()[1:4] == ["(a", "free", "port)"]


def test_secrets_are_masked_and_nothing_moves_the_cursor(launcher):
    arguments = ["--no-preload", "--all", "--env", "API_KEY=s3cr3t", "--devices", 1, "--", "true", "--token", "s3cr3t"]
    env = {"HF_TOKEN": "s3cr3t", "PMI_SHARED_SECRET": "s3cr3t", "PROXY": "http://me:s3cr3t@host", "ODD": "a\x1b[2J\n"}
    text = launcher.call("explain", *arguments, env=env).stdout
    as_json = launcher.call("explain", "--json", *arguments, env=env).stdout
    assert "API_KEY" in text
    assert json.loads(as_json)["conflicts"][0]["family"] == "mpirun"
    assert "s3cr3t" not in text + as_json
    assert "\x1b" not in text + as_json


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_placement_is_shown(explained):
    rows = explained("--devices", 1, "--bind", "core", env={"OMP_NUM_THREADS": "1"})
    assert "of its own" in rows["cpus:"]
    assert "not bound" in explained("--devices", 1, "--bind", "none")["cpus:"]


def test_what_is_refused(launcher, snapshot):
    assert launcher.refused(2, "explain --no-preload --devices 2 --rank 2 -- true") == snapshot(name="2")
    told = launcher.refused(3, "explain --no-preload --devices 5000 --bind core -- true")
    assert "5000 ranks" in told  # and how many cores this machine has
    # A code of rank tables is explained by another command.
    assert "tlaunch table explain RT312" in launcher.call("explain", "RT312", code=2).stderr
    assert launcher.call("explain", "--", "true", code=0).stdout.startswith("rank 0 of 1")


def test_cores_of_its_own_are_counted_in_words(launcher):
    cores = len(os.sched_getaffinity(0))
    shown = launcher.call("explain", "--bind", "core", "--devices", cores, "--", "true").stdout
    if "cpus:" in shown:  # fewer cores than CPUs: refused
        assert re.search(r"^cpus: [\d,-]+ \(1 core of its own\)$", shown, re.MULTILINE), shown


def test_settings_are_a_file_that_says_where_each_comes_from(launcher):
    launcher.write("mine.toml", "[train]\nsteps = 9\nlearning_rate = 0.001\n")
    options = ("--devices", "2", "--config", "mine.toml", "--set", "train.steps=5", "--profile", "--micro-batches", "2")
    shown = launcher.call("explain", "--settings", *options, code=0).stdout
    lines = dict(line.split(" = ", 1) for line in shown.splitlines() if " = " in line)
    assert lines["steps"] == "5  # --set train.steps=5; default 0"
    assert lines["learning_rate"] == "0.001  # mine.toml:3; default 0.003"
    assert lines["profile_steps"] == "5  # --profile; default 0"
    assert lines["micro_batches"] == "2  # --micro-batches; default 1"
    assert lines["d_model"] == "128  # default"
    launcher.write("all.toml", shown)
    same = load_settings(TransformerSettings, str(launcher.directory / "all.toml"))
    assert same.train.steps == 5
    again = json.loads(launcher.call("explain", "--settings", "--json", "--config", "all.toml", code=0).stdout)
    assert set(again) == set(all_settings(TransformerSettings))
    line = 1 + shown.splitlines().index(f"steps = {lines['steps']}")
    assert again["train.steps"] == {"value": 5, "default": 0, "origin": f"all.toml:{line}"}
    assert not launcher.runs.exists()


def test_settings_begin_with_the_command_of_the_same_run(launcher):
    launcher.call("data", "sample", "--output", "my data", code=0)
    options = ["--devices", "2", "--mp", "2", "--set", "train.steps=5", "--micro-batches", "2", "--profile", "--data"]
    shown = launcher.call("explain", "--settings", *options, "my data", code=0).stdout
    command = shlex.split(shown.splitlines()[0].split("`")[1])
    assert command == [
        *["tlaunch", "--no-config", "run", "--devices=2", "--mp=2"],
        "--data=my data",
        "--config=settings.toml",
    ]
    launcher.write("settings.toml", shown)
    ranks = json.loads(launcher.call(*command[1:], "--dry-run", "--json", code=0).stdout)["ranks"]
    assert ranks[1]["argv"][-2:] == ["--data", str(launcher.directory / "my data")]


def test_a_secret_in_the_command_of_the_same_run_has_to_be_filled_in(launcher):
    options = ("--recipe", "quickstart", "--env")
    for pair, is_filled_in in (("API_KEY=s3cr3t", True), ("API=s3cr3t", False)):
        first = launcher.call("explain", "--settings", *options, pair, code=0).stdout.splitlines()[0]
        assert first.endswith(", and fill in the masked values.") == is_filled_in


def test_settings_have_other_names_and_entries_of_a_persons_own(launcher):
    [(alias, name), *_] = aliases_of(TransformerSettings).items()
    default = all_settings(TransformerSettings)[name].default
    word = f"{alias}={as_toml(default)}"
    found = json.loads(launcher.call("explain", "--settings", "--json", "--set", word, code=0).stdout)
    assert found[name]["origin"] == f"--set {word}"
    given = ("--recipe", "quickstart", "--devices", "8", "--set", "strategies.matmul=[[2,4],[4,1]]")
    shown = launcher.call("explain", "--settings", *given, code=0).stdout
    assert "[strategies]\nmatmul = [[2, 4], [4, 1]]  # --set strategies.matmul=[[2,4],[4,1]]\n" in shown


def test_settings_that_would_not_start_are_refused(launcher):
    assert "`tlaunch explain SECTION`" in launcher.call("explain", "--settings", "--set", "no.such=1", code=2).stderr
    launcher.call("explain", "--settings", "--devices", "3", "--mp", "3", code=3)
    assert "--settings is only for the bundled" in launcher.call("explain", "--settings", "--", "true", code=2).stderr
    for option in ("--all", "--rank=0"):
        told = launcher.call("explain", "--settings", option, code=2).stderr
        assert f"--settings cannot be combined with {option[:6].rstrip('=')}" in told


def test_settings_need_no_data(launcher):
    assert "[train]\n" in launcher.call("explain", "--settings", "--recipe", "resnet50", code=0).stdout
    launcher.call("explain", "--recipe", "resnet50", code=2)
    (launcher.directory / "empty").mkdir()
    launcher.call("explain", "--settings", "--recipe", "resnet50", "--data", "empty", code=2)


def test_one_variable_is_explained(launcher):
    for words in ("OMP_NUM_THREADS --devices 2", "--devices 2 --rank 1 OMP_NUM_THREADS"):
        lines = launcher.call("explain", *words.split(), code=0).stdout.splitlines()
        assert [line.split()[0] for line in lines] == ["NAME", "OMP_NUM_THREADS"]
    inherited = launcher.call("explain", "CUDA_VISIBLE_DEVICES", "--json", env={"CUDA_VISIBLE_DEVICES": "3"}, code=0)
    assert [one["value"] for one in json.loads(inherited.stdout)["variables"]] == ["3"]
    launcher.refused(2, "explain NO_SUCH_VARIABLE", "explain --settings OMP_NUM_THREADS")
