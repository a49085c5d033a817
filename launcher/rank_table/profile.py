"""The hardware and the reading program for which a table is checked."""

from __future__ import annotations

from launcher.core.frozen import frozen

# Values of `chip_info`, with their names in CHIPS. HCCL asks the driver instead.
CHIP_INFOS = {"910": "910", "910B": "a2", "910_93": "a3", "310P3": "300i"}


@frozen
class Chip:
    name: str
    title: str
    device_id_limit: int  # device ids are 0 .. limit - 1
    is_910: bool = False  # the number of devices per server is a power of two; they form a ring
    equal_servers: bool = False  # a job uses the same number of devices on each server
    needs_device_ip: bool = False  # between servers, even if they have a host_ip
    reads_super_pods: bool = False  # other chips ignore super_pod_list in v1.2 tables
    is_ascend: bool = True  # False: requirements of HCCL are warnings


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
        Consumer("hccl", "only HCCL"),
        Consumer("mindspore", "MindSpore started by hand, one process per rank"),
        Consumer("msrun", "MindSpore started by msrun"),
    )
}


@frozen
class Profile:
    """The hardware and the program for which a table is checked.

    Raises:
        KeyError: `chip` is not in CHIPS, or `consumer` not in CONSUMERS.
    """

    chip: str = "auto"
    consumer: str = "hccl"

    def __post_init__(self) -> None:
        CHIPS[self.chip], CONSUMERS[self.consumer]

    @property
    def hardware(self) -> Chip:
        return CHIPS[self.chip]
