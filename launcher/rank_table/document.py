"""From the bytes of a file to JSON values with a line and a column for each of them."""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Iterable
from functools import cached_property
from typing import Any, NamedTuple, NoReturn

from launcher.rank_table.positions import Lines, Place, Pointer, RepeatedKey, locate
from launcher.rank_table.syntax_errors import Fault
from launcher.rank_table.tokens import END, SCALAR, next_token

_WIDE_MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
_MARKED = frozenset(name for _, name in _WIDE_MARKS)
_LOOKED_AT = 64  # bytes of a file without a byte order mark, a multiple of four
_HALF_A_PAIR = re.compile(r"\\u[dD][89a-fA-F]")  # so does a whole one start
OTHER_DATA = "RT117"  # the code of a text that is too dense for a rank table
_TOO_LARGE = "RT115"
_MAX_INTEGER_DIGITS = 19  # digits; beyond it HCCL's parser keeps a float, and so do we
_MIN_DATA_VALUES = 1_000_000  # of a v2.0 table with 65,536 ranks in two layers
_MIN_VALUE_LENGTH = 10  # characters with all that belongs to it; a rank table has more than 13 for each comma
_SPACED_COLON = re.compile(r'"[ \t\n\r]+:')


class LongInteger(float):
    """An integer of more digits than HCCL's parser keeps: the float that it makes of it."""

    def __init__(self, digits: str) -> None:
        self.digits = len(digits.removeprefix("-"))


class Position(NamedTuple):
    """A place in a text. Lines and columns count from 1; columns count characters, of which a byte order mark is none."""

    line: int
    column: int


class Document:
    """A JSON text, what it says, and where.

    `value` is what the text says, or would say without faults that can be overwritten in place; `checkable` says
    whether there is one. Faults and repeated keys are in file order.
    """

    def __init__(
        self, text: str, value: Any, faults: Iterable[Fault], repeats: Iterable[RepeatedKey], *, checkable: bool
    ) -> None:
        self.text = text
        self.value = value
        self.faults = tuple(faults)
        self.repeats = tuple(repeats)
        self.checkable = checkable
        self._scanned = text  # where `locate` looks: the text, mended when it had to be

    def locate(self, pointers: Iterable[Pointer]) -> dict[Pointer, Place]:
        """Return the places of the values at `pointers`, without those that lead nowhere. One pass over the text."""
        return locate(self._scanned, set(pointers), repeated_keys=bool(self.repeats))

    @property
    def may_be_json(self) -> bool:
        """True if nothing is known to be wrong with the text but what JSON itself allows."""
        return all(fault.code in (_TOO_LARGE, OTHER_DATA) for fault in self.faults)

    def position(self, offset: int) -> Position:
        line, start = self._lines.position(offset)
        return Position(line, offset - start + 1)

    def line_text(self, line: int) -> str:
        """Return line `line` (from 1) without its end."""
        start = self._lines.start(line)
        end = self.text.find("\n", start)
        return self.text[start : len(self.text) if end < 0 else end].rstrip("\r")

    @cached_property
    def _lines(self) -> Lines:
        return Lines(self.text)


def parse_document(data: bytes) -> Document:
    """Read JSON as strictly as HCCL does, with faults instead of exceptions.

    UTF-8, a byte order mark allowed. Faults that can be mended in place do not hide the rest.
    """
    text, encoding_faults = _decode(data)
    if encoding_faults and not text:
        return Document(text, None, encoding_faults, (), checkable=False)
    commas = text.count(",")
    if commas >= _MIN_DATA_VALUES and len(text) <= _MIN_VALUE_LENGTH * commas:
        # As objects in memory it would be many times as large.
        message = f"the file holds {commas:,} commas, one for every {max(1, round(len(text) / commas))} characters"
        hint = "this is data of another kind: name the rank table"
        dense = Fault(OTHER_DATA, text.index(","), 1, message, hint)
        return Document(text, None, (*encoding_faults, dense), (), checkable=False)
    document = _parse(text)
    document.faults = (*encoding_faults, *document.faults)
    return document


def _decode(data: bytes) -> tuple[str, list[Fault]]:
    for mark, name in _WIDE_MARKS:
        if data.startswith(mark):
            return _wide(name)
    if b"\0" in data[:4]:
        # UTF-16 or UTF-32 where what stands between the zeros is text.
        head = data[:_LOOKED_AT].decode(json.detect_encoding(data[:_LOOKED_AT]), errors="replace")
        if not head.isspace() and head.translate(dict.fromkeys(map(ord, "\r\n\t"))).isprintable():
            return _wide(json.detect_encoding(data))
        message = "the file begins with NUL bytes, so it is no text"
        return "", [Fault("RT101", 0, 1, message, "copy or generate it again")]
    try:
        return data.decode("utf-8-sig"), []
    except UnicodeDecodeError as error:
        # error.start counts from after a byte order mark, and so does the text that the fault points into.
        body = data.removeprefix(codecs.BOM_UTF8)
        offset = len(body[: error.start].decode("utf-8"))
        message = f"byte 0x{body[error.start]:02X} is not UTF-8"
        hint = "save the file as UTF-8; addresses and numbers need ASCII only"
        return body.decode("utf-8", errors="replace"), [Fault("RT101", offset, 1, message, hint)]


def _wide(codec: str) -> tuple[str, list[Fault]]:
    """Refuse UTF-16 or UTF-32, found by its mark, or without one by its zeros, which also give the byte order."""
    name = codec.upper()
    marked = "" if name in _MARKED else " without a byte order mark"
    source = name if name in _MARKED else name.replace("-LE", "LE").replace("-BE", "BE")  # as iconv calls them
    hint = f"`tlaunch table fix --write FILE` converts it, and so does `iconv -f {source} -t UTF-8 FILE > NEW`"
    return "", [Fault("RT101", 0, 1, f"the file is encoded as {source}{marked}, HCCL reads UTF-8", hint)]


def _parse(text: str) -> Document:
    loaded = _Loader()
    try:
        value = loaded.load(text)
    except (ValueError, RecursionError) as error:
        return _diagnose(text, error)
    too_large = _numbers_too_large(text) if loaded.has_infinity else []
    may_hold_half_pairs = _HALF_A_PAIR.search(text) is not None
    if not may_hold_half_pairs and not loaded.may_repeat_keys(text):
        return Document(text, value, too_large, (), checkable=True)
    from launcher.rank_table.scanner import Scanner  # noqa: PLC0415 - most tables need none

    found, repeats, _ = Scanner(text, max_depth=None, only_repeats=not may_hold_half_pairs).run()
    return Document(text, value, _in_order((*found, *too_large)), repeats, checkable=not found)


def _diagnose(text: str, error: Exception) -> Document:
    from launcher.rank_table.scanner import Scanner  # noqa: PLC0415 - most tables need none

    found, repeats, repaired = Scanner(text).run()
    faults = found or [Fault("RT102", getattr(error, "pos", 0), 1, f"not JSON: {error}")]
    if not found or repaired is None:
        return Document(text, None, _in_order(faults), repeats, checkable=False)
    loaded = _Loader()
    try:
        value = loaded.load(repaired)
    except (ValueError, RecursionError):
        return Document(text, None, _in_order(faults), repeats, checkable=False)
    if loaded.has_infinity:
        faults += _numbers_too_large(repaired)
    document = Document(text, value, _in_order(faults), repeats, checkable=True)
    document._scanned = repaired  # noqa: SLF001  # same module, same class
    return document


def _in_order(faults: Iterable[Fault]) -> list[Fault]:
    return sorted(faults, key=lambda fault: fault.offset)


class _Loader:
    """`json.loads`, strict, counting the keys that are left in its objects."""

    def __init__(self) -> None:
        self.keys = 0
        self.has_infinity = False  # some number is larger than a double can be

    def load(self, text: str) -> Any:
        return json.loads(
            text,
            object_hook=self._count,
            parse_float=self._float,
            parse_int=self._integer,
            parse_constant=_refuse_constant,
        )

    def may_repeat_keys(self, text: str) -> bool:
        """Return whether some object may hold a key twice; False only where that is certain.

        Each key in the text ends in a quote, blanks and a colon; only within strings does the same sequence stand for
        nothing, after an escaped quote. So as many of them as keys in the objects means that no key was dropped.
        """
        if text.count(":") == self.keys:
            return False  # there is no other colon, not even within a string
        return text.count('":') + len(_SPACED_COLON.findall(text)) != self.keys

    def _count(self, members: dict[str, Any]) -> dict[str, Any]:
        self.keys += len(members)
        return members

    def _integer(self, digits: str) -> int | float:
        return int(digits) if len(digits) <= _MAX_INTEGER_DIGITS else self._float(digits, LongInteger)

    def _float(self, number: str, kind: type[float] = float) -> float:
        value = kind(number)
        self.has_infinity = self.has_infinity or math.isinf(value)
        return value


def _numbers_too_large(text: str) -> list[Fault]:
    """Return an error for each number that a double cannot hold, which ends HCCL's reading; not after the JSON's end."""
    hint = "write the number that was meant; HCCL reads none beyond 1.8e308"
    found, at, depth = [], 0, 0
    while (token := next_token(text, at)).kind != END:
        at = token.end
        depth += (token.kind in "{[") - (token.kind in "}]")
        if token.kind == SCALAR and text[token.start] in "-0123456789" and math.isinf(float(text[token.start : at])):
            found.append(Fault(_TOO_LARGE, token.start, at - token.start, "this number is too large", hint))
        if depth == 0:
            break
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
