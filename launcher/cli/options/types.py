"""Types of options: whole numbers, seconds and sizes within bounds, and names of files."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import click


class BadValue(click.BadParameter):
    """A value that the type of an option refuses, and what to write instead."""

    def __init__(
        self, message: str, param: click.Parameter | None, ctx: click.Context | None, hint: str | None = None
    ) -> None:
        super().__init__(message, ctx, param)
        self.hint = hint


class IntRange(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.2 only
    """A whole number within bounds, which `--help` does not show as a formula, and errors say in words."""

    name = "number"

    def __init__(self, min: int | None = None, max: int | None = None) -> None:  # noqa: A002 - click's names
        self._min = min
        self._max = max

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            number = int(value)
        except ValueError:
            raise BadValue(f"{value!r} is not a whole number", param, ctx) from None
        check_bounds(number, self._min, self._max, param, ctx)
        return number


def check_bounds(
    number: float, least: float | None, most: float | None, param: click.Parameter | None, ctx: click.Context | None
) -> None:
    """Refuse a number that is not within its bounds, both of which are allowed.

    Raises:
        BadValue: it is not.
    """
    shown = number if isinstance(number, int) else f"{number:.10g}"
    if least is not None and number < least:
        raise BadValue(f"{shown} is less than {least:.10g}", param, ctx)
    if most is not None and number > most:
        raise BadValue(f"{shown} is more than {most:.10g}", param, ctx)


_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600}
_WITH_UNIT = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])[a-z]*", re.IGNORECASE)


class Seconds(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.2 only
    """A range of numbers, NaN not among them: compared with any bound it is neither below nor above.

    As click's FloatRange, but `--help` does not show the bounds as a formula, and errors say them in words.
    """

    name = "seconds"

    def __init__(self, min: float | None = None, max: float | None = None) -> None:  # noqa: A002 - click's names
        self._min = min
        self._max = max

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if math.isnan(seconds):
            raise BadValue(f"{value!r} is not a number of seconds", param, ctx, _without_unit(str(value)))
        check_bounds(seconds, self._min, self._max, param, ctx)
        return seconds


def _without_unit(text: str) -> str | None:
    matched = _WITH_UNIT.fullmatch(text.strip())
    return f"write {float(matched[1]) * _UNITS_S[matched[2].lower()]:.10g}" if matched else None


MAX_BYTES = 1 << 62
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)


class Size(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.2 only
    """A number of bytes: 65536, 64K, 1.5M, 1 GiB. Units are powers of 1024."""

    name = "size"

    def __init__(self, min: int) -> None:  # noqa: A002 - click's names
        self._min = min

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, int):
            return value
        matched = _SIZE.fullmatch(str(value).strip())
        if matched is None:
            raise BadValue(f"{value!r} is not a size", param, ctx, "for instance 64M")
        size = float(matched[1]) * _UNITS[matched[2].upper()]
        if size > MAX_BYTES:
            raise BadValue(f"{value} is larger than any file", param, ctx)
        size_bytes = int(size)
        if size_bytes < self._min:
            raise BadValue(f"{value} is too small: at least {self._min >> 10}K", param, ctx)
        return size_bytes


class _File(click.Path):
    """A path that is not empty: one of pathlib would be that of this directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            raise BadValue("the name is empty", param, ctx, "name the file (an empty variable?)")
        return super().convert(value, param, ctx)


FILE = _File(path_type=Path)
