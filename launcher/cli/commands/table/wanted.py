"""What was asked of `tlaunch table generate`, and whether it goes together. Loaded by `sources`."""

from __future__ import annotations

from pathlib import Path

from launcher.core.errors import UsageError
from launcher.core.frozen import frozen
from launcher.rank_table.devices import parse_device_ids
from launcher.rank_table.generate import check_address
from launcher.rank_table.ip import address_family

DEVICE_IDS = "--device-ids"
SAME = "same"  # in place of an address: the server's own


@frozen
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
    container_ip: str | None
    pod_ip: str | None

    @property
    def addresses(self) -> dict[str, str]:
        """Keys of a server that some programs want beside those of HCCL, with an address or "same"."""
        given = {"container_ip": self.container_ip, "pod_ip": self.pod_ip}
        return {key: address for key, address in given.items() if address is not None}


def further_keys(wanted: Wanted, server_id: str) -> tuple[tuple[str, str], ...]:
    """Return the further keys of the server `server_id`, for `Server.options`.

    Raises:
        UsageError: its own address is wanted, and neither its name nor --host-ip is one.
    """
    own = next((name for name in (server_id, wanted.host_ip) if name and address_family(name)), None)
    if own is None and SAME in wanted.addresses.values():
        key = next(key for key, address in wanted.addresses.items() if address == SAME)
        raise UsageError(
            f'{_option(key)} {SAME}: the server "{server_id}" is not named by an address',
            hint="name servers by their addresses, or generate a table on each server with its own",
        )
    return tuple((key, str(own) if address == SAME else address) for key, address in wanted.addresses.items())


def _option(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def check_wanted(wanted: Wanted) -> None:
    """Raise UsageError where options do not go together, or cannot be what they say."""
    sources = _named_sources(wanted)
    if len(sources) > 1:
        raise UsageError(f"{' and '.join(sources)} all say which devices there are", hint="give one of them")
    if wanted.servers is not None:
        _check_several(wanted, sources)
    if wanted.device_ids is not None:
        parse_device_ids(wanted.device_ids, DEVICE_IDS)
    if wanted.host_ip is not None:
        check_address(wanted.host_ip, "--host-ip")
    for key, address in wanted.addresses.items():
        if address != SAME:
            check_address(address, _option(key))


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
    if different := [key for key, address in wanted.addresses.items() if address != SAME]:
        option = _option(different[0])
        raise UsageError(
            f"{option} with an address speaks of one server, --servers of several",
            hint=f"`{option} {SAME}` gives each server its own",
        )
    if not sources and wanted.device_ids is None:
        raise UsageError("--servers does not say how many devices they have", hint="add --devices 8, or --devices 8,8")
