"""Whether a *.json file that nobody named is meant to be a rank table at all."""

from __future__ import annotations

from launcher.rank_table.document import Document
from launcher.rank_table.formats import recognise

# One of these is enough; a server_list alone is common elsewhere too.
_KEYS = frozenset({"server_count", "group_list", "group_count", "rank_list", "node_list", "deploy_mode"})
_BESIDE_SERVER_LIST = frozenset({"version", "status"})
_WORDS = (b"server_id", b"device_id", b"rank_id")


def looks_like_table(data: bytes, document: Document) -> bool:
    """Whether `document`, parsed from `data`, has keys of a rank table or a related file.

    Of a text that is no JSON it is asked whether it mentions the ids that tables consist of, in any encoding.
    """
    if document.faults:
        return mentions_ids(data)
    if not isinstance(document.value, dict):
        return False
    found, keys = recognise(document.value), document.value.keys()
    if found is not None and not found.is_rank_table:
        return True
    return bool(keys & _KEYS) or ("server_list" in keys and bool(keys & _BESIDE_SERVER_LIST))


def mentions_ids(data: bytes) -> bool:
    """Whether the bytes hold one of the ids that tables consist of, in any encoding."""
    letters = data.replace(b"\0", b"")  # UTF-16 and UTF-32 too
    return any(word in letters for word in _WORDS)
