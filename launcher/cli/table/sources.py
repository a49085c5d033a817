"""Where the devices of a new table come from: what was asked for, or what this machine has. Loaded by `generate`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.core.errors import TlaunchError, UsageError
from launcher.rank_table import discover
from launcher.rank_table.generate import (
    ASCEND_VARIABLES,
    CUDA_VARIABLES,
    FoundDevice,
    Machine,
    check_host_ip,
    check_server_id,
    devices_per_server,
    name_devices,
    parse_device_ids,
    parse_servers,
    select_devices,
    visible_devices,
)
from launcher.rank_table.hccn_conf import parse_hccn_conf

DEVICE_IDS = "--device-ids"


@dataclass(frozen=True)
class Wanted:
    """The options of `generate`, as they were typed."""

    hccn_conf: Path | None
    hccn_tool: bool
    nvidia_smi: bool
    devices: str | None
    servers: str | None
    device_ids: str | None
    server_id: str | None
    host_ip: str | None


@dataclass(frozen=True)
class Found:
    """The devices of one server, and what a person should know about them."""

    devices: tuple[FoundDevice, ...]
    notes: tuple[str, ...] = ()
    hardware: str | None = None  # "gpu" where it is known


@dataclass(frozen=True)
class Gathered:
    machines: tuple[Machine, ...]
    notes: tuple[str, ...]  # lines for stderr
    hardware: str | None


def gather(wanted: Wanted, environment: Mapping[str, str]) -> Gathered:
    """The servers to write down, in order. Blocks while the machine is asked.

    Raises:
        UsageError: options that do not go together, devices or names that do not exist or cannot be written.
        UnreadableError, TlaunchError: a file or program that does not say what it should.
    """
    _check(wanted)
    if wanted.servers is not None:
        return _several(wanted, parse_servers(wanted.servers))
    found = _here(wanted, environment)
    name, name_notes = _own_name(wanted)
    return Gathered((Machine(name, found.devices, wanted.host_ip),), (*found.notes, *name_notes), found.hardware)


def _check(wanted: Wanted) -> None:
    sources = _named_sources(wanted)
    if len(sources) > 1:
        raise UsageError(f"{' and '.join(sources)} all say which devices there are", hint="give one of them")
    if wanted.servers is not None:
        _check_several(wanted, sources)
    if wanted.host_ip is not None:
        check_host_ip(wanted.host_ip)


def _named_sources(wanted: Wanted) -> list[str]:
    given = {
        "--hccn-conf": wanted.hccn_conf is not None,
        "--hccn-tool": wanted.hccn_tool,
        "--nvidia-smi": wanted.nvidia_smi,
        "--devices": wanted.devices is not None,
    }
    return [option for option, is_given in given.items() if is_given]


def _check_several(wanted: Wanted, sources: list[str]) -> None:
    alone = [source for source in sources if source.startswith("--hccn")]
    alone += ["--server-id"] * (wanted.server_id is not None) + ["--host-ip"] * (wanted.host_ip is not None)
    if alone:
        raise UsageError(
            f"{alone[0]} speaks of this server alone, --servers of several",
            hint="generate a table on each server, then `tlaunch table merge` them",
        )
    if not sources and wanted.device_ids is None:
        raise UsageError(
            "--servers does not say how many devices they have", hint="add --devices 8, or --devices 8,8,4"
        )


def _several(wanted: Wanted, names: Sequence[str]) -> Gathered:
    """Nothing is known of the other servers but what was said; this machine's GPUs may stand for theirs."""
    chosen = None if wanted.device_ids is None else parse_device_ids(wanted.device_ids, DEVICE_IDS)
    if wanted.nvidia_smi:
        gpus = discover.ask_nvidia_smi()
        devices = gpus if chosen is None else select_devices(gpus, chosen, DEVICE_IDS)
        machines = [Machine(name, devices) for name in names]
        note = f"note: --nvidia-smi asks this machine, every server is taken to have the same {len(devices)}"
        return Gathered(tuple(machines), (note,), "gpu")
    if wanted.devices is None:
        counts = (len(chosen or ()),) * len(names)
    else:
        counts = devices_per_server(wanted.devices, len(names))
    machines = [Machine(name, _counted(number, chosen)) for name, number in zip(names, counts, strict=True)]
    return Gathered(tuple(machines), (), None)


def _counted(number: int, chosen: Sequence[int] | None) -> tuple[FoundDevice, ...]:
    if chosen is not None and len(chosen) != number:
        raise UsageError(
            f"--devices {number} and --device-ids with {len(chosen)} ids differ",
            hint="--device-ids alone says how many there are",
        )
    return tuple(FoundDevice(one) for one in (range(number) if chosen is None else chosen))


def _here(wanted: Wanted, environment: Mapping[str, str]) -> Found:
    if wanted.devices is not None:
        return _plain(wanted, wanted.devices, environment)
    if wanted.nvidia_smi:
        return _nvidia_smi(wanted, environment)
    if wanted.hccn_conf is not None:
        return _hccn_conf(wanted, wanted.hccn_conf, environment)
    return _hccn_tool(wanted, environment) if wanted.hccn_tool else _first_that_answers(wanted, environment)


def _first_that_answers(wanted: Wanted, environment: Mapping[str, str]) -> Found:
    """hccn_tool, hccn.conf, nvidia-smi: the first that this machine has. A tool that fails gives way to the file."""
    notes: tuple[str, ...] = ()
    has_conf = discover.HCCN_CONF.exists()
    if discover.hccn_tool() and (discover.davinci_ids() or wanted.device_ids is not None):
        try:
            return _said_first("note: devices from hccn_tool", _hccn_tool(wanted, environment))
        except TlaunchError as error:
            if not has_conf or isinstance(error, UsageError):
                raise
            notes = (f"warning: hccn_tool was of no use: {error.message}",)
    if has_conf:
        found = _hccn_conf(wanted, discover.HCCN_CONF, environment)
        return _said_first(f"note: devices from {discover.HCCN_CONF}", found, *notes)
    if discover.has_nvidia_smi():
        return _said_first("note: devices from nvidia-smi", _nvidia_smi(wanted, environment))
    raise UsageError(
        f"this machine has no hccn_tool with devices, no {discover.HCCN_CONF} and no nvidia-smi",
        hint="--devices N says how many devices there are, --hccn-conf FILE reads a copy of the file",
    )


def _said_first(source: str, found: Found, *notes: str) -> Found:
    return Found(found.devices, (*notes, source, *found.notes), found.hardware)


def _plain(wanted: Wanted, text: str, environment: Mapping[str, str]) -> Found:
    (number,) = devices_per_server(text, 1)
    if wanted.device_ids is not None:
        return Found(_counted(number, parse_device_ids(wanted.device_ids, DEVICE_IDS)))
    visible = visible_devices(environment, ASCEND_VARIABLES)
    if visible is None:
        return Found(_counted(number, None))
    variable, ids = visible
    if number > len(ids):
        raise UsageError(
            f"--devices {number}, but {variable} lets {len(ids)} be seen",
            hint=f"unset {variable}, or give --device-ids",
        )
    return Found(_counted(number, ids[:number]), (f"note: {variable}: {name_devices(ids[:number])}",))


def _nvidia_smi(wanted: Wanted, environment: Mapping[str, str]) -> Found:
    return _narrowed(discover.ask_nvidia_smi(), _chosen(wanted, environment, CUDA_VARIABLES), hardware="gpu")


def _hccn_conf(wanted: Wanted, path: Path, environment: Mapping[str, str]) -> Found:
    name = "standard input" if str(path) == "-" else str(path)
    text = discover.read_conf(sys.stdin.buffer if str(path) == "-" else path, name)
    conf = parse_hccn_conf(text, name)
    found = _narrowed(conf.devices, _chosen(wanted, environment, ASCEND_VARIABLES))
    return Found(found.devices, (*conf.notes, *found.notes, *_unset_notes(found.devices)))


def _hccn_tool(wanted: Wanted, environment: Mapping[str, str]) -> Found:
    present = discover.davinci_ids()
    chosen = _chosen(wanted, environment, ASCEND_VARIABLES)
    if not present and chosen is None and discover.hccn_tool():
        raise UsageError("there is no /dev/davinci0 or the like, so no device is known", hint="give --device-ids 0-7")
    known = tuple(FoundDevice(one) for one in present or (chosen[1] if chosen else ()))
    narrowed = _narrowed(known, chosen)
    devices = discover.ask_hccn_tool([device.device_id for device in narrowed.devices])
    return Found(devices, (*narrowed.notes, *_unset_notes(devices)))


def _chosen(
    wanted: Wanted, environment: Mapping[str, str], variables: Sequence[str]
) -> tuple[str, tuple[int, ...]] | None:
    """What says which devices are to be used, and their ids; None where all are."""
    if wanted.device_ids is not None:
        return DEVICE_IDS, parse_device_ids(wanted.device_ids, DEVICE_IDS)
    return visible_devices(environment, variables)


def _narrowed(
    found: Sequence[FoundDevice], chosen: tuple[str, tuple[int, ...]] | None, *, hardware: str | None = None
) -> Found:
    if chosen is None:
        return Found(tuple(found), hardware=hardware)
    origin, ids = chosen
    notes = () if origin == DEVICE_IDS else (f"note: {origin}: {name_devices(ids)} of {len(found)}",)
    return Found(select_devices(found, ids, origin), notes, hardware)


def _unset_notes(devices: Sequence[FoundDevice]) -> Iterator[str]:
    unset = [device.device_id for device in devices if device.device_ip is None]
    if unset:
        yield (
            f"warning: no address is set for {name_devices(unset)}, so the table gives no device_ip there: fine for one server, "
            "but not on Atlas 910, nor between servers; "
            f"`hccn_tool -i {unset[0]} -ip -s address ADDRESS netmask MASK` sets one"
        )


def _own_name(wanted: Wanted) -> tuple[str, tuple[str, ...]]:
    name = wanted.server_id
    if name is not None:
        check_server_id(name, "--server-id")
        return name, ()
    name = discover.own_server_id()
    check_server_id(name, "this machine's host name")
    return name, (f'note: server_id: "{name}", --server-id gives it another name',)
