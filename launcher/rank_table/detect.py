"""Detect whether a *.json file that nobody named is meant to be a rank table."""

from __future__ import annotations

import re

from launcher.rank_table.document import OTHER_DATA, Document
from launcher.rank_table.table_format import recognise

# One of these is enough; a server_list alone is common elsewhere too.
_KEYS = frozenset({"server_count", "group_list", "group_count", "rank_list", "node_list", "deploy_mode"})
_BESIDE_SERVER_LIST = frozenset({"version", "status"})
_WORDS = (b"server_id", b"device_id", b"rank_id")
# What other JSON files have on purpose, which are read by more tolerant parsers: a byte order mark, commas, comments, words
# such as the NaN that Python writes, a number beyond all doubles.
_WORD = "RT107"
_OF_DIALECTS = frozenset({"RT101", "RT103", "RT104", _WORD, "RT115"})
_NAME = re.compile(r"(?<![a-z])(?:hccl|rank[-_ ]?table)", re.IGNORECASE)


def named_like_table(name: str) -> bool:
    """Return whether a file is called as rank tables are, whatever is in it.

    >>> [named_like_table(name) for name in ("rank_table_8pcs.json", "jobstart_hccl.json", "package.json")]
    [True, True, False]
    """
    return _NAME.search(name) is not None


def looks_like_table(data: bytes, document: Document) -> bool:
    """Return whether `document`, parsed from `data`, may be a rank table or a related file, or is no JSON at all.

    An empty file, or one that was cut off, is what is left of anything. Only a text whose faults others make on purpose
    is asked for more: whether it mentions the ids that tables consist of.
    """
    if document.faults:
        codes = {fault.code for fault in document.faults}
        on_purpose = codes <= _OF_DIALECTS and (document.checkable or _WORD in codes)  # behind a word, all was read
        if not (on_purpose or OTHER_DATA in codes) or mentions_ids(data):
            return True
    if not isinstance(document.value, dict):
        return False
    found, keys = recognise(document.value), document.value.keys()
    if found is not None and not found.is_rank_table:
        return True
    return bool(keys & _KEYS) or ("server_list" in keys and bool(keys & _BESIDE_SERVER_LIST))


def mentions_ids(data: bytes) -> bool:
    """Return whether the bytes hold one of the ids that tables consist of, in any encoding."""
    letters = data.replace(b"\0", b"")  # UTF-16 and UTF-32 too
    return any(word in letters for word in _WORDS)
