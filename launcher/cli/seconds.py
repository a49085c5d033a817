"""The type of every option that is a number of seconds."""

from __future__ import annotations

import math
from typing import Any

import click


class Seconds(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.2 only
    """A range of numbers, NaN not among them: compared with any bound it is neither below nor above.

    As click's FloatRange, but `--help` does not show the bounds as a formula.
    """

    name = "seconds"

    def __init__(self, min: float | None = None, max: float | None = None) -> None:  # noqa: A002 - click's names
        self._range = click.FloatRange(min, max)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = self._range.convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value} is no number of seconds", param, ctx)
        return seconds
