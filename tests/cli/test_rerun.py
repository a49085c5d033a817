"""`tlaunch rerun`."""

import json
import shlex
import sys
from dataclasses import replace

import pytest

from launcher.cli.commands.rerun import _absolute, _with_recorded_settings
from launcher.cli.launch.recorded import as_words, given_again, to_record
from launcher.cli.run_options import RunOptions
from launcher.cli.training.trainer_program import effective_settings, toml_lines
from launcher.core.codec import decode
from launcher.core.records import Layout
from launcher.core.run_dir import RunDir
from tests.programs import acted_run


def record(launcher):
    return json.loads((launcher.latest / "run.json").read_text())


def said(launcher, rank=0):
    return (launcher.latest / f"device{rank}" / "train.log").read_text().split()


@pytest.fixture(scope="module")
def command():
    code = "import os, sys; print(os.getcwd(), os.environ['A'], os.environ.get('B'), *sys.argv[1:])"
    return sys.executable, "-c", code


def test_a_run_is_run_again(launcher, command):
    launcher.run("run", "-n", 2, "--env", "A=1", "--grace", 3, "--name", "mine", "--", *command, "x y", code=0)
    first, here = record(launcher), str(launcher.directory)
    (elsewhere := launcher.directory / "below").mkdir()
    launcher.ended(launcher.argv("rerun", "--runs-dir", "../runs"), cwd=elsewhere, code=0)
    second = record(launcher)
    changing = ("name", "run_dir", "master_port", "ranks")
    assert second == first | {name: second[name] for name in changing}
    assert said(launcher, 1) == [here, "1", "None", "x", "y"]
    launcher.run("rerun", "latest~1", "-n", 1, "--env", "B=2", "--", *command, "z", code=0)
    assert (len(record(launcher)["ranks"]), said(launcher)) == (1, [here, "1", "2", "z"])
    assert len({path.resolve() for path in launcher.runs.iterdir()}) == 3


def test_a_dry_run_prints_what_one_would_type(launcher, command):
    launcher.run("run", "--devices", 1, "--env", "A=1", "--", *command, "it's", code=0)
    line = launcher.call("rerun", "--devices", 3, "--dry-run", code=0).stdout
    assert shlex.split(line) == ["tlaunch", "run", "--devices=3", "--env=A=1", "--", *command, "it's"]
    launcher.write("below/file")
    env = {"TLAUNCH_RUNS_DIR": str(launcher.runs)}
    elsewhere = launcher.ended(launcher.argv("rerun", "--dry-run"), cwd=launcher.directory / "below", env=env, code=0)
    assert shlex.split(elsewhere.stdout)[:4] == ["cd", str(launcher.directory), "&&", "tlaunch"]
    assert len(list(launcher.runs.iterdir())) == 2


def test_arguments_alone_are_put_behind_those_of_the_program(launcher, command):
    """Dashes, or a program, begin what stands behind the two; the bundled trainer has no arguments."""
    launcher.run("run", "--devices", 1, "--env", "A=1", "--", *command, "--epochs", 3, code=0)
    launcher.run("rerun", "--", "--epochs", 1, "a b", code=0)
    assert said(launcher)[3:] == ["--epochs", "3", "--epochs", "1", "a", "b"]
    replaced = launcher.call("rerun", "--dry-run", "--", "true", "--epochs", 1, code=0).stdout
    assert shlex.split(replaced)[-3:] == ["true", "--epochs", "1"]
    path = launcher.latest / "run.json"
    path.write_text(json.dumps(record(launcher) | {"options": {"devices": 1}}))
    assert "the bundled trainer, which takes settings" in launcher.call("rerun", "--", "--epochs", 1, code=2).stderr


def test_arguments_are_not_put_behind_a_line_of_a_shell(launcher):
    """It would take them for its own parameters."""
    launcher.run("run", "--devices", 1, "--", "bash", "-c", "true", code=0)
    assert "-- bash -c '...'" in launcher.call("rerun", "--", "--epochs", 1, code=2).stderr
    launcher.write("run.sh", "echo $1\n")
    launcher.run("run", "--devices", 1, "--", "bash", "run.sh", code=0)
    assert "--epochs" in launcher.run("rerun", "--", "--epochs", 1, code=0).stdout


def test_the_exit_code_is_that_of_the_run(launcher):
    launcher.run("run", "--devices", 1, "--", "sh", "-c", "exit 7", code=7)
    launcher.run("rerun", code=7)


ODD_WORDS = ["caf\udce9.txt", "two\nlines", "\x1b[2J\r", "it's \x7f'", "\u202e\xa0", "$HOME `x` \\", "é"]


def test_a_shell_gives_the_program_its_own_bytes(launcher):
    show = "import os, sys\nprint([os.fsencode(word) for word in sys.argv[1:]], ascii(os.environ['ODD']))\n"
    launcher.write("show.py", show)
    program = ("--env", f"ODD={''.join(ODD_WORDS)}", "--", sys.executable, "show.py", *ODD_WORDS)
    launcher.run("run", "-n", 1, *program, code=0)
    wanted = said(launcher)
    lines = launcher.run("run", "-n", 1, "--dry-run", "-v", *program, code=0).stdout
    assert launcher.ended(["bash", "-c", lines], code=0).stdout.split() == wanted
    line = launcher.run("rerun", "--dry-run", code=0).stdout
    assert (lines + line).replace("\n", "").isprintable()
    launcher.shell(line.replace("tlaunch", '"$@"', 1), code=0)
    assert said(launcher) == wanted


def test_secrets_have_to_be_given_again(launcher):
    secrets = ("--env", "API_TOKEN=hunter2", "--env", "A=1", "--", "echo", "--password", "hunter2")
    launcher.run("run", "--devices", 1, *secrets, code=0)
    assert "hunter2" not in (launcher.latest / "run.json").read_text()
    refused = launcher.call("rerun", code=2)
    assert all(name in refused.stderr for name in ("--env API_TOKEN", "COMMAND"))
    assert launcher.call("rerun", "--dry-run", code=0).stderr.count("API_TOKEN") == 1
    assert "COMMAND" in launcher.call("rerun", "--env", "API_TOKEN=x", code=2).stderr
    done = launcher.run("rerun", "--env", "API_TOKEN=hunter2", "--", "sh", "-c", "echo $API_TOKEN", code=0)
    assert said(launcher) == ["hunter2"]
    assert "hunter2" not in done.stderr


def test_a_record_without_options_is_refused(launcher):
    acted_run.make(launcher.runs / "a", cwd="/")
    acted_run.make(launcher.runs / "b", cwd="/", options={"devices": "many"})
    acted_run.make(launcher.runs / "c", cwd=str(launcher.directory / "gone"), options={"command": ["true"]})
    for words in (["a"], ["b"], ["c"], ["a", "b"], ["a", "--"]):
        assert launcher.call("rerun", *words, code=2).stderr.count("error: ") == 1


OPTIONS = RunOptions(
    command=("python", "train.py", "--", "-n"), devices=4, env=("A=1", "B=x y"), grace=2.5, mpi_ranks=False, elastic=True,
    no_preload=True, engine_options=("--mca",),
)  # fmt: skip
AS_WORDS = "--devices=4 --elastic --env=A=1 '--env=B=x y' --grace=2.5 --no-preload --engine-option=--mca --no-mpi-ranks"


def test_a_record_holds_what_is_not_the_default():
    recorded = decode(RunOptions, json.loads(json.dumps(to_record(OPTIONS))))
    assert recorded == OPTIONS
    assert to_record(RunOptions(detach=True, dry_run=True)) == {}
    assert list(as_words(OPTIONS)) == [*shlex.split(AS_WORDS), "--", *OPTIONS.command]


@pytest.mark.parametrize(("recorded", "given", "expected"), [
    ({"devices": 4}, {"rank_table": "t.json"}, {"rank_table": "t.json"}),
    ({"rank_table": "t.json", "server": "a"}, {"devices": 2}, {"devices": 2}),
    ({"env": ("A=1", "B=2")}, {"env": ("A=3",)}, {"env": ("B=2", "A=3")}),
    ({"settings": ("t.s=1",)}, {"settings": ("t.s=2", "a.b=c")}, {"settings": ("t.s=2", "a.b=c")}),
    ({"no_preload": True}, {"preload": "torch"}, {"preload": "torch"}),
    ({"recipe": "quickstart", "settings": ("a.b=1",)}, {"command": ("true",)}, {"command": ("true",)}),
    ({"command": ("true",)}, {"recipe": "quickstart"}, {"command": ("true",), "recipe": "quickstart"}),
])  # fmt: skip
def test_what_is_given_takes_the_place_of_what_it_excludes(recorded, given, expected):
    assert given_again(RunOptions(**recorded), given) == RunOptions(**expected)


def test_a_variable_without_a_value_has_that_of_the_shell(launcher):
    show = ("--", "sh", "-c", "echo $HF_TOKEN $LEVEL")
    shell = {"HF_TOKEN": "PLAIN1", "LEVEL": "a b"}
    launcher.run("run", "-n", 1, "--env", "HF_TOKEN", "-e", "LEVEL", *show, env=shell, code=0)
    assert said(launcher) == ["PLAIN1", "a", "b"]
    assert "PLAIN" not in (launcher.latest / "run.json").read_text()
    launcher.run("rerun", env={**shell, "HF_TOKEN": "PLAIN2"}, code=0)
    assert said(launcher) == ["PLAIN2", "a", "b"]
    launcher.run("run", "-n", 1, "--env", "HF_TOKEN=PLAIN3", *show, code=0)
    told = launcher.call("rerun", code=2).stderr
    assert told.endswith(f"`tlaunch rerun {launcher.latest.resolve().name} --env HF_TOKEN`\n")
    again = launcher.run("rerun", "--env", "HF_TOKEN", env={"HF_TOKEN": "PLAIN4"}, code=0)
    assert said(launcher) == ["PLAIN4"]
    assert "PLAIN" not in again.stderr
    assert launcher.call("run", "--env", "HF_TOKEN", *show, code=2).stderr.count("HF_TOKEN") == 1  # in the hint


def test_a_run_from_another_model_does_not_resume():
    given = {"init_from": "M"}
    for resume, more, expected in (("A", {}, None), ("auto", {}, "auto"), ("A", {"resume": "B"}, "B"),
                                   ("auto", {"command": ("true",)}, None)):  # fmt: skip
        assert given_again(RunOptions(resume=resume), given | more).resume == expected
    assert given_again(RunOptions(init_from="M"), {"resume": "A"}) == RunOptions(init_from="M", resume="A")


def test_a_path_is_made_absolute_and_the_name_of_a_run_is_not(launcher, monkeypatch):
    monkeypatch.chdir(launcher.directory)
    launcher.write("runs/20260101-000000-ft/run.json", "{}")
    launcher.write("ft/a.en")
    runs = launcher.runs
    assert [_absolute("resume", name, runs) for name in ("ft", "latest", "auto")] == ["ft", "latest", "auto"]
    launcher.write("ft/step-5/index.json", "{}")
    assert _absolute("resume", "ft", runs) == _absolute("data", "ft", runs) == str(launcher.directory / "ft")


def test_the_recorded_settings_are_used_if_the_file_has_changed(tmp_path, capsys):
    (file := tmp_path / "a.toml").write_text("[train]\nsteps = 7\nlearning_rate = 0.003\n")
    options = RunOptions(config=str(file), settings=("train.seed=9",))
    run_dir = RunDir(tmp_path)
    given = replace(options, config="a.toml")
    assert _with_recorded_settings(given, given, run_dir, tmp_path) is given  # an older run
    run_dir.settings.write_text("\n".join(toml_lines(effective_settings(options, Layout()), ())))
    assert _with_recorded_settings(given, given, run_dir, tmp_path) is given
    assert capsys.readouterr().err == ""
    file.write_text(file.read_text().replace("0.003", "0.0001"))
    again = _with_recorded_settings(given, given, run_dir, tmp_path)
    assert again == replace(given, config=str(run_dir.settings))
    assert "train.learning_rate = 0.0001 (recorded: 0.003);" in capsys.readouterr().err
    file.unlink()
    assert _with_recorded_settings(given, given, run_dir, tmp_path) == again
    assert {each.name: each.value for each in effective_settings(again, Layout())}["train.learning_rate"] == 0.003
