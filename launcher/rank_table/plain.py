"""What nearly all of a table consists of, each matched in one step: members with plain values, and flat objects.

Only for speed: whatever does not match is cut into tokens and looked at one by one. No string here has a backslash.
"""

from __future__ import annotations

import re

_BLANKS = r"[ \t\n\r]*"
_STRING = r'"[^"\\\x00-\x1f]*"'
_SCALAR = rf"(?:{_STRING}|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null)"
_VALUES = rf"\[{_BLANKS}(?:{_SCALAR}{_BLANKS}(?:,{_BLANKS}{_SCALAR}{_BLANKS}){{0,64}})?\]"
_MEMBER = rf"{_STRING}{_BLANKS}:{_BLANKS}(?:{_SCALAR}|{_VALUES}){_BLANKS}"
_OBJECT = rf"\{{{_BLANKS}(?:{_MEMBER}(?:,{_BLANKS}{_MEMBER}){{0,32}})?\}}"

# A member of an object up to its comma, which is part of it, or to the closing bracket, which is not.
MEMBER = re.compile(
    rf'{_BLANKS}"(?P<key>[^"\\\x00-\x1f]*)"{_BLANKS}:{_BLANKS}(?:{_SCALAR}|{_VALUES}){_BLANKS}(?:(?P<comma>,)|(?=\}}))'
)
# An entry of a list up to its comma, which is part of it, or to the closing bracket, which is not.
ENTRY = re.compile(rf"{_BLANKS}(?:(?P<object>{_OBJECT})|{_SCALAR}){_BLANKS}(?:(?P<comma>,)|(?=\]))")
_KEY_OR_VALUE = re.compile(rf'"([^"]*)"(?:({_BLANKS}:)?)')


def has_repeated_key(flat_object: str) -> bool:
    """Whether an object that `ENTRY` matched has a key twice."""
    keys = [text for text, colon in _KEY_OR_VALUE.findall(flat_object) if colon]
    return len(set(keys)) < len(keys)
