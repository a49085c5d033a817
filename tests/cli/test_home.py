"""`~` in a path is the home directory, wherever the path is written: shells leave it alone in `--runs-dir=~/runs`."""

import sys

import click
import pytest

from launcher.cli import main as commands
from launcher.cli.options.types import NAME_OR_PATH, PathType

GROUP = next(value for value in vars(commands).values() if isinstance(value, click.Group))


def options_of(command, context):
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            yield from options_of(command.get_command(context, name), context)
    else:
        yield from (param for param in command.params if isinstance(param, click.Option))


def test_every_option_that_takes_a_path_knows_home(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    names = ("FILE", "DIR", "PATH", "F", "CHECKPOINT", "auto|RUN|PATH")
    known = options_of(GROUP, click.Context(GROUP))
    options = [one for one in known if isinstance(one.type, click.Path) or one.metavar in names]
    assert len(options) > 40
    for option in options:
        assert isinstance(option.type, PathType) or option.type is NAME_OR_PATH, option
        if not getattr(option.type, "exists", False):
            assert str(option.type.convert("~/x", option, None)) == "/home/me/x"
            assert str(option.type.convert("a/~/x", option, None)) == "a/~/x"


@pytest.mark.parametrize("where", ["option", "variable", "project", "project above", "python"])
def test_runs_are_in_the_home_directory(launcher, where):
    launcher.write("home/file")
    env = {"HOME": str(launcher.directory / "home")}
    cwd, words = launcher.directory, ["run", "-n", 1, "--", "true"]
    if where == "option":
        words[1:1] = ["--runs-dir=~/r"]
    elif where == "variable":
        env["TLAUNCH_RUNS_DIR"] = "~/r"
    elif where.startswith("project"):
        launcher.write("tlaunch.toml", 'runs-dir = "~/r"\n')
        (launcher.directory / ".git").mkdir()
        launcher.write("below/file")
        cwd = launcher.directory / "below" if where.endswith("above") else cwd
    argv = launcher.argv(*words)
    if where == "python":
        argv = [sys.executable, "-c", "import launcher; launcher.launch(['true'], devices=1, runs_dir='~/r')"]
    launcher.ended(argv, env=env, cwd=cwd, code=0)
    assert (launcher.directory / "home/r/latest/run.json").is_file()
    assert not list(launcher.directory.glob("**/~"))


def test_an_unknown_home_is_told(launcher, monkeypatch):
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    told = launcher.call("ps", "--runs-dir=~/x", code=2).stderr
    assert told == "error: ~/x: the home directory is unknown\nhint: set HOME, or write an absolute path\n"
