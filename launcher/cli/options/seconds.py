"""The type of every option that is a number of seconds."""

from __future__ import annotations

import math
import re
from typing import Any

import click

from launcher.cli.options.types import check_bounds
from launcher.cli.options.usage import BadValue

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
