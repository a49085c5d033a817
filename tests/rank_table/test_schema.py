"""The shapes of objects: each field has exactly the declared type, or may be missing."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.rank_table.document import LongInteger
from launcher.rank_table.schema import MAY_BE_MISSING, Shape, Shapes, needed

VALUES = ["1", 1, True, 1.5, None, [1], {"a": 1}, LongInteger("1" * 30)]


class Base(Shape):
    text: str = needed('"0"')
    number: Any = None


class Derived(Base):
    number: int = needed("1")
    flag: bool = False
    entries: list[Any] = needed("[]")
    nested: dict[str, Any] = MAY_BE_MISSING
    whatever: Any = None


SOUND = {"text": "", "number": 0, "flag": True, "entries": [], "nested": {}, "whatever": None}


def faults(fields):
    shapes = Shapes()
    shapes.check(Derived, (), fields)
    return [(code, finding.message.split()[0]) for code, finding in shapes.findings()]


@pytest.mark.parametrize("name", SOUND)
def test_a_value_has_exactly_the_declared_type(name):
    """True is no integer, and a number with more digits than HCCL keeps is none either."""
    for value in VALUES:
        suits = name == "whatever" or type(value) is type(SOUND[name])
        assert faults({**SOUND, name: value}) == ([] if suits else [("RT205", name)])


def test_fields_that_may_be_missing():
    """All that have no example; the faults come in the order of the declarations."""
    assert faults({}) == [("RT204", name) for name in ("text", "number", "entries")]
