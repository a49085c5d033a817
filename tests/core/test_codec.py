"""Frozen records as JSON and back, by their declared types; JSON that every reader accepts."""

import json
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest

from launcher.core.codec import decode, digest_of_meaning, encode, json_text, parse_json, read_json
from launcher.core.frozen import frozen


class Colour(str, Enum):
    RED = "red"


@frozen
class Inner:
    number: int
    share: float = 0.5


@frozen
class Outer:
    name: str
    inner: Inner
    several: tuple[Inner, ...]
    pair: tuple[int, str]
    by_name: Mapping[str, Inner]
    mode: Literal["a", "b"]
    path: Path | None
    colour: Colour
    anything: Any
    flag: bool = False


WHOLE = Outer(
    "é\udcff", Inner(1, 2.0), (Inner(2),), (3, "x"), {"k": Inner(4)}, "b", Path("/x"), Colour.RED, [1, {"z": None}]
)


def through_json(value):
    return json.loads(json.dumps(encode(value)))


def test_a_record_comes_back_as_it_was():
    assert decode(Outer, through_json(WHOLE)) == WHOLE


def test_fields_of_other_versions_are_left_out_or_take_their_defaults():
    fields = through_json(WHOLE)
    del fields["flag"], fields["inner"]["share"]
    fields["later"] = fields["several"][0]["later"] = 1
    assert decode(Outer, fields) == replace(WHOLE, inner=Inner(1))


@pytest.mark.parametrize("changes", [
    {"name": 1}, {"name": None}, {"inner": None}, {"inner": []}, {"inner": [["number", 1]]}, {"inner": "number"},
    {"inner": {}}, {"inner": {"number": True}}, {"inner": {"number": 1.0}}, {"inner": {"number": 1, "share": "1"}},
    {"inner": {"number": 1, "share": 10**400}}, {"several": {"number": 1}}, {"several": [1]}, {"several": "ab"},
    {"pair": [1]}, {"pair": [1, "x", 2]}, {"pair": ["x", 1]}, {"by_name": [1]}, {"by_name": {"k": 1}},
    {"mode": "c"}, {"mode": []}, {"path": 7}, {"colour": "green"}, {"colour": []}, {"flag": 0}, {"flag": None},
], ids=repr)  # fmt: skip
def test_what_is_of_another_type_is_refused(changes):
    with pytest.raises(ValueError, match="not a valid Outer: "):
        decode(Outer, {**through_json(WHOLE), **changes})


@pytest.mark.parametrize(
    "value", [None, 1, "number", [], ["number"], *({"number": n} for n in (1 << 63, -(1 << 63), 10**330))]
)
def test_what_is_no_object_is_no_record(value):
    with pytest.raises(ValueError, match="not a valid Inner: "):
        decode(Inner, value)


def test_a_refusal_shows_little_of_what_is_long_or_deep():
    deep = value = []
    for _ in range(5000):
        value.append([])
        value = value[0]
    for hostile in (["x" * 10**6], [0] * 10**6, deep):
        for name in ("name", "inner", "colour", "mode", "path"):
            with pytest.raises(ValueError, match="not a valid Outer") as caught:
                decode(Outer, {**through_json(WHOLE), name: hostile})
            assert len(str(caught.value)) < 300


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_json_has_not_become_null(odd):
    value = {"a": [1, {"b": odd, "c": (odd, 2.5)}], "d": "NaN", "e": [None, True, "é\udce9", {}]}
    expected = {**value, "a": [1, {"b": None, "c": [None, 2.5]}]}
    assert json.loads(json_text(value), parse_constant=pytest.fail) == expected
    assert json_text(value).endswith("}\n")


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"a":' * 100_000, "[" + "[]," * 2_000_000 + "1]", "9" * 5000, "", '"\ud800'],
    ids=["deep list", "deep object", "many values", "long number", "nothing", "half a text"],
)
def test_hostile_json_is_a_value_error(tmp_path, text):
    """However it is read: RecursionError is none that callers would expect, and short text may need much memory."""
    (tmp_path / "file").write_text(text, errors="surrogatepass")
    for read in (lambda: parse_json(text), lambda: read_json(tmp_path / "file")):
        with pytest.raises(ValueError):
            read()


def test_white_space_and_the_order_of_keys_change_no_meaning():
    objects = (b'{"v": "1", "n": "2"}', b'{"n":"2",\n"v":"1"}\n', b'{"v": "2", "n": "2"}')
    digests = [digest_of_meaning(text) for text in (*objects, b"no json", b"no  json", b"\xff")]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 5
