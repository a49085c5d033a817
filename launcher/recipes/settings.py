"""Settings as frozen dataclasses whose fields carry their bounds, and the conversion of text to settings."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from launcher.core.errors import UsageError
from launcher.core.frozen import frozen
from launcher.core.text import did_you_mean, near

Section = TypeVar("Section")

MAX_WHOLE = 1 << 53  # default maximum of integers; larger ones are not exact as a float


@frozen
class Bounds:
    """The allowed values of a setting, its help text and its alias."""

    help: str
    minimum: float | None = None
    maximum: int | None = None
    below: float | None = None  # exclusive
    choices: tuple[str, ...] = ()
    alias: str = ""  # another name of the setting in its section

    def complaint(self, value: Any) -> str | None:
        """Return a phrase such as "below 1" that explains why `value` is not allowed, or None if it is allowed."""
        if isinstance(value, tuple):
            return next((f"{why} in {one}" for one in value if (why := self.complaint(one))), None)
        if self.choices and value not in self.choices:
            return f"not one of {', '.join(self.choices)}"
        if isinstance(value, float) and not math.isfinite(value):
            return "not finite"
        if self.minimum is not None and value < self.minimum:
            return f"below {self.minimum:g}"
        if self.maximum is not None and value > self.maximum:
            return f"above {self.maximum:,}"
        return None if self.below is None or value < self.below else f"not below {self.below:g}"


def setting(
    default: Any,
    meaning: str,
    *,
    minimum: float | None = None,
    maximum: int | None = None,
    below: float | None = None,
    choices: tuple[str, ...] = (),
    alias: str = "",
) -> Any:
    """Declare a setting as a dataclass field. The default `maximum` of integers is MAX_WHOLE."""
    if maximum is None and type(default) in {int, tuple}:
        maximum = MAX_WHOLE
    bounds = Bounds(help=meaning, minimum=minimum, maximum=maximum, below=below, choices=choices, alias=alias)
    return dataclasses.field(default=default, metadata={"bounds": bounds})


@frozen
class Entries:
    """A section whose entries can have any name. It has a help text, and a function that parses the entries' values."""

    help: str
    read: Callable[[Any], Any]  # raises a ValueError whose message follows "must be"


def entries(meaning: str, read: Callable[[Any], Any]) -> Any:
    """Declare a section whose entries can have any name. The section is empty by default."""
    return dataclasses.field(default_factory=dict, metadata={"entries": Entries(meaning, read)})


def all_settings(recipe: type) -> dict[str, dataclasses.Field[Any]]:
    """Return the settings of `recipe` by dotted name, in order of declaration. Omit sections with user-chosen names."""
    return {
        f"{section.name}.{field.name}": field
        for section in dataclasses.fields(recipe)
        if "entries" not in section.metadata
        for field in dataclasses.fields(_section_class(section))
    }


def aliases_of(recipe: type) -> dict[str, str]:
    """Map the dotted alias of each setting to the dotted name of the setting. Omit settings without an alias."""
    return {
        f"{name.partition('.')[0]}.{alias}": name
        for name, field in all_settings(recipe).items()
        if (alias := field.metadata["bounds"].alias)
    }


@frozen
class Assignment:
    name: str  # dotted, e.g. "model.d_model"
    value: Any
    where: str  # "tutorial.toml:7" or "--set model.d_model=12"


def build(recipe: type[Section], assignments: Sequence[Assignment]) -> Section:
    """Create an instance of `recipe` from its defaults and the assignments. Later assignments take precedence.

    Raises:
        UsageError: a name is unknown, or a value has the wrong type or is out of bounds. The message names its source.
    """
    known, aliases = all_settings(recipe), aliases_of(recipe)
    sections = dataclasses.fields(recipe)  # type: ignore[arg-type]
    chosen = {section.name: section.metadata["entries"] for section in sections if "entries" in section.metadata}
    values: dict[str, dict[str, Any]] = {}
    for given in assignments:
        assignment = dataclasses.replace(given, name=aliases.get(given.name, given.name))
        of, _, entry = assignment.name.partition(".")
        if of in chosen and entry:
            values.setdefault(of, {})[entry] = _entry(assignment, chosen[of])
            continue
        if assignment.name not in known:
            names = (*known, *(f"{section}.NAME" for section in chosen))
            # For a mistyped section with names chosen by the user, such as `strategy` for `strategies`: the entry there.
            entries_near = [f"{section}.{entry}" for section in near(of, chosen) or near(of[:-1], chosen) if entry]
            hint = did_you_mean(_suggestions(assignment.name, known) or entries_near)
            raise UsageError(
                f"{assignment.where}: unknown setting {assignment.name}",
                hint=hint or f"known settings: {', '.join(names)}",
            )
        field = known[assignment.name]
        values.setdefault(of, {})[entry] = checked(assignment.name, assignment.value, field, where=assignment.where)
    return recipe(**{section.name: _section_class(section)(**values.get(section.name, {})) for section in sections})


def _entry(assignment: Assignment, wanted: Entries) -> Any:
    try:
        return wanted.read(assignment.value)
    except ValueError as error:
        told = f"{assignment.where}: {assignment.name} is {as_toml(assignment.value)}, but must be {error}"
        raise UsageError(told, hint=wanted.help) from None


def _section_class(section: dataclasses.Field[Any]) -> Any:
    return section.default_factory


_KINDS = {
    bool: "true or false", int: "an integer", float: "a number", str: "a string", tuple: "a list of integers",
}  # fmt: skip


def checked(name: str, value: Any, field: dataclasses.Field[Any], *, where: str = "") -> Any:
    """Convert a value to the type of the setting, and check it. `where` names the source of the value in errors."""
    wanted, said = type(field.default), f"{where}: {name}" if where else name
    if wanted is float and type(value) is int:
        try:
            value = float(value)
        except OverflowError:
            value = math.inf if value > 0 else -math.inf
    if wanted is tuple and isinstance(value, list) and all(type(one) is int for one in value):
        value = tuple(value)
    if type(value) is not wanted:
        raise UsageError(
            f"{said} is {as_toml(value)}, but must be {_KINDS[wanted]}",
            hint=f"the default is {name} = {as_toml(field.default)}",
        )
    bounds: Bounds = field.metadata["bounds"]
    if complaint := bounds.complaint(value):
        raise UsageError(
            f"{said} is {as_toml(value)}, which is {complaint}",
            hint=f"{name}: {bounds.help}; the default is {as_toml(field.default)}",
        )
    return value


def _suggestions(name: str, known: Mapping[str, object]) -> Sequence[str]:
    """Suggest settings that have this name in another section. If there are none, suggest similar names."""
    own = name.rpartition(".")[2]
    names: dict[str, list[str]] = {}
    for setting_name in known:
        names.setdefault(setting_name.partition(".")[2], []).append(setting_name)
    return names.get(own) or near(name, known) or [one for found in near(own, names) for one in names[found]]


def as_toml(value: Any) -> str:
    """Return a value in TOML syntax."""
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(as_toml, value))}]"
    return str(value) if type(value) in {int, float} else json.dumps(value, default=str)
