"""Load a recipe's settings: packaged defaults, then a TOML file, then `--set KEY=VALUE`. Later values win."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from launcher.core.errors import UnreadableError, UsageError
from launcher.core.regular_files import read_regular
from launcher.core.resources import data_dir
from launcher.core.text import did_you_mean
from launcher.recipes.settings import DIRECTION, SET, Assignment, aliases_of, all_settings, build, languages_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

parse_toml = tomllib.loads
MAX_BYTES = 16 << 20
UNRECORDED = {"data.normalise": False}  # behaviour of versions that did not record these settings
PACKAGED = Path(__file__).resolve().parent
TEMPLATES = data_dir("templates")
Settings = TypeVar("Settings")


def load_settings(recipe: type[Settings], config: str | None, settings: Sequence[str] = ()) -> Settings:
    """Load the settings of `recipe` from an optional configuration and KEY=VALUE settings.

    `config` is a file, or the name of a packaged configuration ("recipes/transformer/tutorial.toml"). Raises
    UnreadableError if the file is missing or unreadable, and UsageError for invalid TOML, an unknown setting, or a
    value of the wrong type or out of bounds.
    """
    return build(recipe, list(_assignments(config, settings)))


def named_settings(config: str | None, settings: Sequence[str] = ()) -> frozenset[str]:
    """Return the dotted names of the settings that are set explicitly."""
    return frozenset(assignment.name for assignment in _assignments(config, settings))


def origins(recipe: type[Any], config: str | None, settings: Sequence[str] = ()) -> dict[str, str]:
    """Map the dotted name of each explicit setting to its origin, such as "my.toml:7" or "--set model.heads=4"."""
    aliases = aliases_of(recipe)
    return {aliases.get(each.name, each.name): each.where for each in _assignments(config, settings)}


def _assignments(config: str | None, settings: Sequence[str]) -> Iterator[Assignment]:
    if config is not None:
        yield from _file_assignments(find_config(config))
    for text in settings:
        name, separator, value = (part.strip() for part in text.partition("="))
        if not separator or not name:
            hint = "use for example `--set train.learning_rate=0.001`"
            raise UsageError(f"--set {text}: expected the form KEY=VALUE", hint=hint)
        try:
            parsed = tomllib.loads(f"value = {value}")["value"]
        except ValueError:
            parsed = value  # bare words are strings, so no nested shell quotes are needed
        # An entry name with dots may be quoted as in TOML: strategies."fc.matmul".
        yield Assignment(name.replace('"', ""), parsed, where=f"{SET}{text}")


def recorded_settings(recipe: type[Settings], sections: Mapping[str, Mapping[str, Any]], where: str) -> Settings:
    """Convert the recorded `sections` of a training to settings. `where` names the record in error messages."""
    recorded = {f"{section}.{name}": value for section, values in sections.items() for name, value in values.items()}
    earlier: dict[str, Any] = {name: value for name, value in UNRECORDED.items() if name in all_settings(recipe)}
    if (direction := recorded.pop(DIRECTION, None)) is not None:
        earlier |= languages_of(direction)
    return build(recipe, [Assignment(name, value, where) for name, value in {**earlier, **recorded}.items()])


def read_settings(path: Path) -> Mapping[str, Any]:
    """Return the settings in a run's settings.toml, such as "train.steps": 5, or an empty mapping if it is unreadable."""
    with suppress(OSError, ValueError, AttributeError):
        sections = parse_toml(read_regular(path, MAX_BYTES).decode())
        return {f"{section}.{name}": value for section, entries in sections.items() for name, value in entries.items()}
    return {}


def find_config(config: str) -> Path:
    """Return the path of `config`, which is a file or the name of a packaged configuration."""
    if (path := Path(config)).is_file():
        return path
    if (packaged := packaged_config(config)) is not None:
        return packaged
    recipes = sorted(f"recipes/{found.relative_to(PACKAGED)}" for found in PACKAGED.rglob("*.toml"))
    names = (*recipes, *sorted(f"templates/{found.name}" for found in TEMPLATES.glob("*.toml")))
    meant = did_you_mean(name for name in names if name.endswith(f"/{config}"))
    found = "this is not a file" if path.exists() else "configuration file not found"
    raise UnreadableError(f"{config}: {found}", hint=meant or f"packaged configurations: {', '.join(names)}")


def packaged_config(config: str) -> Path | None:
    """Return the path of a packaged configuration, or None if `config` is an existing file or an unknown name."""
    path = Path(config)
    if path.is_file() or ".." in path.parts or path.is_absolute():
        return None
    is_template = path.parent == Path("templates")
    packaged = TEMPLATES / path.name if is_template else PACKAGED / config.removeprefix("recipes/")
    return packaged if packaged.is_file() else None


def _file_assignments(path: Path) -> Iterator[Assignment]:
    try:
        text = read_regular(path, MAX_BYTES).decode("utf-8-sig")
        document = tomllib.loads(text)
    except OSError as error:
        raise UnreadableError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # TOMLDecodeError and UnicodeDecodeError are both ValueErrors
        raise UsageError(f"{path}: invalid TOML: {error}") from error
    for name, value in _flattened(document):
        yield Assignment(name, value, where=f"{path}:{line_of(name, text)}")


def _flattened(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def line_of(name: str, text: str) -> int:
    """Return the line number of the setting or section `name` in TOML text. tomllib does not report line numbers."""
    section, _, key = name.rpartition(".")
    current = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[\s*([^\[\]]+?)\s*\]", line):
            current = header[1]
            if current == name:
                return number
        elif (found := re.match(r"\s*([\w.\-\"']+)\s*=", line)) and (
            (current == section and found[1].strip("\"'") == key) or (not current and found[1] == name)
        ):
            return number
    return 1
