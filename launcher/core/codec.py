"""JSON: records as JSON and back, the one codec for files that tlaunch writes and for messages between servers.

The declared types of a record's fields say what a value becomes again. Fields that another version added are left out,
and fields that it lacks take their defaults. JSON has no NaN: a `float` that is null is NaN again. Numbers of the values
in files that other programs write are read one by one, with `whole_number` and `real_number`.
"""

from __future__ import annotations

import json
import math
import reprlib
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, cast

from launcher.core.regular_files import read_regular

T = TypeVar("T")
INDENT = 2
MAX_ERROR_CHARS = 200
MAX_WHOLE_NUMBER = (1 << 63) - 1  # as the system's calls take them
MAX_JSON_BYTES = 64 << 20  # of a file: run.json of 50,000 ranks
MAX_DIGESTED_BYTES = 1 << 30
MAX_JSON_VALUES = 2_000_000  # in one text: short text may take 20 times its size in memory
_NOTHING = type(None)
_Converter = Callable[[Any], Any]


def encode(value: Any) -> Any:
    """Return `value` as `json.dumps` takes it: records and mappings as objects, tuples as lists, paths as text."""
    if hasattr(value, "__dataclass_fields__"):
        return {name: encode(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): encode(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [encode(each) for each in value]
    return value


def decode(kind: type[T], value: Any) -> T:
    """Return the record of class `kind` that `encode` turned into `value`.

    Raises:
        ValueError: `value` was made of something else, or a number in it is beyond 64 bits.
    """
    try:
        return cast("T", _converter(cast("Any", kind))(value))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"not a valid {kind.__name__}: {str(error)[:MAX_ERROR_CHARS]}") from error


def parse_json(text: str | bytes) -> Any:
    """Return the value of JSON that anybody may have written.

    Raises:
        ValueError: it is not JSON, is nested too deep, or holds more than `MAX_JSON_VALUES`.
    """
    if len(text) > MAX_JSON_VALUES:
        text = text if isinstance(text, str) else text.decode(json.detect_encoding(text), "surrogatepass")
        if sum(map(text.count, "[{,")) > MAX_JSON_VALUES:
            raise ValueError(f"more than {MAX_JSON_VALUES} values")
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None


def read_json(path: Path, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """Return the value of a JSON file that anybody may have written. Does not block.

    Raises:
        OSError: it is not a regular file, is larger than `max_bytes`, or cannot be read.
        ValueError: as `parse_json`.
    """
    return parse_json(read_regular(path, max_bytes))


def integer(value: Any) -> int | None:
    """Return `value` if it is an integer of at most 64 bits, else None."""
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if abs(value) <= MAX_WHOLE_NUMBER else None


def real_number(value: Any, *, finite: bool = True) -> float | None:
    """Return `value` as a float if it is a number, else None. NaN and infinities are numbers only where `finite` is False."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value) if math.isfinite(value) or not finite else None
    except OverflowError:
        return None


def json_text(value: Any) -> str:
    r"""Return `value` as indented JSON with a final newline; null for NaN and infinities, which JSON does not have.

    >>> json_text({"loss": float("nan")})
    '{\n  "loss": null\n}\n'
    """
    try:
        return json.dumps(value, indent=INDENT, allow_nan=False) + "\n"
    except ValueError:  # rare, and a copy of a large value is dear
        return json.dumps(finite(value), indent=INDENT, allow_nan=False) + "\n"


def digest_of_meaning(content: bytes) -> str:
    """Return a digest that is equal for texts of equal meaning: white space and the order of keys do not matter.

    Text that is not JSON is digested byte for byte.

    >>> digest_of_meaning(b'{"a": 1, "b": 2}') == digest_of_meaning(b'{"b":2,"a":1}')
    True
    """
    with suppress(ValueError, RecursionError):
        content = json.dumps(json.loads(content), sort_keys=True).encode()
    from hashlib import sha256  # noqa: PLC0415 - loads OpenSSL

    return sha256(content).hexdigest()


def digest_of_file(path: str | Path) -> str:
    """Return the `digest_of_meaning` of a regular file. Does not block.

    Raises:
        OSError: it cannot be read, is not a regular file, or has more than 1 GiB.
    """
    return digest_of_meaning(read_regular(path, MAX_DIGESTED_BYTES))


def finite(value: Any) -> Any:
    """Return a copy of `value` that JSON can hold: with None for NaN and infinities at any depth."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(each) for key, each in value.items()}
    return [finite(each) for each in value] if isinstance(value, list | tuple) else value


@cache
def _converter(declared: Any) -> _Converter:
    """Return the function that makes a value of the type `declared` out of what JSON holds."""
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if origin in {typing.Union, UnionType}:
        (kind,) = (each for each in arguments if each is not _NOTHING)  # no field holds one of several records
        convert_it = _converter(kind)
        return lambda value: None if value is None else convert_it(value)
    if origin is typing.Literal:
        return _checked(lambda value: value in arguments, declared)
    if origin is tuple:
        return _tuple(arguments)
    if origin is not None:  # Mapping[str, X]
        convert = _converter(arguments[1])
        return lambda value: {str(name): convert(each) for name, each in value.items()}
    if declared in {Any, object}:
        return lambda value: value
    return _record(declared) if is_dataclass(declared) else _scalar(declared)


def _record(kind: Any) -> _Converter:
    types = typing.get_type_hints(kind)
    wanted = [field for field in fields(kind) if field.init]
    needed = {field.name for field in wanted if field.default is MISSING and field.default_factory is MISSING}
    converters: dict[str, _Converter] = {}

    def convert(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise TypeError(f"{reprlib.repr(value)} is not an object")
        if not converters:  # made late, for a record may hold others of its own class
            converters.update({field.name: _converter(types[field.name]) for field in wanted})
        return kind(
            **{name: convert(value[name]) for name, convert in converters.items() if name in needed or name in value}
        )

    return convert


def _scalar(declared: Any) -> _Converter:
    if declared is float:
        numbers = {int, float}
        return lambda value: math.nan if value is None else float(_fitting(value, type(value) in numbers, declared))
    if declared is int:
        return _checked(lambda value: type(value) is int and abs(value) <= MAX_WHOLE_NUMBER, declared)
    if declared in {str, bool}:
        return _checked(lambda value: type(value) is declared, declared)
    return lambda value: declared(_fitting(value, isinstance(value, str), declared))  # paths, members of enumerations


def _tuple(kinds: tuple[Any, ...]) -> _Converter:
    converters = [_converter(kind) for kind in kinds if kind is not Ellipsis]
    is_long = kinds[-1] is Ellipsis

    def convert(value: Any) -> tuple[Any, ...]:
        items = _fitting(value, isinstance(value, list | tuple), "a list")
        if is_long:
            return tuple(map(converters[0], items))
        return tuple(each(item) for each, item in zip(converters, items, strict=True))

    return convert


def _checked(fits: Callable[[Any], bool], declared: Any) -> _Converter:
    return lambda value: _fitting(value, fits(value), declared)


def _fitting(value: Any, fits: bool, declared: Any) -> Any:
    if not fits:
        raise TypeError(f"{reprlib.repr(value)} is not {declared}")  # a value may be long and deep
    return value
