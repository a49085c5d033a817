"""Put the entries of a table's lists in the order of their ranks, by moving their text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from launcher.rank_table.document import Document
from launcher.rank_table.edits import Edit
from launcher.rank_table.model import Table
from launcher.rank_table.positions import Pointer, value_end
from launcher.rank_table.table_format import RANKED


class Move(NamedTuple):
    """One list whose entries change places."""

    pointer: Pointer  # of the list
    entries: int
    edits: tuple[Edit, ...]  # each puts one entry's text where another one stood


def moves_by_rank(document: Document, table: Table) -> Iterator[Move]:
    """Yield the lists whose entries are not in the order of their ranks, each with the edits that sort it.

    A list that holds another one of them is left for the next time. Nothing where ranks are not written in the table,
    or are not sound.
    """
    if table.format not in RANKED or not table.ranks_are_sound:
        return
    # Only lists of which every entry has a rank, and whose ranks do not ascend.
    unsorted = {}
    for pointer, ranks in _lists(table).items():
        order = sorted(ranks, key=ranks.__getitem__)
        if sorted(ranks) == list(range(len(ranks))) != order:
            unsorted[pointer] = order
    around = {pointer[:length] for pointer in unsorted for length in range(len(pointer))}
    inner = {pointer: order for pointer, order in unsorted.items() if pointer not in around}
    places = document.locate((*pointer, index) for pointer, order in inner.items() for index in order)
    for pointer, order in inner.items():
        starts = [places[(*pointer, index)].start for index in range(len(order))]
        spans = [(start, value_end(document.text, start)) for start in starts]
        moved = ((spans[index], spans[source]) for index, source in enumerate(order) if index != source)
        yield Move(pointer, len(order), tuple(Edit(*to, document.text[slice(*of)]) for to, of in moved))


def _lists(table: Table) -> Mapping[Pointer, dict[int, int]]:
    """Return the lowest rank in each entry, by the entry's index, of every list on the way to a device."""
    lists: defaultdict[Pointer, dict[int, int]] = defaultdict(dict)
    for device in table.devices:
        for depth, index in enumerate(device.pointer):
            if isinstance(index, int) and device.global_rank is not None:
                ranks = lists[device.pointer[:depth]]
                ranks[index] = min(device.global_rank, ranks.get(index, device.global_rank))
    return lists
