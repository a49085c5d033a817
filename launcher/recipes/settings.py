"""Settings as frozen dataclasses whose fields carry their bounds, and the conversion of text to settings."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from launcher.core.errors import UsageError
from launcher.core.frozen import frozen
from launcher.core.text import near, shell_word
from launcher.recipes.synonyms import VALUE, VALUES, equivalents

Section = TypeVar("Section")

SET = "--set "  # beginning of the source of a setting from the command line
MAX_WHOLE = 1 << 53  # default maximum of integers; larger ones are not exact as a float
LATEST = "latest"  # run to resume if another tool's switch, such as `--continue`, has no value
DIRECTION = "data.direction"  # recorded by tlaunch 0.2: "fr_en" or "en_fr"


class UnknownSettingError(UsageError):
    """A setting that the program does not have. `name` is its dotted name, as the user wrote it."""

    name = ""


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

    def allowed(self, default: Any) -> tuple[str, ...]:
        """Return the choices of a setting, or a phrase for its range, such as "from 0 below 1"."""
        if self.choices or isinstance(default, bool):
            return self.choices or ("true", "false")
        limits = [f"from {self.minimum:,g}"] if self.minimum is not None else []
        if self.maximum is not None and self.maximum < MAX_WHOLE:
            limits.append(f"to {self.maximum:,}")
        if self.below is not None:
            limits.append(f"below {self.below:g}")
        return (" ".join(limits) or "any",)

    def choice_for(self, value: Any) -> str | None:
        """Return the choice that `value` means in another tool or with a slip, such as "cosine" for "Cosine"."""
        meant = VALUES.get(str(value).casefold(), str(value))
        return meant if meant in self.choices else next(iter(near(meant, self.choices)), None)


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
            hint = _hint_for_unknown(assignment, known, chosen)
            unknown = UnknownSettingError(f"{assignment.where}: unknown setting {assignment.name}", hint=hint)
            unknown.name = assignment.name
            raise unknown
        field = known[assignment.name]
        values.setdefault(of, {})[entry] = checked(assignment.name, assignment.value, field, where=assignment.where)
    return recipe(**{section.name: _section_class(section)(**values.get(section.name, {})) for section in sections})


def _hint_for_unknown(given: Assignment, known: Mapping[str, dataclasses.Field[Any]], chosen: Mapping[str, Any]) -> str:
    replaced = languages_of(given.value) if given.name == DIRECTION else {given.name: given.value}
    if given.where.startswith(SET) and (hint := hint_for(replaced, known)) is not None:
        return hint
    if replaced.keys() <= known.keys():
        return f"use {' and '.join(f'{name} = {as_toml(value)}' for name, value in replaced.items())}"
    section, _, entry = given.name.partition(".")
    # For a mistyped section with names chosen by the user, such as `strategy` for `strategies`: the entry there.
    entries_near = [f"{name}.{entry}" for name in near(section, chosen) or near(section[:-1], chosen) if entry]
    names = [name for name, _ in equivalents(given.name, known)] or _suggestions(given.name, known) or entries_near
    if names:
        return f"did you mean {' or '.join(names)}?"
    sections = list(dict.fromkeys(name.partition(".")[0] for name in known))
    if section in sections:
        return f"`tlaunch explain {section}` lists the settings of this section"
    return f"list the settings of a section with `tlaunch explain SECTION`; sections: {', '.join((*sections, *chosen))}"


def languages_of(direction: Any) -> dict[str, str]:
    """Return the settings that replace a value of `DIRECTION`."""
    source, _, target = str(direction).partition("_")
    return {"data.source_language": source, "data.target_language": target}


def hint_for(given: Mapping[str, Any], known: Mapping[str, dataclasses.Field[Any]]) -> str | None:
    """Return a hint with the options of `tlaunch run` for settings of other tools, or None if all are unknown.

    `given` maps their names to their values; None is for a switch without a value.
    """
    found = [
        (target, value if meant is None else _switched(known.get(target), meant, value), meant)
        for name, value in given.items()
        for target, meant in equivalents(name, known)
    ]
    options = [_as_option(target, value, known) for target, value, _ in found]
    unclear = [target for target, value, meant in found if VALUE in (value, meant) and target in known]
    explained = "".join(f"; `tlaunch explain {target}` shows what it means" for target in unclear)
    return f"use `{' '.join(options)}`{explained}" if options else None


def _switched(field: dataclasses.Field[Any] | None, meant: str, value: Any) -> Any:
    """Return the value of a setting for a switch that stands for `meant`, or that is false. Booleans stay as given."""
    if meant == VALUE and field is not None and isinstance(field.default, bool):
        return value
    if field is None or meant == VALUE or _as_boolean(value) != "false":
        return meant
    others = [choice for choice in field.metadata["bounds"].choices if choice != meant]
    return field.default if field.default != meant else others[0] if len(others) == 1 else VALUE


def _as_boolean(value: Any) -> str:
    """Return a boolean of another tool in TOML syntax, and other values in lower case.

    >>> _as_boolean("True"), _as_boolean(0)
    ('true', 'false')
    """
    text = str(value).casefold()
    return {"1": "true", "0": "false"}.get(text, text)


def _as_option(target: str, value: Any, known: Mapping[str, dataclasses.Field[Any]]) -> str:
    is_setting, text = target in known, value if isinstance(value, str) else as_toml(value)
    if value is None:
        text = LATEST if target == "--resume" else VALUE
    if is_setting and isinstance(known[target].default, bool):
        text = "true" if value is None else _as_boolean(value)
    elif is_setting:
        text = known[target].metadata["bounds"].choice_for(text) or text
    return f"--set {shell_word(f'{target}={text}')}" if is_setting else f"{target} {shell_word(text)}"


def _entry(assignment: Assignment, wanted: Entries) -> Any:
    try:
        return wanted.read(assignment.value)
    except ValueError as error:
        told = f"{assignment.where}: {assignment.name} is {as_toml(assignment.value)}, but must be {error}"
        raise UsageError(told, hint=wanted.help) from None


def _section_class(section: dataclasses.Field[Any]) -> Any:
    return section.default_factory


KINDS = {
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
    bounds: Bounds = field.metadata["bounds"]
    if type(value) is not wanted:
        problem, hint = f"but must be {KINDS[wanted]}", f"the default is {name} = {as_toml(field.default)}"
    elif complaint := bounds.complaint(value):
        problem, hint = f"which is {complaint}", f"{name}: {bounds.help}; the default is {as_toml(field.default)}"
    else:
        return value
    if (choice := bounds.choice_for(value)) is not None:
        hint = f"use `--set {name}={choice}`" if where.startswith(SET) else f"use {name} = {as_toml(choice)}"
    raise UsageError(f"{said} is {as_toml(value)}, {problem}", hint=hint)


def _suggestions(name: str, known: Mapping[str, object]) -> Sequence[str]:
    """Return the settings with similar names. If there are none, return those with similar names in other sections."""
    names: dict[str, list[str]] = {}
    for setting_name in known:
        names.setdefault(setting_name.partition(".")[2], []).append(setting_name)
    return near(name, known) or [one for found in near(name.rpartition(".")[2], names) for one in names[found]]


def as_toml(value: Any) -> str:
    """Return a value in TOML syntax."""
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(as_toml, value))}]"
    return str(value) if type(value) in {int, float} else json.dumps(value, default=str)
