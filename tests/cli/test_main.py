"""The table of commands, lazy imports, and how errors reach a person."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.cli import main as cli
from launcher.core.errors import RefusedLayoutError

HEAVY = ("torch", "numpy", "pydantic", "rich", "psutil")


def modules_after(arguments, directory):
    """The names in sys.modules once `tlaunch ARGUMENTS` has ended with code 0."""
    code = (
        "import json, sys\n"
        "from launcher.cli.main import main\n"
        f"try: main({arguments!r})\n"
        "except SystemExit as end: assert end.code == 0, end.code\n"
        "json.dump(sorted(sys.modules), sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=directory, capture_output=True, text=True, check=True)
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_help_loads_no_command_and_nothing_heavy(tmp_path):
    """`tlaunch --help` imports no command's module, no pydantic, rich, psutil or torch."""
    modules = modules_after(["--help"], tmp_path)
    commands = {target.partition(":")[0] for target, _ in cli.COMMANDS.values()}
    assert not modules & commands
    assert not modules & set(HEAVY)


def test_run_help_loads_nothing_heavy(tmp_path):
    """`tlaunch run --help` needs neither pydantic nor psutil nor torch."""
    assert not modules_after(["run", "--help"], tmp_path) & set(HEAVY)


def test_dry_run_never_imports_torch(tmp_path, sample_tables):
    """A dry run of the bundled trainer with a table reads table and recipe without torch and without psutil."""
    table = sample_tables / "rank_table_8pcs.json"
    modules = modules_after(["run", "--rank-table", str(table), "--mp", "2", "--pp", "2", "--dry-run"], tmp_path)
    assert not modules & {"torch", "numpy", "psutil", "launcher.trainer"}


def test_a_run_without_trouble_loads_neither_pydantic_nor_psutil(tmp_path):
    """`--devices` needs no table reader, and a run that ends well needs no look at the process list."""
    assert not modules_after(["run", "--devices", "2", "--", "true"], tmp_path) & set(HEAVY)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_table_says_what_the_command_says(name):
    """The one-line help in the table is the command's own."""
    target, short_help = cli.COMMANDS[name]
    module, _, attribute = target.partition(":")
    assert getattr(importlib.import_module(module), attribute).get_short_help_str(200) == short_help


def test_exit_codes_are_in_both_helps(launcher):
    """Both help texts list the exit codes."""
    for arguments in (["--help"], ["run", "--help"]):
        text = launcher.run(*arguments).stdout.lower()
        assert "exit codes" in text
        for code in ("126", "127", "129", "130", "143", "128 +"):
            assert code in text


def test_unknown_command_is_a_usage_error(launcher):
    """A command that does not exist ends with 2 and its name on stderr."""
    done = launcher.run("rnu")
    assert done.returncode == 2
    assert "rnu" in done.stderr


def test_error_and_hint_go_to_stderr(capsys, monkeypatch):
    """A TlaunchError is shown as an error and a hint, and gives its own exit code."""
    command = cli.click.Command(
        "x", callback=lambda: (_ for _ in ()).throw(RefusedLayoutError("too many", hint="fewer"))
    )
    assert cli._run(command, []) == 3
    assert capsys.readouterr().err == "error: too many\nhint: fewer\n"


def test_system_errors_are_readable(capsys):
    """An OSError that nobody foresaw names its file and gives no traceback."""
    command = cli.click.Command("x", callback=Path("/nonexistent/file").read_text)
    assert cli._run(command, []) == 1
    assert capsys.readouterr().err == "error: /nonexistent/file: No such file or directory\n"


def test_broken_pipe_is_silent(launcher):
    """Output that nobody reads is no reason to complain."""
    done = subprocess.run(
        ["sh", "-c", '"$@" | true', "sh", *launcher.argv("run", "--devices", "64", "--dry-run", "--", "true")],
        cwd=launcher.directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert "roken" not in done.stderr
