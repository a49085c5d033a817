"""`tlaunch table`: its commands by name, loaded one at a time."""

import importlib

import pytest

from launcher.cli.commands.table import COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_help(launcher, name):
    """The one-line help in the lookup table is the command's own; its help ends with examples and exit codes."""
    target, short_help = COMMANDS[name]
    module, _, attribute = target.partition(":")
    command = getattr(importlib.import_module(module), attribute)
    assert command.get_short_help_str(200) == short_help
    assert f"tlaunch table {name} " in command.epilog
    told = " ".join(launcher.call("table", name, "--help", env={"COLUMNS": "200"}).stdout.split())
    assert told.index("Exit codes: 0") > told.index("Examples:")
    assert "2 wrong usage, or a " in told


def test_an_unknown_command_is_a_usage_error(launcher, snapshot):
    assert launcher.refused(2, "table shwo") == snapshot
