"""The project file: default options per command, in `tlaunch.toml` or in `[tool.tlaunch]` of pyproject.toml.

The command line and environment variables take precedence: click gets the file's values as defaults (`default_map`).
Agents and ranks of `tlaunch exec` ignore the file, as it may differ between servers. `project_place.py` finds it.
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

COMMON = "runs-dir"  # a key outside all tables, for all commands
TAKES_NONE = ("exec", "completion")
TABLE_OF = {"explain": "run"}  # `explain` takes the options of `run`
WITHOUT_TABLE = (*TAKES_NONE, *TABLE_OF, "rerun")  # `rerun` takes its options from the recorded run
_KINDS: tuple[tuple[type[click.ParamType], tuple[type, ...], str], ...] = (  # type: ignore[type-arg]  # since click 8.2
    (IntRange, (int,), "a whole number"),
    (FloatRange, (int, float), "a number"),
    (Seconds, (int, float, str), 'a number of seconds, or a string such as "10m"'),
    (Size, (int, str), 'a number of bytes, or a string such as "64M"'),
)


@frozen
class ProjectFile:
    path: Path
    text: str
    prefix: str  # of all table names, such as "tool.tlaunch."
    tables: Mapping[str, Any]

    def where(self, name: str) -> str:
        """Return the position of a table or key as FILE:LINE."""
        return f"{os.path.relpath(self.path)}:{line_of(f'{self.prefix}{name}', self.text)}"

    def check_table(self, name: str, table: Any) -> None:
        """Raise UsageError if `table`, the value at the dotted `name`, is not a table."""
        if not isinstance(table, dict):
            raise UsageError(f"{self.where(name)}: {name} is not a table", hint=f"write [{self.prefix}{name}]")

    def check_group(self, name: str, commands: Collection[str]) -> None:
        """Raise UsageError if the table of a command group contains anything other than tables for its commands."""
        for key, table in self.tables.get(name, {}).items():
            if key not in commands:
                raise UsageError(
                    f"{self.where(f'{name}.{key}')}: tlaunch {name} has no command {key}",
                    hint=did_you_mean(near(key, commands)),
                )
            self.check_table(f"{name}.{key}", table)

    def defaults(self, names: tuple[str, ...], command: click.Command) -> dict[str, Any]:
        """Return a command's defaults, keyed by parameter. `names` is the command's path, such as ("table", "show").

        Raises UsageError if an option is unknown or its value is invalid.
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
            elif section == names:  # a shared table may contain options of the other command
                found = counterpart(f"--{key}")  # an option of another launcher
                own_name = "" if found is None else (found.here or "").removeprefix("--")
                raise UsageError(
                    f"{self.where('.'.join((*section, key)))}: tlaunch {' '.join(names)} has no option {key}",
                    hint=f"use {own_name}" if own_name in options else did_you_mean(near(key, options)),
                )
        return {str(options[key].name): self._checked(options[key], *named) for key, named in values.items()}

    def _checked(self, option: click.Option, name: str, value: Any) -> Any:
        """Check a value and return it as a default for click. Paths are relative to the file's directory."""
        kinds: tuple[type, ...] = (str, int, float) if option.type is click.STRING else (str,)
        named = ((kinds, called) for of, kinds, called in _KINDS if isinstance(option.type, of))
        kinds, called = ((bool,), "true or false") if option.is_flag else next(named, (kinds, "a string"))
        each_of = value if option.multiple and isinstance(value, list) else [value]
        if option.multiple:
            called = f"a list, each entry {called}"
        fits = (isinstance(each, kinds) and isinstance(each, bool) == option.is_flag for each in each_of)
        if not all(fits) or isinstance(value, list) != option.multiple:
            raise UsageError(f"{self.where(name)}: {name} is not {called}")
        if any(isinstance(each, str) and "\0" in each for each in each_of):  # command lines cannot contain it
            raise UsageError(f"{self.where(name)}: {name} contains a null character")
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
        """Return True if the value is a path. For an option that also takes names, the path must exist."""
        if option.name == "config":
            return os.path.isfile(self.path.parent / value)  # noqa: PTH113 - Path.is_file raises for long names
        if option.name in {"resume", "init_from"}:
            from launcher.checkpoint.file_layout import MODEL  # rarely needed
            from launcher.checkpoint.index import checkpoints_in, is_checkpoint  # rarely needed

            place = self.path.parent / value
            is_there = is_checkpoint(place) or checkpoints_in(place) or os.path.isfile(RunDir(place).run_json)  # noqa: PTH113
            is_there = is_there or os.path.isfile(place / MODEL)  # noqa: PTH113 - as above
            return value not in {"", AUTO} and bool(is_there)
        return isinstance(option.type, click.Path)


def read_project_file(path: str, prefix: str, commands: Collection[str], git: str | None = None) -> ProjectFile:
    """Read the tables below `prefix` in a project file. Only the commands in `commands` may have tables.

    If the file is in a parent directory, `git` is the repository's `.git`. Raises UnreadableError if the file cannot be
    read, and UsageError if it is not TOML, has an unknown table, or if another user owns it or `git`.
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
        raise UsageError(f"{shown}: invalid TOML: {error}") from error
    if prefix:  # the table may be missing: a line that looks like its header may be part of a string
        tool = tables.get("tool")
        tables = tool.get("tlaunch", {}) if isinstance(tool, dict) else {}
        if not isinstance(tables, dict):
            raise UsageError(f"{shown}: {prefix[:-1]} is not a table", hint=f"write [{prefix[:-1]}]")
    file = ProjectFile(Path(path), text, prefix, tables)
    for name, table in tables.items():
        if name == COMMON:
            continue
        if name in WITHOUT_TABLE:
            raise UsageError(
                f"{file.where(name)}: tlaunch {name} cannot have a table",
                hint=f"use [{prefix}{TABLE_OF[name]}]" if name in TABLE_OF else None,
            )
        if name not in commands:
            raise UsageError(
                f"{file.where(name)}: tlaunch has no command {name}",
                hint=did_you_mean(near(name, [*commands, COMMON])) or f"use a command name, for example [{prefix}run]",
            )
        file.check_table(name, table)
    return file


def _check_owners(path: str, uids: Iterable[int]) -> None:
    """Raise UsageError if another user owns `path`, unless TLAUNCH_SAFE_DIRECTORY lists its directory.

    The project file sets options and environment variables, and `.git` decides which project file applies.
    """
    stranger = next((uid for uid in uids if not is_trusted(uid)), None)
    directory, named = Path(path).parent, os.environ.get(TLAUNCH_SAFE_DIRECTORY, "").split(os.pathsep)
    safe = (os.path.realpath(at_home(each)) for each in named if each)
    if stranger is not None and "*" not in named and os.path.realpath(directory) not in safe:
        raise UsageError(
            f"tlaunch refuses to load the project file: {escaped(path)} belongs to {called(stranger)}",
            hint=f"use `tlaunch --no-config`, or trust this directory: {TLAUNCH_SAFE_DIRECTORY}={shell_word(str(directory))}",
        )


def give_defaults(context: click.Context, name: str, command: click.Command, place: ProjectPlace) -> None:
    """Set the default options of a command to the values in the project file."""
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
    groups = [name]
    at: click.Context = context
    while at.parent is not None:
        groups.insert(0, at.info_name or "")
        at = at.parent
    context.default_map = {name: file.defaults(tuple(groups), command)}
