"""The type of every option that is a whole number within bounds."""

from __future__ import annotations

from typing import Any

import click

from launcher.cli.options.usage import BadValue


class Whole(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.2 only
    """As click's IntRange, but `--help` does not show the bounds as a formula, and errors say them in words."""

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
