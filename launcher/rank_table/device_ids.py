"""The devices of a server that are meant: lists of ids, the variables that show devices, UUIDs of GPUs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from launcher.core.errors import UsageError
from launcher.core.text import printable
from launcher.rank_table.profile import CHIPS

ASCEND_VARIABLES = ("ASCEND_RT_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES")  # the first one that is set counts
CUDA_VARIABLES = ("CUDA_VISIBLE_DEVICES",)
MAX_DEVICES = CHIPS["none"].device_id_limit  # on one server, in tables for CPU or GPU
_ID_OR_RANGE = re.compile(r"([0-9]{1,6})(?:\s*-\s*([0-9]{1,6}))?")
_HALF_OPEN = re.compile(r"\[\s*([0-9]{1,6})\s*,\s*([0-9]{1,6})\s*\)")  # as hccl_tools writes ranges
_UUID = re.compile(r"(GPU|MIG)-", re.IGNORECASE)
DEVICE_ID_LIMIT = CHIPS["auto"].device_id_limit  # ids are 0 .. 31 on the largest server that HCCL knows


class FoundDevice(NamedTuple):
    """A device that a machine has, or is said to have."""

    device_id: int  # physical
    device_ip: str | None = None  # None where none is set; never invented
    uuid: str | None = None  # of a GPU


def parse_device_ids(text: str, origin: str) -> tuple[int, ...]:
    """Return the ids of a list such as "0-3,6", in the order written. `origin` is the option or variable it is from.

    Raises:
        UsageError: no such list, an id twice, or one that no server has.
    """
    if text.lstrip().startswith("["):
        hint, match = 'write ids and ranges without brackets, for instance "0-3,6"', _HALF_OPEN.fullmatch(text.strip())
        if match is not None and int(match[2]) > int(match[1]):
            hint = f'write "{int(match[1])}-{int(match[2]) - 1}": a range holds both its ends'
        raise UsageError(f'{origin}: "{printable(text[:40])}" is written in brackets', hint=hint)
    ids = [one for part in text.split(",") for one in _id_or_range(part.strip(), origin)]
    if repeated := [one for one, times in Counter(ids).items() if times > 1]:
        raise UsageError(f"{origin} names device {repeated[0]} twice", hint="each device gets one rank")
    return tuple(ids)


def _id_or_range(part: str, origin: str) -> range:
    match = _ID_OR_RANGE.fullmatch(part)
    if match is None:
        raise UsageError(f'{origin}: "{printable(part[:40])}" is not a device id', hint='for instance "0-3,6"')
    first = int(match[1])
    last = first if match[2] is None else int(match[2])
    if last < first:
        raise UsageError(f'{origin}: the range "{part}" runs backwards', hint=f'write "{last}-{first}"')
    if last >= MAX_DEVICES:
        raise UsageError(
            f"{origin} names device {last}, a server has at most {MAX_DEVICES}", hint="ids start at 0 on each server"
        )
    return range(first, last + 1)


def visible_devices(
    environment: Mapping[str, str], names: Sequence[str], found: Sequence[FoundDevice] = ()
) -> tuple[str, tuple[int, ...]] | None:
    """Return the first variable of `names` that is set, and the ids it lets be seen; None where none is set.

    UUIDs of GPUs, whole or as far as they are unique, are looked up in `found`.

    Raises:
        UsageError: it is empty, hides all devices, or names a GPU that `found` has not, or a part of one.
    """
    name = next((name for name in names if name in environment), None)
    if name is None:
        return None
    parts = [part.strip() for part in environment[name].split(",")]
    if name in CUDA_VARIABLES and "-1" in parts:  # CUDA ignores what follows it
        parts = parts[: parts.index("-1")]
    if not any(parts):
        raise UsageError(f"{name} lets no device be seen", hint=f"unset {name}, or choose with --device-ids")
    numbers = [_number_of(part, found, name) if _UUID.match(part) else part for part in parts]
    return name, parse_device_ids(",".join(numbers), name)


def _number_of(uuid: str, found: Sequence[FoundDevice], origin: str) -> str:
    shown = printable(uuid[:44])
    if uuid.upper().startswith("MIG"):
        raise UsageError(
            f"{origin} names {shown}, a part of a GPU, and a table lists whole GPUs",
            hint="choose whole GPUs with --device-ids",
        )
    meant = [device for device in found if device.uuid and device.uuid.casefold().startswith(uuid.casefold())]
    if len(meant) != 1:
        raise UsageError(
            f"{origin} names {shown}, and {len(meant) or 'no'} GPUs of this machine have a UUID that starts so",
            hint="`nvidia-smi -L` shows them: choose with --device-ids",
        )
    return str(meant[0].device_id)


def select_devices(found: Sequence[FoundDevice], ids: Iterable[int], origin: str) -> tuple[FoundDevice, ...]:
    """Return those of `found` that `ids` names, in the order of `ids`.

    Raises:
        UsageError: `origin` names a device that was not found.
    """
    by_id = {device.device_id: device for device in found}
    wanted = tuple(ids)
    if missing := [one for one in wanted if one not in by_id]:
        raise UsageError(
            f"{origin} names {name_devices(missing)}, which this machine does not have",
            hint=f"it has {name_devices(by_id)}",
        )
    return tuple(by_id[one] for one in wanted)


def name_devices(ids: Iterable[int]) -> str:
    """Return the ids in words, in the order given.

    >>> name_devices([0, 1, 2, 3, 6]), name_devices([5]), name_devices([6, 2, 3])
    ('devices 0-3,6', 'device 5', 'devices 6,2-3')
    """
    runs: list[list[int]] = []
    for one in ids:
        if runs and runs[-1][-1] == one - 1:
            runs[-1].append(one)
        else:
            runs.append([one])
    words = ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"device{'' if words.isdigit() else 's'} {words}"
