"""`tlaunch table`: its commands by name, loaded one at a time."""

import importlib
import json
import subprocess
import sys

import pytest

from launcher.cli.commands.table import COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_lookup_says_what_the_command_says(name):
    """The one-line help in the lookup table is the command's own, and its help has an example."""
    target, short_help = COMMANDS[name]
    module, _, attribute = target.partition(":")
    command = getattr(importlib.import_module(module), attribute)
    assert command.get_short_help_str(200) == short_help
    assert f"tlaunch table {name} " in command.epilog


def test_help_imports_no_command():
    """`tlaunch table --help` lists all commands and imports none of them."""
    code = (
        "import json, sys\n"
        "from launcher.cli.main import main\n"
        "try: main(['table', '--help'])\n"
        "except SystemExit: json.dump(sorted(sys.modules), sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(json.loads(done.stderr))
    assert all(f"  {name} " in done.stdout for name in COMMANDS)
    assert not modules & {target.partition(":")[0] for target, _ in COMMANDS.values()}
    assert not modules & {"pydantic", "rich", "launcher.rank_table"}


def test_an_unknown_command_is_a_usage_error(launcher):
    """A command that does not exist is named."""
    done = launcher.run("table", "shwo")
    assert done.returncode == 2
    assert "shwo" in done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_with_the_exit_codes(launcher, name):
    """Every command lists them in the same place, with the same words for wrong usage."""
    told = " ".join(launcher.run("table", name, "--help", env={"COLUMNS": "200"}).stdout.split())
    assert told.index("Exit codes: 0") > told.index("Examples:")
    assert "2 wrong usage, or a " in told
