"""Helpers of several rules: wrong counts, unusable names, mixed address families, repeated values."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from launcher.core.text import counted
from launcher.rank_table.catalogue import Finding
from launcher.rank_table.ip import FAMILY_NAMES
from launcher.rank_table.model import integer_at, read_decimal, text_at
from launcher.rank_table.positions import Pointer

MAX_PORT = 65535
_Row = TypeVar("_Row")


def count_differs(
    at: Pointer,
    fields: Mapping[str, Any],
    key: str,
    found: int | None,
    what: str,
    *,
    listed: str | None = None,
    in_quotes: bool = True,
) -> Iterator[Finding]:
    """Yield a finding if the count under `key` differs from `found`, the actual length of the list.

    A missing count or list is not reported. The finding marks its rewrite as doubtful, since the list may be wrong
    instead. `listed` is the key of the list, for the message.
    """
    number = read_decimal(fields.get(key)) if in_quotes else integer_at(fields, key)
    written = text_at(fields, key) if in_quotes else number
    if written is None or not found or number == found:
        return
    right, shown = (f'"{found}"', f'"{written!s:.20}"') if in_quotes else (str(found), clipped(int(written)))
    there = f"but the table lists {counted(found, what)}"
    if listed is not None:
        there = f"but {listed} has {found} {'entry' if found == 1 else 'entries'}"
    hint = f"write {right}"
    if number is None:
        doubt = f"{key} is not a number, so the table may have lost a {what}"
    elif number > found:
        apart = number - found
        hint += f", or add the missing {what}{'s' if apart > 1 else ''}"
        doubt = f"either the table lost {_some(apart, what)}, or {key} is out of date"
    else:
        doubt = f"either {key} is out of date, or the table has {_some(found - number, what)} too many"
    yield Finding((*at, key), f"{key} is {shown}, {there}", hint, rewrite=right, doubt=doubt)


def name_unusable(at: Pointer, name: str | None, limit: int, hint: str, *, empty_hint: str = "") -> Iterator[Finding]:
    """Report a name longer than `limit` bytes and, if `empty_hint` is given, an empty name."""
    length = 0 if name is None else len(name.encode(errors="surrogatepass"))
    if name == "" and empty_hint:
        yield Finding(at, f"{at[-1]} is empty", empty_hint)
    elif length > limit:
        yield Finding(at, f"{at[-1]} has {length} bytes, but HCCL allows {limit}", hint)


def other_families(places: Iterable[tuple[Pointer, int | None]], what: str = "the address here") -> Iterator[Finding]:
    """Report each address whose IP version (4 or 6) differs from the first valid address.

    Invalid addresses have no family; other rules report them.
    """
    first: int | None = None
    for pointer, family in places:
        first = first or family
        if family is not None and first is not None and family != first:
            message = f"{what} is {FAMILY_NAMES[family]}, but the first address of the table is {FAMILY_NAMES[first]}"
            yield Finding(pointer, message, f"write an {FAMILY_NAMES[first]} address: a table has one kind")


def repeated(rows: Iterable[tuple[Hashable, _Row]]) -> Iterator[tuple[_Row, _Row]]:
    """Yield each row whose value has occurred before, with the first row that has this value."""
    first: dict[Hashable, _Row] = {}
    for value, row in rows:
        if value in first:
            yield row, first[value]
        else:
            first[value] = row


def counted_addresses(count: int) -> str:
    return "1 address" if count == 1 else f"{count} addresses"


def clipped(number: int) -> str:
    """Return a number as shortened text for a message."""
    text = str(number)
    return text if len(text) <= 20 else f"{text[:19]}…"


def _some(count: int, what: str) -> str:
    return f"a {what}" if count == 1 else counted(count, what)
