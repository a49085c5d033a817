"""Translation of the servers and devices in another launcher's command line to tlaunch options and a rank table."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from launcher.cli.launch.external.command_lines import Line, number
from launcher.cli.launch.external.options import TABLE, Launcher, Subject, table_of_file
from launcher.core.frozen import frozen

MAX_NAMED = 4  # servers in a suggested line; the user fills in the rest
# Default number of ranks per server. msrun limits it to --worker_num.
_DEFAULT_DEVICES: Mapping[Launcher | None, int] = {"torchrun": 1, "msrun": 8, "srun": 1}
_OF_PLACES: tuple[Subject, ...] = ("devices", "ranks", "server count", "servers", "server file")
_BY_TABLE = ("--rank-table", TABLE)
_LAYOUT = ("--dp", "--mp", "--pp")
_THIS_MACHINE = frozenset(("localhost", "127.0.0.1"))
_FILL_IN = "replace N with the number of devices"
_SERVER_COUNT = re.compile(r"(?P<fewest>[1-9][0-9]{0,5})(?::(?P<most>[1-9][0-9]{0,5}))?")


@frozen
class ServerAddresses:
    """tlaunch's options for the servers and devices of the ranks."""

    options: tuple[str, ...] = ()
    table: tuple[str, ...] = ()  # the command that creates the rank table
    several: bool = False  # the run has several servers
    from_one: bool = False  # one machine starts all servers
    notes: tuple[str, ...] = ()


def says_places(line: Line) -> bool:
    """Return True if a line has options for the ranks' servers or devices."""
    return line.has_rank_table or bool(line.of(*_OF_PLACES))


def places_of(line: Line, *, of_mpi: bool) -> ServerAddresses | None:
    """Return the servers and devices of a line's ranks; None if tlaunch has no equivalent options."""
    if line.has_rank_table:
        names = ", ".join(each.name for each in line.of(*_OF_PLACES))
        return ServerAddresses(several=True, notes=(f"{names}: taken from the rank table",) if names else ())
    engine = () if line.engine else ("--engine", "mpi")
    if line.of("server file", "servers"):
        return _of_file(line, engine) if line.of("server file") else _of_hosts(line, engine, of_mpi=of_mpi)
    return _of_numbers(line, engine, of_mpi=of_mpi)


def _of_numbers(line: Line, engine: tuple[str, ...], *, of_mpi: bool) -> ServerAddresses | None:
    """Return the servers and devices if only the numbers of ranks and servers are known."""
    count = _SERVER_COUNT.fullmatch(line.value_of("server count") or "1")
    if count is None:
        return None
    servers, devices, ranks = int(count["most"] or count["fewest"]), _devices(line), line.number_of("ranks")
    by_slurm = line.engine == "slurm" or line.launcher == "srun"
    if ranks and devices and not line.of("server count"):
        servers, devices = -(-ranks // devices), min(devices, ranks)
    elif ranks and devices is None and servers > 1 and line.launcher in {"accelerate", "srun"}:
        devices = ranks // servers
    if ranks and servers > 1 and not _fit(ranks, servers, devices, equally=by_slurm):
        return None
    per_server = devices or (ranks if servers == 1 else None)
    if servers == 1 or by_slurm:
        return _of_one_or_allocation(line, servers, per_server, engine * of_mpi)
    return _of_names(line, count, servers, per_server, engine * (of_mpi or line.launcher == "mpirun"))


def _devices(line: Line) -> int | None:
    """Return the number of ranks per server, from the line or the launcher's default."""
    if line.of("devices"):
        return line.number_of("devices")
    default, ranks = _DEFAULT_DEVICES.get(line.launcher), line.number_of("ranks")
    if ranks is None:
        return default
    return min(default, ranks) if default and line.launcher == "msrun" else None


def _fit(ranks: int, servers: int, devices: int | None, *, equally: bool) -> bool:
    """Return True if the numbers are consistent; unless `equally`, the last server may have fewer ranks."""
    if devices is None:
        return False
    return ranks == devices * servers or (not equally and devices * (servers - 1) < ranks < devices * servers)


def _of_file(line: Line, engine: tuple[str, ...]) -> ServerAddresses | None:
    """Return the servers and devices of a hostfile; if there are fewer ranks than slots, they use the first slots."""
    file, devices, ranks = line.value_of("server file"), line.number_of("devices"), line.number_of("ranks")
    if file is None or line.of("server count", "servers"):
        return None
    notes: list[str] = []
    fewer: tuple[str, ...] = ()
    if devices:
        notes.append(f"each server must have {devices} slots in {file}")
    elif ranks and not line.has_own(*_LAYOUT):
        fewer = ("--dp", str(ranks), "--allow-idle-devices")
        notes.append(f"{TABLE} contains all slots of {file}; --dp {ranks} uses the first {ranks}")
    return ServerAddresses((*engine, *_BY_TABLE, *fewer), table_of_file(file), True, True, tuple(notes))


def _of_hosts(line: Line, engine: tuple[str, ...], *, of_mpi: bool) -> ServerAddresses | None:
    """Return the servers and devices of mpirun's host list, such as `h1:4,h2`."""
    counts = _counts(line.value_of("servers") or "", line.number_of("devices"), line.number_of("ranks"))
    if "" in counts or line.of("server count"):
        return None
    if set(counts) <= _THIS_MACHINE:
        return ServerAddresses((*engine * of_mpi, "--devices", str(sum(counts.values()))))
    same = len(set(counts.values())) == 1
    each = str(next(iter(counts.values()))) if same else ",".join(map(str, counts.values()))
    return ServerAddresses((*engine, *_BY_TABLE), _generate(",".join(counts), each), True, True)


def _counts(listed: str, devices: int | None, ranks: int | None) -> Mapping[str, int]:
    """Return the number of ranks on each host of mpirun's host list, such as `h1:4,h2` or `h1,h1,h2`.

    Each host has `devices` ranks, or one rank for each of its slots. The total is `ranks` if given, in the order of the
    hosts.
    """
    counts: Counter[str] = Counter()
    for host in listed.split(","):
        name, _, slots = host.partition(":") if host.count(":") == 1 else (host, "", "")
        counts[name] += number(slots) or 1
    if devices:
        counts = Counter(dict.fromkeys(counts, devices))
    if ranks is None:
        return counts
    if ranks > counts.total():  # with --oversubscribe
        return dict.fromkeys(counts, -(-ranks // len(counts)))
    used: dict[str, int] = {}
    for name, count in counts.items():
        if (left := ranks - sum(used.values())) > 0:
            used[name] = min(count, left)
    return used


def _of_one_or_allocation(line: Line, servers: int, per_server: int | None, engine: tuple[str, ...]) -> ServerAddresses:
    """Return the devices on one machine, or on the nodes of a Slurm allocation, which does not need a rank table."""
    devices = ("--devices", "N" if per_server is None else str(per_server))
    notes: tuple[str, ...] = (_FILL_IN,) if per_server is None else ()
    by_slurm = line.engine == "slurm" or servers > 1
    if servers > 1:
        notes += (f"run it inside an allocation of {servers} nodes from salloc or sbatch",)
    elif line.launcher == "srun":
        notes += ("ranks start on this machine; to start them on the nodes of an allocation, add --engine slurm",)
    if line.launcher == "srun" and by_slurm and not line.engine:
        engine = ("--engine", "slurm")
    return ServerAddresses((*engine, *devices), several=by_slurm, notes=notes)


def _of_names(
    line: Line, count: re.Match[str], servers: int, per_server: int | None, engine: tuple[str, ...]
) -> ServerAddresses:
    """Return the servers and devices for a rank table if the line names at most the first server."""
    shown, ranks = "N" if per_server is None else str(per_server), line.number_of("ranks")
    if per_server and ranks and servers <= MAX_NAMED and ranks % per_server:  # the last one has fewer
        shown = ",".join([shown] * (servers - 1) + [str(ranks % per_server)])
    first = line.value_of("first server") or ""
    names = [name] if (name := _host(first)) else []
    others = [f"HOST{at}" for at in range(len(names) + 1, min(servers, MAX_NAMED) + 1)]
    if servers > MAX_NAMED:
        others = [*others[:1], "..."]
    notes = [f"replace {others[0]} with the name or address of the other server"]
    if len(others) > 1:
        notes = [f"replace {others[0]} and so on with the names or addresses of the {'other ' * bool(names)}servers"]
    if per_server is None:
        notes.append(_FILL_IN)
    elastic = ["--elastic"] * bool(count["most"] not in {None, count["fewest"]} and not line.has_own("--elastic"))
    from_one = bool(engine) or line.engine == "mpi"
    port = _port(first) if line.of("first server")[-1:] and not from_one else None
    meeting = ("--coordinator-port", port) if port and not line.has_own("--coordinator-port") else ()
    table = _generate(",".join((*names, *others)), shown)
    return ServerAddresses((*engine, *_BY_TABLE, *elastic, *meeting), table, True, from_one, tuple(notes))


def _generate(servers: str, devices: str) -> tuple[str, ...]:
    return ("tlaunch", "table", "generate", "--servers", servers, "--devices", devices, "--output", TABLE)


def _host(endpoint: str) -> str:
    """Return the host of `host:port`, `host` or `[address]:port`."""
    if endpoint.startswith("["):
        return endpoint[1:].partition("]")[0]
    return endpoint.partition(":")[0] if endpoint.count(":") == 1 else endpoint


def _port(endpoint: str) -> str | None:
    """Return the port of `host:port` or `[address]:port`; None if it is missing or 0 (any free port)."""
    port = endpoint.rpartition(":")[2] if "]:" in endpoint or endpoint.count(":") == 1 else ""
    return port if number(port) else None
