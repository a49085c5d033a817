"""Parse the bytes of a file into JSON values, and find the line and column of each value."""

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

_LOOKED_AT = 64  # bytes to detect an encoding without a byte order mark; a multiple of four
_HALF_A_PAIR = re.compile(r"\\u[dD][89a-fA-F]")  # a complete pair starts in the same way
OTHER_DATA = "RT117"  # the code of a text that is too dense for a rank table
_TOO_LARGE = "RT115"
_MAX_INTEGER_DIGITS = 19  # HCCL's parser turns longer integers into floats, and so does tlaunch
_MIN_DATA_VALUES = 1_000_000  # as in a v2.0 table with 65,536 ranks in two layers
_MIN_VALUE_LENGTH = 10  # characters per comma; a rank table has more than 13
_SPACED_COLON = re.compile(r'"[ \t\n\r]+:')


class LongInteger(float):
    """An integer with too many digits for a 64-bit number. Like HCCL's parser, tlaunch stores it as a float."""

    def __init__(self, digits: str) -> None:
        self.digits = len(digits.removeprefix("-"))


class Position(NamedTuple):
    """A line and a column of a text, both counted from 1. A byte order mark is not counted."""

    line: int
    column: int


class Document:
    """A JSON text, its value, and the positions of its parts.

    `value` is the parsed text. If the text has faults that can be overwritten in place, it is the value of the repaired
    text. `checkable` is True if there is a value. Faults and repeated keys are in file order.
    """

    def __init__(
        self, text: str, value: Any, faults: Iterable[Fault], repeats: Iterable[RepeatedKey], *, checkable: bool
    ) -> None:
        self.text = text
        self.value = value
        self.faults = tuple(faults)
        self.repeats = tuple(repeats)
        self.checkable = checkable
        self._scanned = text  # the text that `locate` searches, repaired if necessary

    def locate(self, pointers: Iterable[Pointer]) -> dict[Pointer, Place]:
        """Return the positions of the values at `pointers`. Values that do not exist are omitted."""
        return locate(self._scanned, set(pointers), repeated_keys=bool(self.repeats))

    @property
    def may_be_json(self) -> bool:
        """True if no JSON syntax error was found. HCCL may still refuse the text."""
        return all(fault.code in (_TOO_LARGE, OTHER_DATA) for fault in self.faults)

    def position(self, offset: int) -> Position:
        line, start = self._lines.position(offset)
        return Position(line, offset - start + 1)

    def line_text(self, line: int) -> str:
        """Return the text of a line, counted from 1, without its line ending."""
        start = self._lines.start(line)
        end = self.text.find("\n", start)
        return self.text[start : len(self.text) if end < 0 else end].rstrip("\r")

    @cached_property
    def _lines(self) -> Lines:
        return Lines(self.text)


def parse_document(data: bytes) -> Document:
    """Parse JSON as strictly as HCCL, and return faults instead of raising exceptions.

    The text is UTF-8, with or without a byte order mark. Parsing continues after faults that can be repaired in place.
    """
    text, encoding_faults = _decode(data)
    if encoding_faults and not text:
        return Document(text, None, encoding_faults, (), checkable=False)
    commas = text.count(",")
    if commas >= _MIN_DATA_VALUES and len(text) <= _MIN_VALUE_LENGTH * commas:
        # Parsed into objects, it would take many times its size.
        message = f"this is not a rank table: its {commas:,} values have {len(text) / commas:.0f} characters on average"
        hint = "choose another file; the values of a rank table have more than ten characters on average"
        dense = Fault(OTHER_DATA, text.index(","), 1, message, hint)
        return Document(text, None, (*encoding_faults, dense), (), checkable=False)
    document = _parse(text)
    document.faults = (*encoding_faults, *document.faults)
    return document


def _decode(data: bytes) -> tuple[str, list[Fault]]:
    codec = json.detect_encoding(data)
    if codec in {"utf-16", "utf-32"}:  # with a byte order mark
        return _wide(codec)
    if b"\0" in data[:4]:
        # UTF-16 or UTF-32 if the bytes between the zeros are text.
        head = data[:_LOOKED_AT].decode(codec, errors="replace")
        if not head.isspace() and head.translate(dict.fromkeys(map(ord, "\r\n\t"))).isprintable():
            return _wide(codec)
        message = "the file begins with NUL bytes, so it is not text"
        return "", [Fault("RT101", 0, 1, message, "copy or generate it again")]
    try:
        return data.decode("utf-8-sig"), []
    except UnicodeDecodeError as error:
        # Like the fault's offset, error.start does not count a byte order mark.
        body = data.removeprefix(codecs.BOM_UTF8)
        offset = len(body[: error.start].decode("utf-8"))
        message = f"byte 0x{body[error.start]:02X} is not UTF-8"
        hint = "save the file as UTF-8"
        return body.decode("utf-8", errors="replace"), [Fault("RT101", offset, 1, message, hint)]


def _wide(codec: str) -> tuple[str, list[Fault]]:
    """Return an empty text and a fault that says that the file is in UTF-16 or UTF-32 instead of UTF-8."""
    name = codec.upper()
    source = name.replace("-LE", "LE").replace("-BE", "BE")  # iconv's names
    marked = "" if source == name else " without a byte order mark"
    hint = f"convert it: `tlaunch table fix --write FILE`, or `iconv -f {source} -t UTF-8 FILE > NEW`"
    return "", [Fault("RT101", 0, 1, f"the file is encoded as {source}{marked}, but HCCL reads UTF-8", hint)]


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
    found, repeats, _ = _scan(text, max_depth=None, only_repeats=not may_hold_half_pairs)
    return Document(text, value, _in_order((*found, *too_large)), repeats, checkable=not found)


def _scan(text: str, **options: Any) -> tuple[Any, Any, str | None]:
    from launcher.rank_table.scanner import Scanner  # noqa: PLC0415 - rarely needed

    return Scanner(text, **options).run()


def _diagnose(text: str, error: Exception) -> Document:
    found, repeats, repaired = _scan(text)
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
    """A strict JSON parser that counts the keys of all parsed objects."""

    def __init__(self) -> None:
        self.keys = 0
        self.has_infinity = False  # a number exceeds a double

    def load(self, text: str) -> Any:
        return json.loads(
            text,
            object_hook=self._count,
            parse_float=self._float,
            parse_int=self._integer,
            parse_constant=_refuse_constant,
        )

    def may_repeat_keys(self, text: str) -> bool:
        """Return False if no object has a repeated key, or True if an object may have one. This is a quick check.

        In the text, each key ends in a quote, blanks and a colon. Only a string with an escaped quote can contain the
        same sequence. If there are as many sequences as keys in the parsed objects, no key was dropped.
        """
        if text.count(":") == self.keys:
            return False  # there is no other colon, even inside strings
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
    """Return a fault for each number that is too large for a double. HCCL refuses these numbers."""
    hint = "write the intended number: HCCL's limit is 1.8e308"
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
