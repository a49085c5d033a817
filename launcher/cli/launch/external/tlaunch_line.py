"""Translate another launcher's command line to a tlaunch command."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from launcher.cli.launch.external.command_lines import Line, Typed, names_program, number
from launcher.cli.launch.external.options import TABLE, Launcher, Subject, table_of_file
from launcher.core.frozen import frozen
from launcher.core.text import shell_words
from launcher.preload.masking import MASK
from launcher.program.program_command import is_python

_MODULE, _NO_PYTHON = frozenset(("-m", "--module")), "--no-python"
_VARIABLES = {"--mixed-precision": "ACCELERATE_MIXED_PRECISION", "--cluster-time-out": "MS_TOPO_TIMEOUT"}
MAX_NAMED = 4  # servers in a suggested line; the user fills in the rest
# Default number of ranks per server. msrun limits it to --worker_num.
_DEFAULT_DEVICES: Mapping[Launcher | None, int] = {"torchrun": 1, "msrun": 8, "srun": 1}
_OF_PLACES: tuple[Subject, ...] = ("devices", "ranks", "server count", "servers", "server file")
_BY_TABLE = ("--rank-table", TABLE)
_LAYOUT = ("--dp", "--mp", "--pp")
_THIS_MACHINE = frozenset(("localhost", "127.0.0.1"))
_FILL_IN = "replace N with the number of devices"
_SERVER_COUNT = re.compile(r"(?P<fewest>[1-9][0-9]{0,5})(?::(?P<most>[1-9][0-9]{0,5}))?")
_OF_TABLE: tuple[Subject, ...] = ("meeting", "first server")  # the rank table replaces these


@frozen
class TlaunchLine:
    """tlaunch commands to suggest to the user, quoted for a shell."""

    table: str | None  # the command that creates the rank table
    run: str
    notes: tuple[str, ...] = ()  # on placeholders, on where to run it, and on omitted options
    unknown: tuple[str, ...] = ()  # omitted options with unknown meaning
    missing: tuple[str, ...] = ()  # omitted options without an equivalent


def tlaunch_line(
    line: Line, *, command: str = "tlaunch run", by_python: bool = False, again: bool = False
) -> TlaunchLine | None:
    """Translate a line to a tlaunch command that begins with `command`. Return None if this is impossible.

    `by_python` means that the other launcher always starts the program with Python. `again` means that the command is
    `tlaunch rerun`, which takes missing options from the recorded run.
    """
    if (program := _program(line, by_python=by_python)) is None:
        return None
    are_arguments = bool(program) and program[0].startswith("-")
    # mpirun separates several programs with `:`.
    is_cut = not line.is_clear or (are_arguments and not again) or ":" in line.program
    if is_cut or line.of("unclear"):
        return None
    of_mpi = line.launcher == "mpirun" and bool(program) and not are_arguments  # the ranks form one MPI job
    is_somewhere = line.has_rank_table or line.of(*_OF_PLACES)
    places = ServerAddresses() if again and not is_somewhere else places_of(line, of_mpi=of_mpi)
    if places is None:
        return None
    options, left_out, missing = _options(line, of_mpi="mpi" in (*places.options, *line.own), several=places.several)
    of_bare_mpi = of_mpi and not names_program(program[0]) and not line.has_own("--mpi-ranks", "--no-mpi-ranks")
    as_ranks = ("--mpi-ranks",) * of_bare_mpi  # `tlaunch run` detects MPI in Python programs
    words = [shell_words((*places.options, *as_ranks, *line.own)), *options]
    run = " ".join(filter(None, (command, *words, *(["--", shell_words(program)] if program else []))))
    notes = [*places.notes, *left_out]
    if places.table and not places.from_one:
        notes.insert(0, f"run the second command on every server, with the same {TABLE}")
    if line.unknown:
        notes.append(f"{', '.join(line.unknown)}: unknown option, left out")
    if MASK in run:
        notes.append("fill in the masked values")
    return TlaunchLine(shell_words(places.table) if places.table else None, run, tuple(notes), line.unknown, missing)


def _program(line: Line, *, by_python: bool) -> tuple[str, ...] | None:
    """Return the program and its arguments, preceded by `python` if the other launcher adds it implicitly.

    Return None if the other launcher would pass a non-Python program to Python, as in `torchrun bash run.sh`.
    """
    program, keys = line.program, {each.key for each in line.typed}
    if keys & _MODULE:
        return ("python", "-m", *program)
    if not program or _NO_PYTHON in keys:
        return program
    is_started_itself = not by_python or is_python(program[0]) or program[0] == "pytest"  # msrun starts pytest directly
    if program[0].endswith(".py") or ("/" in program[0] and not is_started_itself):
        return ("python", *program)
    return program if is_started_itself else None


def _options(line: Line, *, of_mpi: bool, several: bool) -> tuple[list[str], list[str], tuple[str, ...]]:
    """Return tlaunch's options, notes on omitted options, and the names of options without an equivalent."""
    options: list[str] = []
    missing: list[str] = []
    left_out: dict[str, list[str]] = {}
    for each in line.typed:
        if each.counterpart.here not in {None, "--env"} and line.has_own(each.counterpart.here or ""):
            words, reason = None, f"{each.counterpart.here} is also given"
        else:
            words, reason = _words(each, of_mpi=of_mpi, several=several), _reason(each, several=several)
        options += words or ()
        if words is None:
            left_out.setdefault(reason, []).append(each.name)
            missing += [each.name] * (each.counterpart.instead == reason)
    notes = [f"{', '.join(dict.fromkeys(names))}: {reason}" for reason, names in left_out.items()]
    return options, notes, tuple(dict.fromkeys(missing))


def _words(each: Typed, *, of_mpi: bool, several: bool) -> Sequence[str] | None:
    value, here = shell_words([each.value]), each.counterpart.here
    if each.counterpart.subject not in {None, *_OF_TABLE} or each.key in {*_MODULE, _NO_PYTHON}:
        return ()
    if each.key == "-x" and "=" not in each.value:  # copies the variable from this shell
        return ("--env", each.value) if several and each.value.isidentifier() else None
    if each.key in _VARIABLES:
        return ("--env", f"{_VARIABLES[each.key]}={value}")
    if here is not None:
        return (here, value) if each.values else (here,)
    if each.key == "--mca" and of_mpi:
        return [f"--engine-option={shell_words([word])}" for word in ("--mca", *each.values)]
    return ("--detach",) if each.key == "--join" and each.value == "False" else None


def _reason(each: Typed, *, several: bool) -> str:
    if each.counterpart.subject is not None:
        return "taken from the rank table" if several else "not needed on one machine"
    if each.key == "-x":
        return f"{each.value} is not a variable name" if several else "ranks inherit the variables of this shell"
    return each.counterpart.needless or each.counterpart.instead or ""


# --- the servers and devices of the ranks ---


@frozen
class ServerAddresses:
    """The tlaunch options that select the servers and devices for the ranks."""

    options: tuple[str, ...] = ()
    table: tuple[str, ...] = ()  # the command that creates the rank table
    several: bool = False  # the run has several servers
    from_one: bool = False  # one machine starts all servers
    notes: tuple[str, ...] = ()


def places_of(line: Line, *, of_mpi: bool) -> ServerAddresses | None:
    """Translate the options about servers and devices. Return None if tlaunch has no equivalent."""
    if line.has_rank_table:
        names = ", ".join(each.name for each in line.of(*_OF_PLACES))
        return ServerAddresses(several=True, notes=(f"{names}: taken from the rank table",) if names else ())
    engine = () if line.engine else ("--engine", "mpi")
    if line.of("server file", "servers"):
        return _of_file(line, engine) if line.of("server file") else _of_hosts(line, engine, of_mpi=of_mpi)
    return _of_numbers(line, engine, of_mpi=of_mpi)


def _of_numbers(line: Line, engine: tuple[str, ...], *, of_mpi: bool) -> ServerAddresses | None:
    """Translate options that set the number of ranks, devices or servers. Return None if tlaunch has no equivalent."""
    count = _SERVER_COUNT.fullmatch(line.value_of("server count") or "1")
    if count is None:
        return None
    servers, devices, ranks = int(count["most"] or count["fewest"]), _devices(line), line.number_of("ranks")
    by_slurm = line.engine == "slurm" or line.launcher == "srun"
    if ranks and devices and not line.of("server count"):
        servers, devices = -(-ranks // devices), min(devices, ranks)
    elif ranks and devices is None and servers > 1 and line.launcher in {"accelerate", "srun"}:
        devices = ranks // servers
    most = servers * (devices or 0)
    fewest = most if by_slurm else most - (devices or 0) + 1  # the last server may have fewer ranks
    if ranks and servers > 1 and not fewest <= ranks <= most:
        return None
    per_server = devices or (ranks if servers == 1 else None)
    if servers == 1 or by_slurm:
        return _of_one_or_allocation(line, servers, per_server, engine * of_mpi)
    return _of_names(line, count, servers, per_server, engine * (of_mpi or line.launcher == "mpirun"))


def _devices(line: Line) -> int | None:
    if line.of("devices"):
        return line.number_of("devices")
    default, ranks = _DEFAULT_DEVICES.get(line.launcher), line.number_of("ranks")
    if ranks is None:
        return default
    return min(default, ranks) if default and line.launcher == "msrun" else None


def _of_file(line: Line, engine: tuple[str, ...]) -> ServerAddresses | None:
    """Translate a command line that names a hostfile. If the file has more slots than ranks, use the first slots."""
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
    """Translate a line with a host list of mpirun, such as `h1:4,h2`."""
    counts = _counts(line.value_of("servers") or "", line.number_of("devices"), line.number_of("ranks"))
    if "" in counts or line.of("server count"):
        return None
    if set(counts) <= _THIS_MACHINE:
        return ServerAddresses((*engine * of_mpi, "--devices", str(sum(counts.values()))))
    same = len(set(counts.values())) == 1
    each = str(next(iter(counts.values()))) if same else ",".join(map(str, counts.values()))
    return ServerAddresses((*engine, *_BY_TABLE), _generate(",".join(counts), each), True, True)


def _counts(listed: str, devices: int | None, ranks: int | None) -> Mapping[str, int]:
    """Return the number of ranks on each host in a host list of mpirun, such as `h1:4,h2` or `h1,h1,h2`.

    Each host has `devices` ranks, or one rank per slot. If `ranks` is given, it is the total; hosts are filled in
    order.
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
    """Return the options for a run that needs no rank table: on one machine or in a Slurm allocation."""
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
    """Return the options for several servers. Servers that the line does not name get placeholders."""
    shown, ranks = "N" if per_server is None else str(per_server), line.number_of("ranks")
    if per_server and ranks and servers <= MAX_NAMED and ranks % per_server:  # the last one has fewer
        shown = ",".join([shown] * (servers - 1) + [str(ranks % per_server)])
    host, given_port = _endpoint(line.value_of("first server") or "")
    names = [host] if host else []
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
    has_port = number(given_port) and not from_one and not line.has_own("--coordinator-port")
    meeting = ("--coordinator-port", given_port) if has_port else ()
    table = _generate(",".join((*names, *others)), shown)
    return ServerAddresses((*engine, *_BY_TABLE, *elastic, *meeting), table, True, from_one, tuple(notes))


def _generate(servers: str, devices: str) -> tuple[str, ...]:
    return ("tlaunch", "table", "generate", "--servers", servers, "--devices", devices, "--output", TABLE)


def _endpoint(text: str) -> tuple[str, str]:
    """Split `host:port`, `host` or `[address]:port` into the host and the port. A missing port is ""."""
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        return host, port.removeprefix(":")
    host, _, port = text.partition(":") if text.count(":") == 1 else (text, "", "")
    return host, port
