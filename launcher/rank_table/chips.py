"""What differs between the accelerators that read one and the same table format.

`auto` refuses only what no supported accelerator accepts. The limits are those of HCCL's parser, not of the tutorials:
a 910 server has 8 devices, an A2 or A3 server up to 16, a 300I server up to 32.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Chip:
    name: str
    title: str
    device_id_limit: int  # device ids are 0 .. limit - 1
    is_910: bool = False  # equal, power-of-two parts of a server, in the sets that its ring allows


CHIPS = {
    chip.name: chip
    for chip in (
        Chip("auto", "any supported accelerator", 32),
        Chip("910", "Atlas 910", 8, is_910=True),
        Chip("a2", "Atlas A2", 16),
        Chip("a3", "Atlas A3", 16),
        Chip("300i", "Atlas 300I Duo", 32),
    )
}
