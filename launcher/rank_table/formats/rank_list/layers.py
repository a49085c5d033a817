"""The network layers of a v2.0 rank, and the addresses in them."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.rank_table.model import DeviceRow, Fields
from launcher.rank_table.positions import Pointer

# Keys of drafts of this format, and what they are called today.
DRAFT_KEYS = {
    "level": "net_layer",
    "id": "net_instance_id",
    "fabric_type": "net_type",
    "rank_addr_type": "addr_type",
    "rank_addrs": "rank_addr_list",
}


def levels(row: DeviceRow) -> Iterator[tuple[Pointer, Fields]]:
    """Return the layers of one rank, with pointers, as far as they are objects."""
    return _objects(row.pointer, row.fields, "level_list")


def addresses(pointer: Pointer, level: Fields) -> Iterator[tuple[Pointer, Fields]]:
    """Return the addresses of one layer, with pointers, as far as they are objects."""
    return _objects(pointer, level, "rank_addr_list")


def is_draft(level: Fields) -> bool:
    """Return whether a layer is written with the keys of a draft, and lacks those of today."""
    return "net_layer" not in level and not level.keys().isdisjoint(DRAFT_KEYS)


def _objects(pointer: Pointer, fields: Fields, key: str) -> Iterator[tuple[Pointer, Fields]]:
    value = fields.get(key)
    if isinstance(value, list):
        for index, entry in enumerate(value):
            if isinstance(entry, dict):
                yield (*pointer, key, index), entry
