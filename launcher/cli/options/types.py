"""Types of option values: integers, numbers, durations and sizes with bounds, and paths."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from launcher.core.errors import UsageError
from launcher.core.records import CONSOLES
from launcher.core.resources import at_home
from launcher.core.text import did_you_mean, duration_s, near


class BadValue(click.BadParameter):
    def __init__(
        self, message: str, param: click.Parameter | None, ctx: click.Context | None, hint: str | None = None
    ) -> None:
        super().__init__(message, ctx, param)
        self.hint = hint


class _Bounded(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.2 only
    """A number within inclusive bounds. `--help` does not show the bounds."""

    def __init__(self, min: float | None = None, max: float | None = None) -> None:  # noqa: A002 - click's names
        self._min = min
        self._max = max

    def within_bounds(self, number: float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return `number`, or raise BadValue if it is outside the bounds."""
        shown = number if isinstance(number, int) else f"{number:.10g}"
        if self._min is not None and number < self._min:
            raise BadValue(f"{shown} is less than {self._min:.10g}", param, ctx)
        if self._max is not None and number > self._max:
            raise BadValue(f"{shown} is more than {self._max:.10g}", param, ctx)
        return number


NEEDS_VALUE = "needs a value"


def _check_given(value: Any, param: click.Parameter | None, ctx: click.Context | None) -> None:
    """Raise BadValue if a value is the option that follows, as in `--resume --dry-run`."""
    if value == "--" or (ctx is not None and any(value in each.opts for each in ctx.command.params)):
        raise BadValue(f"`{value}` follows, but the option {NEEDS_VALUE}", param, ctx)


class IntRange(_Bounded):
    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            number = int(value)
        except ValueError:
            _check_given(value, param, ctx)
            # Device counts in the style of torchrun (`auto`, `gpu`) or mpirun (`-np2`).
            hint = "write a number, such as 8" if value in {"auto", "gpu", "cpu"} else None
            if re.fullmatch(r"p\d+", str(value)):
                hint = f"add a space: -np {value[1:]}"
            raise BadValue(f"{value!r} is not a whole number", param, ctx, hint) from None
        return self.within_bounds(number, param, ctx)


class ShownOutput(click.ParamType):  # type: ignore[type-arg]  # as above
    """The output that --console shows: a Console, or ranks."""

    name = "output"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value not in CONSOLES and not re.fullmatch(r"[\d ,-]*\d[\d ,-]*", value, re.ASCII):
            hint = f"use {', '.join(CONSOLES)}, or ranks such as 0,3-5"
            raise BadValue(f"{value!r} is not output to show", param, ctx, hint)
        return value


class FloatRange(_Bounded):
    """A number within bounds. NaN is rejected."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if (number := _float(value)) is None:
            raise BadValue(f"{value!r} is not a number", param, ctx)
        return self.within_bounds(number, param, ctx)


class Seconds(_Bounded):
    """A duration in seconds within bounds, written as 90, 90s, 1.5h or 1h30m.

    With `needs_unit`, a number without a unit is rejected, except 0.
    """

    name = "seconds"

    def __init__(self, min: float | None = None, max: float | None = None, *, needs_unit: bool = False) -> None:  # noqa: A002 - click's names
        super().__init__(min, max)
        self._needs_unit = needs_unit

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = duration_s(str(value).strip())
        if seconds is None and (seconds := _float(value)) is None:
            raise BadValue(
                f"{value!r} is not a duration", param, ctx, "give a number of seconds, or a time such as 10m or 1h30m"
            )
        if self._needs_unit and seconds and _float(value) is not None:
            raise BadValue(
                f"{value!r} has no unit", param, ctx, f"add a unit: {value}s, {value}m, {value}h or {value}d"
            )
        return self.within_bounds(seconds, param, ctx)


def _float(value: Any) -> float | None:
    """Parse a number; return None for NaN and for text that is not a number."""
    with suppress(ValueError):
        return None if math.isnan(number := float(value)) else number
    return None


MAX_BYTES = 1 << 62
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_UNREADABLE = re.compile(r"\w+ '(.*)' is not readable\.", re.DOTALL)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)


class Size(_Bounded):
    """A size in bytes, written as 65536, 64K, 1.5M or 1 GiB. Units are powers of 1024."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, int):
            return value
        matched = _SIZE.fullmatch(str(value).strip())
        if matched is None:
            raise BadValue(f"{value!r} is not a size", param, ctx, "give a number of bytes, or a size such as 64M")
        size = float(matched[1]) * _UNITS[matched[2].upper()]
        if size > MAX_BYTES:
            raise BadValue(f"{value} is larger than any file", param, ctx)
        least = int(self._min or 0)
        if size < least:
            raise BadValue(f"{value} is less than {least >> 10}K", param, ctx)
        return int(size)


class PathType(click.Path):
    """A path in which a leading `~` stands for the home directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(at_home(value) if isinstance(value, str) else value, param, ctx)


class _NameOrPath(click.types.StringParamType):
    """A name or a path, in which a leading `~` stands for the home directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        _check_given(value, param, ctx)
        return at_home(super().convert(value, param, ctx))


class _File(PathType):
    """A path that must not be empty, because `Path("")` is the current directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            raise BadValue("the name is empty", param, ctx, "give a file name; check for an empty shell variable")
        return super().convert(value, param, ctx)


FILE = _File(path_type=Path)
A_PATH = PathType(path_type=Path)
NAME_OR_PATH = _NameOrPath()


def complete_files(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[Any]:
    """Return a completion item that lets the shell complete file names."""
    from click.shell_completion import CompletionItem  # imported only for completion

    return [CompletionItem(begun, type="file")]


def refused_value(error: click.BadParameter, param: click.Parameter) -> UsageError:
    """Convert click's error for an invalid option or argument to a UsageError."""
    if unreadable := _UNREADABLE.fullmatch(error.message):
        return UsageError(f"{unreadable[1]} cannot be read: Permission denied")
    hint = error.hint if isinstance(error, BadValue) else None
    message, choices = error.message.rstrip("."), choices_of(param)
    value, is_unknown, _ = message.partition(" is not one of ")
    if choices and is_unknown:
        message = f"{value} is not one of {', '.join(choices)}"
        from launcher.recipes.synonyms import CHOICES  # only for wrong values

        typed = value.strip("'")
        hint = did_you_mean(near(CHOICES.get(typed.casefold(), typed), choices))
    source = error.ctx.get_parameter_source(param.name) if error.ctx and param.name else None
    is_from_variable = source is ParameterSource.ENVIRONMENT and isinstance(param.envvar, str)
    return UsageError(f"{param.envvar if is_from_variable else typed_name(param)}: {message}", hint=hint)


def choices_of(param: click.Parameter) -> tuple[str, ...]:
    return tuple(map(str, param.type.choices)) if isinstance(param.type, click.Choice) else ()


def typed_name(param: click.Parameter) -> str:
    """Return the long name of an option, or the metavar of an argument without brackets and dots."""
    if isinstance(param, click.Option):
        return max(param.opts, key=len)
    called = param.human_readable_name
    return named[0] if (named := re.search("[A-Z]+", called)) else called
