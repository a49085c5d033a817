"""How a value in a JSON document is named, and where it stands in the text."""

from __future__ import annotations

from typing import NamedTuple

Pointer = tuple[str | int, ...]  # ("server_list", 0, "server_id"): the way from the top of the document to a value


class Place(NamedTuple):
    """Where a value stands, as offsets into the text."""

    key: int | None  # where its key starts; None for list items and the document itself
    start: int
    end: int  # of its first token: a container's place is its opening bracket


class RepeatedKey(NamedTuple):
    """A key that an object has twice."""

    pointer: Pointer
    first: int  # offset of the first use of the key
    again: int  # offset of a use that replaces it


def json_pointer(pointer: Pointer) -> str:
    """RFC 6901.

    >>> json_pointer(("server_list", 0, "a/b"))
    '/server_list/0/a~1b'
    """
    return "".join(f"/{str(name).replace('~', '~0').replace('/', '~1')}" for name in pointer)
