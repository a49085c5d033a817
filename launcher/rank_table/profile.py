"""The hardware that a table is checked for, and the program that reads it beside HCCL."""

from __future__ import annotations

from launcher.core.frozen import frozen

# What `chip_info` says, in the names of chips.CHIPS. HCCL asks the driver instead.
CHIP_INFOS = {"910": "910", "910B": "a2", "910_93": "a3", "310P3": "300i"}


@frozen
class Chip:
    name: str
    title: str
    device_id_limit: int  # device ids are 0 .. limit - 1
    is_910: bool = False  # power-of-two parts of a server, in the sets that its ring allows
    equal_servers: bool = False  # a job uses as many devices on each server
    needs_device_ip: bool = False  # between servers, even where they have a host_ip
    reads_super_pods: bool = False  # others read v1.2 tables too, and skip super_pod_list
    is_ascend: bool = True  # False: what only HCCL asks for is a warning


CHIPS = {
    chip.name: chip
    for chip in (
        Chip("auto", "any supported accelerator", 32, reads_super_pods=True),
        Chip("910", "Atlas 910", 8, is_910=True, equal_servers=True),
        Chip("a2", "Atlas A2", 16, needs_device_ip=True),
        Chip("a3", "Atlas A3", 16, reads_super_pods=True),
        Chip("a5", "Atlas A5", 64),
        Chip("300i", "Atlas 300I Duo", 32, equal_servers=True),
        Chip("none", "CPU or GPU", 4096, is_ascend=False, reads_super_pods=True),
    )
}


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
    )
}


@frozen
class Profile:
    """Invariant: `chip` is a name in CHIPS, `consumer` one in CONSUMERS; else a KeyError is raised."""

    chip: str = "auto"
    consumer: str = "hccl"

    def __post_init__(self) -> None:
        CHIPS[self.chip], CONSUMERS[self.consumer]

    @property
    def hardware(self) -> Chip:
        return CHIPS[self.chip]
