"""Where the devices of a new table come from: what was asked for, or what this machine has. Loaded by `generate`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from launcher.cli.commands.table.input import STDIN, read_named
from launcher.cli.commands.table.wanted import DEVICE_IDS, Wanted, check_wanted, further_keys
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
    check_server_id,
    devices_per_server,
    parse_servers,
)
from launcher.rank_table.ip import is_loopback


@frozen
class Found:
    """The devices of one server, and what a person should know about them."""

    devices: tuple[FoundDevice, ...]
    notes: tuple[Note, ...] = ()
    hardware: str | None = None  # "gpu" where it is known


@frozen
class Gathered:
    machines: tuple[Machine, ...]
    notes: tuple[Note, ...]
    hardware: str | None


def gather(wanted: Wanted, environment: Mapping[str, str]) -> Gathered:
    """Return the servers to write down, in order. Blocks while the machine is asked.

    Raises:
        UsageError: options that do not go together, devices or names that do not exist or cannot be written.
        UnreadableError, TlaunchError: a file or program that does not say what it should.
    """
    check_wanted(wanted)
    if wanted.servers is not None:
        return _several(wanted, parse_servers(wanted.servers))
    found = _here(wanted, environment)
    name, name_notes = _own_name(wanted)
    machine = Machine(name, found.devices, wanted.host_ip, further_keys(wanted, name))
    return Gathered((machine,), (*found.notes, *name_notes), found.hardware)


def _several(wanted: Wanted, names: Sequence[str]) -> Gathered:
    """Return servers of which nothing is known but their options; this machine's GPUs may stand for theirs."""
    chosen = None if wanted.device_ids is None else parse_device_ids(wanted.device_ids, DEVICE_IDS)
    if wanted.nvidia_smi:
        gpus = discover.ask_nvidia_smi()
        devices = gpus if chosen is None else select_devices(gpus, chosen, DEVICE_IDS)
        machines = [Machine(name, devices, options=further_keys(wanted, name)) for name in names]
        note = f"--nvidia-smi asks this machine, every server is taken to have the same {len(devices)}"
        return Gathered(tuple(machines), (Note(note),), "gpu")
    if wanted.devices is None:
        counts = (len(chosen or ()),) * len(names)
    else:
        counts = devices_per_server(wanted.devices, len(names))
    machines = [
        Machine(name, _counted(number, chosen), options=further_keys(wanted, name))
        for name, number in zip(names, counts, strict=True)
    ]
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
    notes: tuple[Note, ...] = ()
    has_conf = discover.HCCN_CONF.exists()
    if discover.hccn_tool() and (discover.davinci_ids() or wanted.device_ids is not None):
        try:
            return _said_first("hccn_tool", _hccn_tool(wanted, environment))
        except TlaunchError as error:
            if not has_conf or isinstance(error, UsageError):
                raise
            notes = (Note(f"hccn_tool was of no use: {error.message}", is_warning=True),)
    if has_conf:
        found = _hccn_conf(wanted, discover.HCCN_CONF, environment)
        return _said_first(str(discover.HCCN_CONF), found, *notes)
    if discover.has_nvidia_smi():
        return _said_first("nvidia-smi", _nvidia_smi(wanted, environment))
    raise UsageError(
        f"this machine has no hccn_tool with devices, no {discover.HCCN_CONF} and no nvidia-smi",
        hint="--devices N says how many devices there are, --hccn-conf FILE reads a copy of the file",
    )


def _said_first(source: str, found: Found, *notes: Note) -> Found:
    return Found(found.devices, (*notes, Note(f"devices from {source}"), *found.notes), found.hardware)


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
    return Found(_counted(number, ids[:number]), (Note(f"{variable}: {name_devices(ids[:number])}"),))


def _nvidia_smi(wanted: Wanted, environment: Mapping[str, str]) -> Found:
    gpus = discover.ask_nvidia_smi()
    return _narrowed(gpus, _chosen(wanted, environment, CUDA_VARIABLES, gpus), hardware="gpu")


def _hccn_conf(wanted: Wanted, path: Path, environment: Mapping[str, str]) -> Found:
    """Read hccn.conf. The devices that this machine's environment lets be seen count for its own file alone."""
    name = "standard input" if str(path) == STDIN else str(path)
    conf = parse_hccn_conf(decode_conf(_bytes_of(path), name), name)
    chosen = _chosen(wanted, environment if path == discover.HCCN_CONF else {}, ASCEND_VARIABLES)
    # A device that has no address is in no line of the file: one that was chosen is taken without.
    absent = [
        FoundDevice(one) for one in (chosen[1] if chosen else ()) if one not in {it.device_id for it in conf.devices}
    ]
    found = _narrowed((*conf.devices, *absent), chosen)
    notes = map(Note, conf.notes)
    return Found(found.devices, (*notes, *found.notes, *_unset_notes(found.devices)))


def _bytes_of(conf: Path) -> bytes:
    try:
        return read_named(str(conf))
    except UnreadableError as error:
        is_stdin = str(conf) == STDIN
        hint = error.hint if is_stdin else f"on a server with Ascend devices it is {discover.HCCN_CONF}"
        raise UnreadableError(error.message, hint=hint) from None


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
    wanted: Wanted, environment: Mapping[str, str], variables: Sequence[str], found: Sequence[FoundDevice] = ()
) -> tuple[str, tuple[int, ...]] | None:
    """Return the option or variable that chooses devices, and their ids; None where all are used."""
    if wanted.device_ids is not None:
        return DEVICE_IDS, parse_device_ids(wanted.device_ids, DEVICE_IDS)
    return visible_devices(environment, variables, found)


def _narrowed(
    found: Sequence[FoundDevice], chosen: tuple[str, tuple[int, ...]] | None, *, hardware: str | None = None
) -> Found:
    if chosen is None:
        return Found(tuple(found), hardware=hardware)
    origin, ids = chosen
    notes = () if origin == DEVICE_IDS else (Note(f"{origin}: {name_devices(ids)} of {len(found)}"),)
    return Found(select_devices(found, ids, origin), notes, hardware)


def _unset_notes(devices: Sequence[FoundDevice]) -> Iterator[Note]:
    unset = [device.device_id for device in devices if device.device_ip is None]
    if unset:
        text = (
            f"no address is set for {name_devices(unset)}, so the table gives no device_ip there: fine for one server, "
            f"not between servers; `hccn_tool -i {unset[0]} -ip -s address ADDRESS netmask MASK` sets one"
        )
        yield Note(text, is_warning=True)


def _own_name(wanted: Wanted) -> tuple[str, tuple[Note, ...]]:
    name = wanted.server_id
    if name is not None:
        check_server_id(name, "--server-id")
        return name, _loopback_notes(name)
    name = discover.own_server_id()
    check_server_id(name, "this machine's host name")
    return name, (Note(f'server_id: "{name}", --server-id gives it another name'), *_loopback_notes(name))


def _loopback_notes(name: str) -> tuple[Note, ...]:
    if not is_loopback(name):
        return ()
    own = discover.own_server_id()
    address = "ADDRESS" if is_loopback(own) else own
    text = (
        f'server_id "{name}" means each server itself, so `tlaunch table merge` will refuse this table: '
        f"--server-id {address} names it as other servers reach it"
    )
    return (Note(text, is_warning=True),)
