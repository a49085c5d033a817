"""The shape of a table's objects: required keys and types of values. Imported only when a table is read.

Like HCCL, this is strict: if a key needs a string, a number is refused. The content of strings is checked by rules.
Pydantic finds the faults. It is loaded only for an object that is not obviously valid, because importing it takes
longer than the rest of the check.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from launcher.rank_table.catalogue import Finding, Found
from launcher.rank_table.document import LongInteger
from launcher.rank_table.model import Fields, read_decimal
from launcher.rank_table.positions import Pointer

if TYPE_CHECKING:
    from pydantic import BaseModel

# Limit of reported shape faults: a list of a million numbers is one mistake, not a million.
MAX_FAULTS = 1000
DEVICE_ID = "device_id"
LAB_DEVICES = 8  # per server in a legacy-lab table, each in its own instance
OPTIONAL_LISTS = frozenset({"super_pod_list"})
_WANTED = {"string_type": "a string", "int_type": "an integer", "list_type": "a list", "bool_type": "true or false"}
_WHY = {
    "string_type": "in this format, HCCL reads numbers only from strings",
    "int_type": "in this format, HCCL reads numbers without quotes",
}
_Signature = tuple[type["Shape"], tuple[str, ...]] | tuple[type["Shape"], tuple[str, ...], tuple[type, ...]]


MAY_BE_MISSING: Any = None  # for optional fields whose type has no default value


class _Needed(str):
    """The example value of a required field."""

    __slots__ = ()


def needed(example: str) -> Any:
    """Declare a required field. If the field is missing or invalid, a hint suggests the value `example`."""
    return _Needed(example)


class Field(NamedTuple):
    kind: type  # `object` for any type
    annotation: Any  # the type for pydantic
    example: str | None  # None: the field is optional

    def suits(self, fields: Fields, name: str) -> bool:
        """Return True if a quick check finds the field valid. False means that only a full check can decide."""
        return type(fields[name]) is self.kind or self.kind is object if name in fields else self.example is None


# Keyed by the text of the annotation, because evaluating annotations is slower.
_KINDS: Mapping[str, tuple[type, Any]] = {
    "str": (str, str),
    "int": (int, int),
    "bool": (bool, bool),
    "list[Any]": (list, list[Any]),
    "dict[str, Any]": (dict, dict[str, Any]),
    "Any": (object, Any),
}


class Shape:
    """The expected fields of one kind of JSON object. `Shapes.entries` checks fields of the type `list[Any]`.

    Checks depend only on keys and types, never on values: objects with equal keys and types are checked once. Keys that
    a reader knows are declared, as `Any` if their type does not matter. Other keys are reported as unknown.
    """

    @classmethod
    @cache
    def fields(cls) -> Mapping[str, Field]:
        """Return the fields of this class and its base classes."""
        declared = {}
        for base in reversed(cls.__mro__):
            for name, text in getattr(base, "__annotations__", {}).items():
                value = vars(base)[name]
                declared[name] = Field(*_KINDS[text], value if isinstance(value, _Needed) else None)
        return declared

    @classmethod
    @cache
    def model(cls) -> type[BaseModel]:
        """Return a pydantic model with these fields."""
        from pydantic import ConfigDict, create_model  # noqa: PLC0415 - rarely needed

        fields: dict[str, Any] = {
            name: (field.annotation, None if field.example is None else ...) for name, field in cls.fields().items()
        }
        return create_model(cls.__name__, __config__=ConfigDict(strict=True, extra="ignore"), **fields)


class Shapes:
    """Collects the structural errors of a document: at most `at_most` errors, and one warning per unknown key."""

    def __init__(self, at_most: int = MAX_FAULTS) -> None:
        self._at_most = at_most
        self._known: dict[_Signature, tuple[list[tuple[str, str]], list[str]]] = {}
        self._faults: list[Found] = []
        self.complete = True  # every required list exists, and every entry was read
        self.full = False  # too many faults: the rest is not checked
        self.keys: set[str] = set()  # the keys of all checked objects
        self._free_ids: Iterator[int] = iter(())  # unused device ids of the current list
        self._unknown: dict[tuple[type[Shape], str], tuple[Pointer, Fields, int]] = {}  # first use, and number of uses

    def check(self, shape: type[Shape], pointer: Pointer, fields: Fields) -> None:
        """Record missing keys, wrong types and unknown keys of the object at `pointer`."""
        signature: _Signature
        try:
            "".join(fields.values())  # the fastest check that all values are strings
            signature = (shape, tuple(fields))
        except TypeError:
            signature = (shape, tuple(fields), tuple(map(type, fields.values())))
        known = self._known.get(signature)
        if known is None:
            known = self._known[signature] = _shape_faults(shape, fields)
            self.keys.update(fields)
        faults, unknown = known
        for kind, name in faults:
            code, finding = _finding(shape, pointer, fields, kind, name)
            if kind == "missing" and name == DEVICE_ID and (free := next(self._free_ids, None)) is not None:
                finding = replace(finding, hint=f'add "{DEVICE_ID}": "{free}", or use the ID that the driver shows')
            self.note(code, finding)
        for key in unknown:
            if len(self._unknown) >= self._at_most and (shape, key) not in self._unknown:
                break
            first, around, uses = self._unknown.get((shape, key), (pointer, fields, 0))
            self._unknown[shape, key] = first, around, uses + 1

    def entries(self, pointer: Pointer, fields: Fields, key: str) -> Iterator[tuple[Pointer, Fields]]:
        """Yield each object in the list under `key` with its JSON pointer, until there are too many faults.

        Empty lists and entries that are not objects are recorded and skipped. `check` records lists that are missing or
        of the wrong type.
        """
        value = fields.get(key)
        if not isinstance(value, list):
            self.complete = self.complete and key in OPTIONAL_LISTS and key not in fields
            return
        if not value:
            self.note("RT206", Finding((*pointer, key), f"{key} is empty", "add at least one entry"))
        at = (*pointer, key)
        self._free_ids = _free_ids(pointer, value)
        for index, entry in enumerate(value):
            if self.full:
                return
            if isinstance(entry, dict):
                yield at + (index,), entry  # noqa: RUF005 - twice as fast as (*at, index)
            else:
                self.complete = False
                message = f"an entry of {key} must be an object, not {shown(entry)}"
                self.note("RT205", Finding((*pointer, key, index), message))

    def note(self, code: str, finding: Finding) -> None:
        if len(self._faults) < self._at_most:
            self._faults.append((code, finding))
        else:
            self.full = True

    def findings(self) -> Iterator[Found]:
        """Yield all recorded findings. If there were more than `at_most`, the last finding says so."""
        if self.full:
            code, last = self._faults[-1]
            message = f"{last.message} (and more like it; the rest is not checked)"
            self._faults[-1] = code, replace(last, message=message)
        yield from self._faults
        for (shape, key), (pointer, fields, uses) in self._unknown.items():
            more = f" (and {uses - 1} more like it)" if uses > 1 else ""
            message = f'key "{key[:40]}" is unknown{more}'
            yield "RT401", Finding((*pointer, key), message, _similar(key, shape, fields), at_key=True)


def _free_ids(pointer: Pointer, entries: list[Any]) -> Iterator[int]:
    """Yield the unused device ids of a device list. If it has only one entry, start at the index of its instance."""
    used = {read_decimal(entry.get(DEVICE_ID)) for entry in entries if isinstance(entry, dict)}
    first = pointer[-1] if len(entries) == 1 and pointer and isinstance(pointer[-1], int) else 0
    return (number for number in count(first % LAB_DEVICES) if number not in used)


def _shape_faults(shape: type[Shape], fields: Fields) -> tuple[list[tuple[str, str]], list[str]]:
    declared = shape.fields()
    unknown = [key for key in fields if key not in declared]
    if all(field.suits(fields, name) for name, field in declared.items()):
        return [], unknown
    from pydantic import ValidationError  # noqa: PLC0415 - rarely needed

    try:
        shape.model().model_validate(fields)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        return [(detail["type"], str(detail["loc"][0])) for detail in details], unknown
    return [], unknown


def _finding(shape: type[Shape], pointer: Pointer, fields: Fields, kind: str, name: str) -> Found:
    if kind == "missing":
        example = shape.fields()[name].example
        return "RT204", Finding(pointer, f"{name} is missing here", f'add "{name}": {example}')
    wanted = _WANTED.get(kind, "an object")
    message = f"{name} must be {wanted}, not {shown(fields[name])}"
    if name == "version":
        return "RT205", Finding((*pointer, name), message, f"write {shape.fields()[name].example}, in quotes")
    if kind == "int_type" and isinstance(fields[name], LongInteger):
        message = f"{name} has {fields[name].digits} digits, too many for HCCL"
        return "RT205", Finding((*pointer, name), message, "write a number of at most 10 digits")
    rewrite = None if name.endswith("_ip") else _retyped(kind, fields[name])
    hint = None if rewrite is None else f"write {rewrite}: {_WHY[kind]}"
    return "RT205", Finding((*pointer, name), message, hint or f"write {wanted}", rewrite=rewrite)


def shown(value: Any) -> str:
    """Return a value as shortened text for a message."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, LongInteger):
        return f"a number of {value.digits} digits"
    if isinstance(value, float) and math.isinf(value):
        return "a number that is too large"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:39]}…"


def _retyped(kind: str, value: Any) -> str | None:
    """Add or remove quotes to give the value the required type. Return it as JSON, or None if this is impossible."""
    if kind == "string_type" and isinstance(value, int) and not isinstance(value, bool):
        return f'"{json.dumps(value)}"'
    if kind == "int_type" and isinstance(value, str) and value.isdecimal() and value.isascii() and len(value) < 10:
        return str(int(value))
    return None


def _similar(key: str, shape: type[Shape], fields: Fields) -> str:
    """Return a hint for an unknown key, such as the name of a similar key."""
    near = difflib.get_close_matches(key[:64], sorted(shape.fields()), n=1, cutoff=0.6)
    if near and near[0] in fields:
        return f'remove it: the object already has "{near[0]}"'
    return f'did you mean "{near[0]}"?' if near else "remove it, or keep it: HCCL ignores it"
