"""Frozen records as JSON and back, for what servers tell each other: the declared types say what a value becomes again.

Fields that another version added are left out, and fields that it lacks take their defaults, as in `core.frozen`.
"""

from __future__ import annotations

import reprlib
import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, cast

T = TypeVar("T")
SHOWN_CHARS = 200  # of why something is no record
WHOLE_NUMBERS_END = 1 << 63  # as the system's calls take them
_SCALARS = (str, bool)


def encode(value: Any) -> Any:
    """`value` as what `json.dumps` takes: records and mappings as objects, tuples as lists, paths and members as text."""
    if is_dataclass(value):
        return {field.name: encode(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): encode(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [encode(each) for each in value]
    return value


def decode(kind: type[T], value: Any, stands_for: Mapping[Any, Any] | None = None) -> T:
    """The record of class `kind` that `encode` made `value` of. `stands_for`: what to make where a class is declared.

    Raises:
        ValueError: it was made of something else.
    """
    try:
        return cast("T", _record(kind, value, stands_for or {}))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ValueError(f"no {kind.__name__}: {str(error)[:SHOWN_CHARS]}") from error


def _record(kind: Any, value: Mapping[str, Any], stands_for: Mapping[Any, Any]) -> Any:
    _checked(value, isinstance(value, Mapping), "an object")
    return kind(
        **{
            name: _value(declared, value[name], stands_for)
            for name, (declared, needed) in _declared(kind).items()
            if needed or name in value
        }
    )


@cache
def _declared(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Of every field its type, and whether it has no default."""
    types = typing.get_type_hints(kind)
    return {field.name: (types[field.name], _is_needed(field)) for field in fields(kind) if field.init}


def _is_needed(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _value(declared: Any, value: Any, stands_for: Mapping[Any, Any]) -> Any:
    declared = stands_for.get(declared, declared)
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if origin in {typing.Union, UnionType}:
        return _one_of(arguments, value, stands_for)
    if origin is typing.Literal:
        return _checked(value, value in arguments, declared)
    if origin is tuple:
        return _tuple(arguments, value, stands_for)
    if origin is not None:  # Mapping[str, X]
        return {str(name): _value(arguments[1], each, stands_for) for name, each in value.items()}
    return _plain(declared, value, stands_for)


def _plain(declared: Any, value: Any, stands_for: Mapping[Any, Any]) -> Any:
    if declared in {Any, object}:
        return value
    if is_dataclass(declared):
        return _record(declared, value, stands_for)
    if declared is float:
        return float(_checked(value, type(value) in {int, float}, declared))
    if declared is int:
        return _checked(value, type(value) is int and abs(value) < WHOLE_NUMBERS_END, declared)
    if declared in _SCALARS:
        return _checked(value, type(value) is declared, declared)
    return declared(_checked(value, isinstance(value, str), declared))  # paths and members of enumerations


def _one_of(kinds: tuple[Any, ...], value: Any, stands_for: Mapping[Any, Any]) -> Any:
    if value is None:
        return _checked(None, type(None) in kinds, kinds)
    (kind,) = (each for each in kinds if each is not type(None))  # nothing here is one of several records
    return _value(kind, value, stands_for)


def _tuple(kinds: tuple[Any, ...], value: Any, stands_for: Mapping[Any, Any]) -> tuple[Any, ...]:
    items = _checked(value, isinstance(value, list | tuple), "a list")
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(_value(kinds[0], each, stands_for) for each in items)
    return tuple(_value(kind, each, stands_for) for kind, each in zip(kinds, items, strict=True))


def _checked(value: Any, fits: bool, declared: Any) -> Any:
    if not fits:
        raise TypeError(f"{reprlib.repr(value)} is not {declared}")  # it may be long and deep
    return value
