"""Text that is no JSON: each fault at its line and column. The mark ¦ stands where the caret must."""

import codecs
import json
import math
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.rank_table import parse_rank_table, render_table
from launcher.rank_table.document import parse_document

from .tables import MAKERS, VALUES, mangled

FAULTS = {
    "trailing comma in a list": ("RT103", '{"a": [\n  "x"¦,\n]}', True),
    "trailing comma in an object": ("RT103", '{\n "a": 1¦,\n}', True),
    "comma twice": ("RT103", "[1,¦, 2]", True),
    "comma first": ("RT103", "[¦, 2]", True),
    "line comment": ("RT104", '{"a": 1 ¦// why\n}', True),
    "hash comment": ("RT104", "¦# why\n[1]", True),
    "block comment": ("RT104", "[1, ¦/* two\n lines */ 2]", True),
    "open comment": ("RT104", "[1, ¦/* for ever", False),
    "missing comma": ("RT105", '{"a": "x"¦\n "b": "y"}', True),
    "missing comma without a blank": ("RT105", '["x"¦"y"]', False),
    "missing colon": ("RT105", '{"a"¦ "x"}', True),
    "string not closed": ("RT106", '{"a": ¦"x,\n "b": "y"}', False),
    "bad escape": ("RT106", '["C:¦\\data"]', False),
    "control character": ("RT106", '["a¦\x01"]', False),
    "tab in a string": ("RT106", '["a¦\tb"]', False),
    "half a surrogate pair": ("RT106", '["x", ¦"\\ud800"]', False),
    "bare key": ("RT107", "{¦a: 1}", False),
    "bare word": ("RT107", '{"a": ¦completed}', False),
    "Python's words": ("RT107", '{"a": ¦True}', False),
    "not a number": ("RT107", '{"a": ¦NaN}', False),
    "number with a zero before it": ("RT107", '{"a": ¦01}', False),
    "single quotes": ("RT107", "{\"a\": ¦'x'}", True),
    "missing opening quote": ("RT107", '{"a": ¦x"}', False),
    "template": ("RT107", '{"a": ¦<address>}', False),
    "ends inside a string": ("RT108", '{"a": ¦"x', False),
    "ends inside an object": ("RT108", '{"a": [1, 2¦]\n', False),
    "ends after a comma": ("RT108", "[1¦,", False),
    "ends after a key": ("RT108", '{"a"¦:', False),
    "text after the table": ("RT109", '{"a": 1}\n¦}', True),
    "second document": ("RT109", "[1] ¦[2]", True),
    "too deep": ("RT110", "[" * 100 + "¦" + "[" * 20_000, False),
    "empty": ("RT111", "¦", False),
    "blank": ("RT111", "¦ \n\t\n", False),
    "wrong closing bracket": ("RT112", '{"a": [1, 2¦}}', False),
    "list not closed before a key": ("RT112", '{"a": [1,\n "b"¦: 2}', False),
    "ellipsis": ("RT113", "[1, ¦..., 9]", False),
    "ellipsis as one character": ("RT113", "[1,\n ¦…\n]", False),
    "ellipsis in an object": ("RT113", '{"a": 1, ¦...}', False),
    "key missing": ("RT102", "{¦1: 2}", False),
    "value missing": ("RT102", '{"a": ¦}', False),
    "value missing before a comma": ("RT102", '{"a": ¦, "b": 1}', False),
    "key without value": ("RT102", '{"a"¦}', False),
    "two words": ("RT102", '{"a": 1 ¦b}', False),
    "typographic quotes": ("RT102", '{"a": ¦“x”}', True),
    "full-width comma": ("RT102", '{"a": "x"¦， "b": 1}', True),  # noqa: RUF001
    "number too large": ("RT115", '{"a": [0.5, ¦1e999]}', True),
    "number too small": ("RT115", '{"a":\n ¦-1e400, "b": "1e999"}', True),
    "integer too large": ("RT115", "[¦1" + "0" * 400 + "]", True),
    "only a bracket": ("RT102", "¦]", False),
}  # fmt: skip


def cut(marked):
    """The text without its mark, and the line and column of the mark."""
    before, after = marked.split("¦")
    return before + after, (before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_named_at_its_line_and_column(name):
    code, marked, checkable = FAULTS[name]
    text, position = cut(marked)
    document = parse_document(text.encode())
    assert [(fault.code, document.position(fault.offset)) for fault in document.faults] == [(code, position)]
    assert document.faults[0].hint
    assert document.checkable is checkable


def test_mended_text_says_what_was_meant():
    document = parse_document(b'{ // a table\n \'a\': [1, 2,],\n "b" "x"\n "c": {"d": 4,},\n}')
    assert document.value == {"a": [1, 2], "b": "x", "c": {"d": 4}}
    assert [fault.code for fault in document.faults] == ["RT104", "RT107", "RT103", "RT105", "RT105", "RT103", "RT103"]


def test_places_in_mended_text_are_those_of_the_file():
    document = parse_document(b'{"a": 1, // one\n "b": [2,\n  3,]}')
    assert document.position(document.locate([("b", 1)])[("b", 1)].start) == (3, 3)


def test_repeated_keys_are_found_wherever_they_are():
    document = parse_document(b'{"a": 1,\n "l": [{}, {"x": 1,\n "x": 2}],\n "a": {"y": 1}}')
    found = [(repeat.pointer, document.position(repeat.again)) for repeat in document.repeats]
    assert found == [(("l", 1, "x"), (3, 2)), (("a",), (4, 2))]
    assert document.value == {"a": {"y": 1}, "l": [{}, {"x": 2}]}
    places = document.locate([("a", "y"), ("l", 1, "x")])
    assert document.position(places["a", "y"].start) == (4, 13)
    assert document.position(places["l", 1, "x"].start) == (3, 7)


def test_byte_order_mark_is_accepted_and_counts_as_no_column():
    document = parse_document(b'\xef\xbb\xbf{"a": tru}')
    assert document.position(document.faults[0].offset) == (1, 7)
    assert parse_document(b'\xef\xbb\xbf{"a": 1}').value == {"a": 1}


def test_invalid_utf_8_is_shown_at_its_byte_and_the_rest_is_read():
    for mark in (b"", codecs.BOM_UTF8):
        document = parse_document(mark + '{"ä": 1,\n "ö'.encode() + b'\xff": 2}')
        (fault,) = document.faults
        assert (fault.code, document.position(fault.offset)) == ("RT101", (2, 4))
        assert "0xFF" in fault.message
        assert document.value["ä"] == 1
        document = parse_document(mark + b'["ab\xfe"]')
        assert document.position(document.faults[0].offset) == (1, 5)


def test_huge_numbers_are_read_without_trouble():
    assert parse_document(f'{{"a": {"9" * 300}}}'.encode()).faults == ()
    document = parse_document(f'{{"a": {"9" * 100_000}, "b": "x"}}'.encode())
    assert [fault.code for fault in document.faults] == ["RT115"]
    assert document.value["b"] == "x"


def test_numbers_too_large_are_named_beside_other_faults():
    document = parse_document(b'{"a": 1e999, // one\n "b": [-1e999, "1e999"], "b": 1e308}\n1e999')
    found = [(fault.code, *document.position(fault.offset)) for fault in document.faults]
    assert found == [("RT115", 1, 7), ("RT104", 1, 14), ("RT115", 2, 8), ("RT109", 3, 1)]
    assert len(document.repeats) == 1
    assert parse_document(b'["\\u0041", 1e999]').faults[0].code == "RT115"


def test_long_lists_of_faults_are_reported_completely():
    document = parse_document(("[" + "1, // one\n" * 10_000 + "1]").encode())
    assert len(document.faults) == 10_000
    assert len(document.value) == 10_001


def strict_loads(text):
    """Python's parser without NaN, the infinities, and numbers that are read as one."""

    def refuse(name):
        raise ValueError(name)

    def finite(number):
        return refuse(number) if math.isinf(float(number)) else float(number)

    return json.loads(text, parse_constant=refuse, parse_float=finite)


def is_json(text):
    try:
        strict_loads(text)
    except ValueError:
        return False
    return True


TABLE = (
    '{"version": "1.0", "server_list": [{"server_id": "a", "device": [{"device_id": "0"}, 12, -1.5e3]}],\n'
    ' "x": [true, null, {}, []], "y": "\\n\\"\\\\"}'
)
PIECES = st.one_of(st.sampled_from(list("{}[],:\"'/*#.\n 0-eE+\x00\x7fé…")), st.sampled_from(string.ascii_letters))


@given(mangled(TABLE, PIECES), st.binary(max_size=200))
def test_faults_are_found_exactly_where_json_refuses(text, data):
    """A mangled table has faults when Python's own strict parser refuses it, and only then; any bytes get an answer."""
    document = parse_document(data)
    assert document.faults or document.checkable
    document = parse_document(text.encode())
    assert bool(document.faults) is not is_json(text)
    if not document.faults:
        assert document.value == strict_loads(text)
    for fault in document.faults:
        assert 0 <= fault.offset <= len(text)
        line, column = document.position(fault.offset)
        assert len(document.line_text(line)) + 1 >= column >= 1


def pointers_of(value, way=()):
    yield way, value
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in members:
        yield from pointers_of(inner, (*way, name))


@given(VALUES, st.sampled_from([None, 0, 2]), st.booleans(), st.data())
def test_every_value_is_located(value, indent, ascii_only, data):
    text = " \n" + json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    known = dict(pointers_of(value))
    asked = data.draw(st.lists(st.sampled_from(list(known)), min_size=1, unique=True))
    places = parse_document(text.encode()).locate([*asked, ("nowhere", 7)])
    assert set(places) == set(asked)
    for pointer, place in places.items():
        assert json.JSONDecoder().raw_decode(text, place.start)[0] == known[pointer]
        if pointer and isinstance(pointer[-1], str):
            assert json.JSONDecoder().raw_decode(text, place.key)[0] == pointer[-1]


def test_rendered_table_is_what_the_parser_reads(table, report):
    document = parse_document(render_table(report(table(2, 2)).cluster).encode())
    assert document.faults == ()
    assert document.value == table(2, 2)


SIZES = {"servers": (2, 2), "pods": (2, 1, 2), "nodes": (1, 2, "1.2"), "ranks": (2, 1), "lab": (1, 2), "cloud": (2, 1)}


@given(data=st.data(), kind=st.sampled_from(sorted(SIZES)))
def test_one_deleted_character_is_refused_near_its_place(data, kind):
    text = json.dumps(MAKERS[kind](*SIZES[kind]), indent=1)
    at = data.draw(st.sampled_from([n for n, char in enumerate(text) if char in '{}[]:,"']))
    report = parse_rank_table((text[:at] + text[at + 1 :]).encode(), Path("table.json"))
    assert report.cluster is None
    damage = next(problem for problem in report.problems if problem.code.startswith("RT1"))
    opening = text.rfind('"', 0, at) if text[at] == '"' else at
    assert damage.line >= text.count("\n", 0, max(opening, 0))
