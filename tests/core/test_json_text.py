"""JSON that every reader takes."""

import doctest
import json

import pytest

import launcher.core.json_text as module
from launcher.core.json_text import digest_of_meaning
from launcher.core.json_text import json_text as as_text


def refuse(word):
    raise AssertionError(f"{word} is no JSON")


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_json_has_not_become_null(odd):
    """However deep they stand; everything around them stays."""
    value = {"a": [1, {"b": odd, "c": (odd, 2.5)}], "d": "NaN"}
    assert json.loads(as_text(value), parse_constant=refuse) == {"a": [1, {"b": None, "c": [None, 2.5]}], "d": "NaN"}


def test_other_values_stay():
    """And the text ends with its line."""
    value = {"a": [1, None, True, "é\udce9", -0.5], "b": {}}
    assert json.loads(as_text(value)) == value
    assert as_text(value).endswith("}\n")


def test_white_space_and_the_order_of_keys_change_no_meaning():
    """A value does, and what is no JSON is compared by its bytes."""
    texts = (
        b'{"v": "1", "n": "2"}',
        b'{"n":"2",\n"v":"1"}\n',
        b'{"v": "2", "n": "2"}',
        b"no json",
        b"no  json",
        b"\xff",
    )
    digests = [digest_of_meaning(text) for text in texts]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 5


def test_worked_examples_of_the_docstrings():
    """The examples in the docstrings are true."""
    assert doctest.testmod(module).failed == 0
