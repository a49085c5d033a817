"""Determine the devices of a new table from options or from this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from launcher.cli.commands.table.table_files import STDIN, read_named
from launcher.core.errors import TlaunchError, UnreadableError, UsageError
from launcher.core.frozen import frozen
from launcher.rank_table import discover
from launcher.rank_table.devices import (
    ASCEND_VARIABLES,
    CUDA_VARIABLES,
    FoundDevice,
    decode_conf,
    name_devices,
    parse_device_ids,
    parse_hccn_conf,
    select_devices,
    visible_devices,
)
from launcher.rank_table.generate import (
    Machine,
    Note,
    check_address,
    check_server_id,
    devices_per_server,
    parse_servers,
)
from launcher.rank_table.ip import address_family, is_loopback

DEVICE_IDS = "--device-ids"
SAME = "same"  # used in place of the server's own address


@frozen
class Wanted:
    hccn_conf: Path | None
    hccn_tool: bool
    nvidia_smi: bool
    devices: str | None
    servers: str | None
    device_ids: str | None
    server_id: str | None
    host_ip: str | None
    container_ip: str | None
    pod_ip: str | None

    @property
    def addresses(self) -> dict[str, str]:
        """Additional keys that some programs need in a server entry. Each value is an address or "same"."""
        given = {"container_ip": self.container_ip, "pod_ip": self.pod_ip}
        return {key: address for key, address in given.items() if address is not None}


def further_keys(wanted: Wanted, server_id: str) -> tuple[tuple[str, str], ...]:
    """Return the additional keys of a server entry. The value "same" is replaced by the server's address."""
    own = next((name for name in (server_id, wanted.host_ip) if name and address_family(name)), None)
    if own is None and SAME in wanted.addresses.values():
        key = next(key for key, address in wanted.addresses.items() if address == SAME)
        raise UsageError(
            f'{_option(key)} {SAME}: the server name "{server_id}" is not an address',
            hint="use addresses as server names, or generate a table on each server",
        )
    return tuple((key, str(own) if address == SAME else address) for key, address in wanted.addresses.items())


def _option(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def _check(wanted: Wanted) -> None:
    """Raise UsageError if options conflict or have invalid values."""
    names = ("hccn_conf", "hccn_tool", "nvidia_smi", "devices")
    sources = [_option(name) for name in names if getattr(wanted, name) not in (None, False)]
    if len(sources) > 1:
        raise UsageError(f"{' and '.join(sources)} are alternative sources of devices", hint="use one of them")
    if wanted.servers is not None:
        _check_several(wanted, sources)
    if wanted.device_ids is not None:
        parse_device_ids(wanted.device_ids, DEVICE_IDS)
    if wanted.host_ip is not None:
        check_address(wanted.host_ip, "--host-ip")
    for key, address in wanted.addresses.items():
        if address != SAME:
            check_address(address, _option(key))


def _check_several(wanted: Wanted, sources: list[str]) -> None:
    own = {"--server-id": wanted.server_id, "--host-ip": wanted.host_ip}
    alone = [source for source in sources if source.startswith("--hccn")]
    if alone := [*alone, *(option for option, value in own.items() if value is not None)]:
        raise UsageError(
            f"{alone[0]} describes only this server, but --servers names several servers",
            hint="generate a table on each server, and merge the tables with `tlaunch table merge`",
        )
    if different := [key for key, address in wanted.addresses.items() if address != SAME]:
        option = _option(different[0])
        raise UsageError(
            f"{option} gives the address of one server, but --servers names several servers",
            hint=f"use `{option} {SAME}` for each server's own address",
        )
    if not sources and wanted.device_ids is None:
        raise UsageError("--servers needs --devices", hint="add --devices 8, or one number per server: --devices 8,4")


@frozen
class ServerDevices:
    """The devices of a server, with notes for the user."""

    devices: tuple[FoundDevice, ...]
    notes: tuple[Note, ...] = ()
    hardware: str | None = None  # "gpu" if known


@frozen
class Gathered:
    machines: tuple[Machine, ...]
    notes: tuple[Note, ...]
    hardware: str | None


def gather(wanted: Wanted, environment: Mapping[str, str]) -> Gathered:
    """Return the servers of the new table, in order. Blocks while the machine is queried.

    Raises UsageError if options conflict or name something that does not exist, and TlaunchError if a file is
    unreadable or a program fails.
    """
    _check(wanted)
    if wanted.servers is not None:
        return _several(wanted, parse_servers(wanted.servers))
    if wanted.devices is not None:
        found = _plain(wanted, wanted.devices, environment)
    elif wanted.nvidia_smi:
        found = _nvidia_smi(wanted, environment)
    elif wanted.hccn_conf is not None:
        found = _hccn_conf(wanted, wanted.hccn_conf, environment)
    else:
        found = (_hccn_tool if wanted.hccn_tool else _first_that_answers)(wanted, environment)
    notes, own = [*found.notes], discover.own_server_id()
    name = own if wanted.server_id is None else wanted.server_id
    check_server_id(name, "this machine's host name" if wanted.server_id is None else "--server-id")
    if wanted.server_id is None:
        notes.append(Note(f'server_id: "{name}"; use --server-id for another name'))
    if is_loopback(name):
        text = (
            f'server_id "{name}" refers to the local machine, so `tlaunch table merge` will refuse this table: '
            f"use --server-id {'ADDRESS' if is_loopback(own) else own}, an address that other servers can reach"
        )
        notes.append(Note(text, is_warning=True))
    machine = Machine(name, found.devices, wanted.host_ip, further_keys(wanted, name))
    return Gathered((machine,), tuple(notes), found.hardware)


def _several(wanted: Wanted, names: Sequence[str]) -> Gathered:
    """Return the servers that --servers names. With --nvidia-smi, all servers are assumed to have the same GPUs."""
    chosen = None if wanted.device_ids is None else parse_device_ids(wanted.device_ids, DEVICE_IDS)
    if wanted.nvidia_smi:
        gpus = discover.ask_nvidia_smi()
        devices = gpus if chosen is None else select_devices(gpus, chosen, DEVICE_IDS)
        machines = [Machine(name, devices, options=further_keys(wanted, name)) for name in names]
        text = (
            f"--nvidia-smi queries only this machine: every server is assumed to have the same {len(devices)} devices"
        )
        return Gathered(tuple(machines), (Note(text),), "gpu")
    by_ids = (len(chosen or ()),) * len(names)
    counts = by_ids if wanted.devices is None else devices_per_server(wanted.devices, len(names))
    machines = [
        Machine(name, _counted(number, chosen), options=further_keys(wanted, name))
        for name, number in zip(names, counts, strict=True)
    ]
    return Gathered(tuple(machines), (), None)


def _counted(number: int, chosen: Sequence[int] | None) -> tuple[FoundDevice, ...]:
    if chosen is not None and len(chosen) != number:
        raise UsageError(
            f"--devices {number} and --device-ids with {len(chosen)} ids differ",
            hint="remove --devices, because --device-ids already determines the number of devices",
        )
    return tuple(FoundDevice(one) for one in (range(number) if chosen is None else chosen))


def _first_that_answers(wanted: Wanted, environment: Mapping[str, str]) -> ServerDevices:
    """Return the devices from the first available source: hccn_tool, hccn.conf or nvidia-smi."""
    notes: tuple[Note, ...] = ()
    has_conf = discover.HCCN_CONF.exists()
    if discover.hccn_tool() and (discover.davinci_ids() or wanted.device_ids is not None):
        try:
            return _named("hccn_tool", _hccn_tool(wanted, environment))
        except TlaunchError as error:
            if not has_conf or isinstance(error, UsageError):
                raise
            notes = (Note(f"hccn_tool failed: {error.message}", is_warning=True),)
    if has_conf:
        return _named(str(discover.HCCN_CONF), _hccn_conf(wanted, discover.HCCN_CONF, environment), *notes)
    if discover.has_nvidia_smi():
        return _named("nvidia-smi", _nvidia_smi(wanted, environment))
    raise UsageError(
        f"no devices found on this machine; tried hccn_tool, nvidia-smi and {discover.HCCN_CONF}",
        hint="give the number of devices with --devices N, or a copy of hccn.conf with --hccn-conf FILE",
    )


def _named(source: str, found: ServerDevices, *notes: Note) -> ServerDevices:
    return replace(found, notes=(*notes, Note(f"devices from {source}"), *found.notes))


def _plain(wanted: Wanted, text: str, environment: Mapping[str, str]) -> ServerDevices:
    (number,) = devices_per_server(text, 1)
    if wanted.device_ids is not None:
        return ServerDevices(_counted(number, parse_device_ids(wanted.device_ids, DEVICE_IDS)))
    visible = visible_devices(environment, ASCEND_VARIABLES)
    if visible is None:
        return ServerDevices(_counted(number, None))
    variable, ids = visible
    if number > len(ids):
        raise UsageError(
            f"--devices {number}, but {variable} makes only {len(ids)} visible",
            hint=f"unset {variable}, or use --device-ids",
        )
    return ServerDevices(_counted(number, ids[:number]), (Note(f"{variable}: {name_devices(ids[:number])}"),))


def _nvidia_smi(wanted: Wanted, environment: Mapping[str, str]) -> ServerDevices:
    gpus = discover.ask_nvidia_smi()
    return _narrowed(gpus, _chosen(wanted, environment, CUDA_VARIABLES, gpus), hardware="gpu")


def _hccn_conf(wanted: Wanted, path: Path, environment: Mapping[str, str]) -> ServerDevices:
    """Return the devices in a copy of hccn.conf, or only the devices that the user has selected."""
    name = "standard input" if str(path) == STDIN else str(path)
    try:
        content = read_named(str(path))
    except UnreadableError as error:
        hint = error.hint if str(path) == STDIN else f"use {discover.HCCN_CONF} of a server with Ascend devices"
        raise UnreadableError(error.message, hint=hint) from None
    conf = parse_hccn_conf(decode_conf(content, name), name)
    chosen = _chosen(wanted, environment if path == discover.HCCN_CONF else {}, ASCEND_VARIABLES)
    # Devices without an address are not in the file; chosen ones are used without an address.
    known = {device.device_id for device in conf.devices}
    absent = [FoundDevice(one) for one in (chosen[1] if chosen else ()) if one not in known]
    found = _narrowed((*conf.devices, *absent), chosen)
    return ServerDevices(found.devices, (*map(Note, conf.notes), *found.notes, *_unset_notes(found.devices)))


def _hccn_tool(wanted: Wanted, environment: Mapping[str, str]) -> ServerDevices:
    present = discover.davinci_ids()
    chosen = _chosen(wanted, environment, ASCEND_VARIABLES)
    if not present and chosen is None and discover.hccn_tool():
        raise UsageError("no /dev/davinci* files found, so the devices are unknown", hint="add --device-ids 0-7")
    known = tuple(FoundDevice(one) for one in present or (chosen[1] if chosen else ()))
    narrowed = _narrowed(known, chosen)
    devices = discover.ask_hccn_tool([device.device_id for device in narrowed.devices])
    return ServerDevices(devices, (*narrowed.notes, *_unset_notes(devices)))


def _chosen(
    wanted: Wanted, environment: Mapping[str, str], variables: Sequence[str], found: Sequence[FoundDevice] = ()
) -> tuple[str, tuple[int, ...]] | None:
    """Return the option or variable that selects devices, and the selected IDs. Return None if both are unset."""
    if wanted.device_ids is not None:
        return DEVICE_IDS, parse_device_ids(wanted.device_ids, DEVICE_IDS)
    return visible_devices(environment, variables, found)


def _narrowed(
    found: Sequence[FoundDevice], chosen: tuple[str, tuple[int, ...]] | None, *, hardware: str | None = None
) -> ServerDevices:
    if chosen is None:
        return ServerDevices(tuple(found), hardware=hardware)
    origin, ids = chosen
    notes = () if origin == DEVICE_IDS else (Note(f"{origin}: {name_devices(ids)} of {len(found)}"),)
    return ServerDevices(select_devices(found, ids, origin), notes, hardware)


def _unset_notes(devices: Sequence[FoundDevice]) -> Iterator[Note]:
    unset = [device.device_id for device in devices if device.device_ip is None]
    if unset:
        text = (
            f"no address is set for {name_devices(unset)}, so device_ip is left out, but HCCL needs it between servers: "
            f"set it with `hccn_tool -i {unset[0]} -ip -s address ADDRESS netmask MASK`"
        )
        yield Note(text, is_warning=True)
