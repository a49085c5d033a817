"""The type of every option that is a whole number within bounds."""

from __future__ import annotations

from typing import Any

import click


class Whole(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.2 only
    """As click's IntRange, but `--help` does not show the bounds as a formula."""

    name = "number"

    def __init__(self, min: int | None = None, max: int | None = None) -> None:  # noqa: A002 - click's names
        self._range = click.IntRange(min, max)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return self._range.convert(value, param, ctx)
