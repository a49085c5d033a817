"""The pieces of JSON text that all writers are made of."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from launcher.core.records import Options


def dump(value: Any) -> str:
    """`value` as JSON on one line, in the script it was written in.

    A lone half of a surrogate pair, which JSON allows and UTF-8 does not, is written as an escape.
    """
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isascii() or _is_utf8(text) else json.dumps(value)


def one_line(fields: Mapping[str, Any]) -> str:
    """An object on one line, without the keys that have no value."""
    return dump({key: value for key, value in fields.items() if value is not None})


def block(members: Iterable[str], indent: int) -> str:
    """An object over several lines; `indent` is where its brackets stand."""
    return _bracketed("{", members, "}", indent)


def listing(items: Iterable[str], indent: int) -> str:
    """A list with one item per line; `indent` is where its brackets stand."""
    return _bracketed("[", items, "]", indent)


def member(key: str, value: Any) -> str:
    """A key with a value that fits on its line."""
    return f'"{key}": {dump(value)}'


def present(fields: Mapping[str, Any]) -> list[str]:
    """Members for those keys that have a value, in the order given."""
    return [member(key, value) for key, value in fields.items() if value is not None]


def picked(options: Options, keys: Iterable[str]) -> dict[str, str]:
    """The options named by `keys`, in the order of `keys`."""
    known = dict(options)
    return {key: known[key] for key in keys if key in known}


def _bracketed(opening: str, items: Iterable[str], closing: str, indent: int) -> str:
    inner = " " * (indent + 2)
    lines = ",\n".join(f"{inner}{item}" for item in items)
    return f"{opening}\n{lines}\n{' ' * indent}{closing}"


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
