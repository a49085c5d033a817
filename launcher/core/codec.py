"""Convert records to JSON and back. Files and messages between servers use this codec.

The type of each field determines how its value is decoded. Unknown fields are ignored and missing fields take their
defaults, so versions can read each other's records. JSON has no NaN: a `float` that is null is decoded as NaN.
`integer` and `real_number` check single values in files of other programs.
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
MAX_WHOLE_NUMBER = (1 << 63) - 1  # the largest integer that system calls accept
MAX_JSON_BYTES = 64 << 20  # of a file; enough for the run.json of 50,000 ranks
MAX_DIGESTED_BYTES = 1 << 30
MAX_JSON_VALUES = 2_000_000  # in one text; parsed JSON may need 20 times the memory of its text
_NOTHING = type(None)
_Converter = Callable[[Any], Any]


def encode(value: Any) -> Any:
    """Convert `value` to types that `json.dumps` supports: dataclasses become dicts, and paths become strings."""
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
    """Convert the output of `encode` back to an object of type `kind`. Raises ValueError if `value` does not fit."""
    try:
        return cast("T", _converter(cast("Any", kind))(value))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"not a valid {kind.__name__}: {str(error)[:MAX_ERROR_CHARS]}") from error


def parse_json(text: str | bytes) -> Any:
    """Parse untrusted JSON. Raises ValueError if it is invalid, too deeply nested, or has too many values."""
    if len(text) > MAX_JSON_VALUES:
        text = text if isinstance(text, str) else text.decode(json.detect_encoding(text), "surrogatepass")
        if sum(map(text.count, "[{,")) > MAX_JSON_VALUES:
            raise ValueError(f"more than {MAX_JSON_VALUES} values")
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None


def read_json(path: Path, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """Parse an untrusted JSON file without blocking. Raises OSError or ValueError."""
    return parse_json(read_regular(path, max_bytes))


def integer(value: Any) -> int | None:
    """Return `value` if it is an integer that fits in 64 bits, else None."""
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if abs(value) <= MAX_WHOLE_NUMBER else None


def real_number(value: Any, *, finite: bool = True) -> float | None:
    """Return `value` as a float, or None if it is not a number. `finite=False` accepts NaN and infinities."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value) if math.isfinite(value) or not finite else None
    except OverflowError:
        return None


def json_text(value: Any) -> str:
    r"""Return `value` as indented JSON with a final newline. NaN and infinities become null.

    >>> json_text({"loss": float("nan")})
    '{\n  "loss": null\n}\n'
    """
    try:
        return json.dumps(value, indent=INDENT, allow_nan=False) + "\n"
    except ValueError:  # rare; copying a large value each time would be expensive
        return json.dumps(finite(value), indent=INDENT, allow_nan=False) + "\n"


def digest_of_meaning(content: bytes) -> str:
    """Return a digest of `content`. If it is JSON, white space and the order of keys do not matter.

    Text that is not JSON is digested byte for byte.

    >>> digest_of_meaning(b'{"a": 1, "b": 2}') == digest_of_meaning(b'{"b":2,"a":1}')
    True
    """
    with suppress(ValueError, RecursionError):
        content = json.dumps(json.loads(content), sort_keys=True).encode()
    from hashlib import sha256  # noqa: PLC0415 - loads OpenSSL

    return sha256(content).hexdigest()


def digest_of_file(path: str | Path) -> str:
    """Return the `digest_of_meaning` of a file. Raises OSError if it is not a regular file or exceeds 1 GiB."""
    return digest_of_meaning(read_regular(path, MAX_DIGESTED_BYTES))


def finite(value: Any) -> Any:
    """Return a copy of `value` with None in place of NaN and infinities, at any depth."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(each) for key, each in value.items()}
    return [finite(each) for each in value] if isinstance(value, list | tuple) else value


@cache
def _converter(declared: Any) -> _Converter:
    """Return the function that converts a JSON value to the type `declared`."""
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if origin in {typing.Union, UnionType}:
        (kind,) = (each for each in arguments if each is not _NOTHING)  # fields never hold a union of several records
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
        if not converters:  # built on first use, because a record may contain records of its own class
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
        raise TypeError(f"{reprlib.repr(value)} is not {declared}")  # shortened: a value may be long and deeply nested
    return value
