"""For whom a table is checked: which hardware it runs on, and which program reads it beside HCCL."""

from __future__ import annotations

from launcher.core.frozen import frozen
from launcher.rank_table.chips import CHIPS, Chip


@frozen
class Consumer:
    name: str
    title: str


CONSUMERS = {
    consumer.name: consumer
    for consumer in (
        Consumer("hccl", "HCCL alone"),
        Consumer("mindspore", "MindSpore started by hand, one process per rank"),
        Consumer("msrun", "MindSpore started by msrun"),
        Consumer("serving", "MindSpore Serving"),
        Consumer("mindie", "MindIE Service"),
    )
}


@frozen
class Profile:
    """Invariant: `chip` is a name in CHIPS, `consumer` one in CONSUMERS; a KeyError says that it is none."""

    chip: str = "auto"
    consumer: str = "hccl"

    def __post_init__(self) -> None:
        CHIPS[self.chip], CONSUMERS[self.consumer]

    @property
    def hardware(self) -> Chip:
        return CHIPS[self.chip]
