"""The type of every option that is a number of bytes."""

from __future__ import annotations

import re
from typing import Any

import click

from launcher.cli.options.usage import BadValue

LARGEST_BYTES = 1 << 62
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
            raise BadValue(f"{value!r} is no size", param, ctx, "for instance 64M")
        size = float(matched[1]) * _UNITS[matched[2].upper()]
        if size > LARGEST_BYTES:
            raise BadValue(f"{value} is more than any file holds", param, ctx)
        size_bytes = int(size)
        if size_bytes < self._min:
            raise BadValue(f"{value} is too small: at least {self._min >> 10}K", param, ctx)
        return size_bytes
