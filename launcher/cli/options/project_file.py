"""`tlaunch.toml`, or `[tool.tlaunch]` in pyproject.toml: the options that a project gives each time, a table per command.

The command line wins over it, and so do environment variables: click gets its values as defaults (`default_map`). Nothing of
it is read for agents and ranks of `tlaunch exec`: on another server there may be another file. `project_place.py` finds it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from launcher.cli.launch.external.options import counterpart
from launcher.cli.options.project_place import MAX_BYTES, PROJECT_FILE, ProjectPlace
from launcher.cli.options.types import NAME_OR_PATH, FloatRange, IntRange, Seconds, Size, refused_value
from launcher.cli.run_options import AUTO
from launcher.core.env import TLAUNCH_SAFE_DIRECTORY
from launcher.core.errors import UnreadableError, UsageError
from launcher.core.frozen import frozen
from launcher.core.machine.owner import called, is_trusted, uids_of_file
from launcher.core.regular_files import read_regular
from launcher.core.resources import at_home
from launcher.core.run_dir import RunDir
from launcher.core.text import did_you_mean, near, shell_word
from launcher.logs.terminal import escaped
from launcher.recipes.load import line_of, parse_toml

COMMON = "runs-dir"  # which stands above all tables
TAKES_NONE = ("exec", "completion")
TABLE_OF = {"explain": "run"}  # it shows what that would do
WITHOUT_TABLE = (*TAKES_NONE, *TABLE_OF, "rerun")  # the options of the last stand in the record of a run
_KINDS: tuple[tuple[type[click.ParamType], tuple[type, ...], str], ...] = (  # type: ignore[type-arg]  # since click 8.2
    (IntRange, (int,), "a whole number"),
    (FloatRange, (int, float), "a number"),
    (Seconds, (int, float, str), 'a number of seconds, or a text such as "10m"'),
    (Size, (int, str), 'a number of bytes, or a text such as "64M"'),
)


@frozen
class ProjectFile:
    path: Path
    text: str
    prefix: str  # of every table's name
    tables: Mapping[str, Any]

    def where(self, name: str) -> str:
        """Return file and line of a table or a key, as an editor takes it."""
        return f"{os.path.relpath(self.path)}:{line_of(f'{self.prefix}{name}', self.text)}"

    def check_table(self, name: str, table: Any) -> None:
        """Raise UsageError if what is called `name`, with dots, is no table."""
        if not isinstance(table, dict):
            raise UsageError(f"{self.where(name)}: {name} is no table", hint=f"write [{self.prefix}{name}]")

    def check_group(self, name: str, commands: Collection[str]) -> None:
        """Raise UsageError if the table of a group of commands holds anything but tables of these."""
        for key, table in self.tables.get(name, {}).items():
            if key not in commands:
                raise UsageError(
                    f"{self.where(f'{name}.{key}')}: tlaunch {name} has no command {key}",
                    hint=did_you_mean(near(key, commands)),
                )
            self.check_table(f"{name}.{key}", table)

    def defaults(self, names: tuple[str, ...], command: click.Command) -> dict[str, Any]:
        """Return the values for a command, called by these `names`, as its parameters are called.

        Raises:
            UsageError: the command has no such option, or the option takes no such value.
        """
        *groups, name = names
        section = (*groups, TABLE_OF.get(name, name))
        table: Any = self.tables
        for each in section:
            table = table.get(each, {})
        options = {
            option.removeprefix("--"): param
            for param in command.params
            if isinstance(param, click.Option)
            for option in param.opts
            if option.startswith("--")
        }
        values = {COMMON: (COMMON, self.tables[COMMON])} if COMMON in self.tables and COMMON in options else {}
        for key, value in table.items():
            if key in options:
                values[key] = (".".join((*section, key)), value)
            elif section == names:  # else it may be an option that this command has no use for
                raise UsageError(
                    f"{self.where('.'.join((*section, key)))}: tlaunch {' '.join(names)} has no option {key}",
                    hint=_own_name(key, options) or did_you_mean(near(key, options)),
                )
        return {str(options[key].name): self._checked(options[key], *named) for key, named in values.items()}

    def _checked(self, option: click.Option, name: str, value: Any) -> Any:
        """Return a value as `default_map` takes it; a path is that from the file's directory."""
        kinds, called = next(
            ((kinds, called) for of, kinds, called in _KINDS if isinstance(option.type, of)), ((str,), "a text")
        )
        if option.type is click.STRING:
            kinds = (str, int, float)
        if option.is_flag:
            kinds, called = (bool,), "true or false"
        each_of = value if option.multiple and isinstance(value, list) else [value]
        if option.multiple:
            called = f"a list, each entry {called}"
        fits = (isinstance(each, kinds) and isinstance(each, bool) == option.is_flag for each in each_of)
        if not all(fits) or isinstance(value, list) != option.multiple:
            raise UsageError(f"{self.where(name)}: {name} is not {called}")
        if any(isinstance(each, str) and "\0" in each for each in each_of):  # as no word of a command line does
            raise UsageError(f"{self.where(name)}: {name} has a null character")
        try:
            for each in each_of:
                option.type.convert(each, option, None)
        except click.BadParameter as error:
            refused = refused_value(error, option)
            raise UsageError(f"{self.where(name)}: {refused.message}", hint=refused.hint) from error
        if isinstance(value, str) and isinstance(option.type, click.Path | type(NAME_OR_PATH)):
            value = at_home(value)
        if self.path.parent == Path.cwd():
            return value
        return str(self.path.parent / value) if self._is_path(option, value) else value

    def _is_path(self, option: click.Option, value: Any) -> bool:
        """Return whether a value is a path, also of an option that takes names as well."""
        if option.name == "config":
            return os.path.isfile(self.path.parent / value)  # noqa: PTH113 - Path's raises where a name is too long
        if option.name == "resume":
            from launcher.checkpoint.index import checkpoints_in, is_checkpoint  # few runs go on from others

            place = self.path.parent / value
            is_there = is_checkpoint(place) or checkpoints_in(place) or os.path.isfile(RunDir(place).run_json)  # noqa: PTH113
            return value not in {"", AUTO} and bool(is_there)
        return isinstance(option.type, click.Path)


def read_project_file(path: str, prefix: str, commands: Collection[str], git: str | None = None) -> ProjectFile:
    """Read the tables whose names begin with `prefix`. `commands`: of which there may be tables.

    `git`: the `.git` that makes the file apply here.

    Raises:
        UnreadableError: the file cannot be read.
        UsageError: it is not TOML, or holds something else; or another user owns it, or `git`.
    """
    shown = os.path.relpath(path)
    try:
        for each in filter(None, (path, git)):
            _check_owners(each, uids_of_file(each))
        content = read_regular(Path(path), MAX_BYTES, lambda found: _check_owners(path, (found.st_uid,)))
        text = content.decode("utf-8-sig")
        tables: Any = parse_toml(text)
    except OSError as error:
        raise UnreadableError(f"{shown} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{shown}: this is not TOML: {error}") from error
    if prefix:  # that a line looks like the header of a table does not mean that there is one
        tool = tables.get("tool")
        tables = tool.get("tlaunch", {}) if isinstance(tool, dict) else {}
        if not isinstance(tables, dict):
            raise UsageError(f"{shown}: {prefix[:-1]} is no table", hint=f"write [{prefix[:-1]}]")
    file = ProjectFile(Path(path), text, prefix, tables)
    for name, table in tables.items():
        if name == COMMON:
            continue
        if name in WITHOUT_TABLE:
            raise UsageError(
                f"{file.where(name)}: tlaunch {name} has no table of its own",
                hint=f"it takes the options of [{prefix}{TABLE_OF[name]}]" if name in TABLE_OF else None,
            )
        if name not in commands:
            raise UsageError(
                f"{file.where(name)}: {name} is no command of tlaunch",
                hint=did_you_mean(near(name, [*commands, COMMON])) or f"a table for each command: [{prefix}run]",
            )
        file.check_table(name, table)
    return file


def _check_owners(path: str, uids: Iterable[int]) -> None:
    """Refuse a file that others own: it sets the environment of programs, and `.git` decides which file applies.

    Raises:
        UsageError: one of its owners is another user than this one and root.
    """
    directory = Path(path).parent
    for uid in uids:
        if not is_trusted(uid) and not _is_safe(directory):
            raise UsageError(
                f"{escaped(path)} belongs to {called(uid)}, and would set options of your commands",
                hint=f"ignore it with `tlaunch --no-config`, or trust it with {TLAUNCH_SAFE_DIRECTORY}={shell_word(str(directory))}",
            )


def _is_safe(directory: Path) -> bool:
    """Return whether the user trusts the files in this directory, whoever owns them."""
    named = os.environ.get(TLAUNCH_SAFE_DIRECTORY, "").split(os.pathsep)
    return "*" in named or directory.resolve() in {Path(at_home(each)).resolve() for each in named if each}


def give_defaults(context: click.Context, name: str, command: click.Command, place: ProjectPlace) -> None:
    """Have the project's file give the defaults of a command of this context's group.

    Raises:
        UnreadableError: the file cannot be read.
        UsageError: it holds what no command takes, or this one does not.
    """
    if name in TAKES_NONE:
        return
    if PROJECT_FILE not in context.meta:
        assert isinstance(context.command, click.Group)
        path, prefix, git = place
        context.meta[PROJECT_FILE] = read_project_file(path, prefix, context.command.list_commands(context), git)
    file: ProjectFile = context.meta[PROJECT_FILE]
    if isinstance(command, click.Group):
        file.check_group(name, command.list_commands(context))
        return
    groups: list[str] = []
    at: click.Context = context
    while at.parent is not None:
        groups.insert(0, at.info_name or "")
        at = at.parent
    context.default_map = {name: file.defaults((*groups, name), command)}


def _own_name(key: str, options: Collection[str]) -> str | None:
    """Return what an option of torchrun or msrun is called here, if the command has it."""
    found = counterpart(f"--{key}")
    name = None if found is None or found.here is None else found.here.removeprefix("--")
    return f"tlaunch calls it {name}" if name in options else None
