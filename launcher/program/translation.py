"""The command line of tlaunch that does what one of torchrun, msrun or mpirun does."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from launcher.core.env import MASK, masked_argv
from launcher.core.frozen import frozen
from launcher.program.launcher_options import Counterpart, Subject, counterpart

TABLE = "table.json"
MAX_NAMED = 4  # servers that a line names; more are left to be filled in
_INTERPRETER = re.compile(r"(?:.*/)?python(?:3(?:\.\d+)?)?")
_MODULE, _NO_PYTHON, _MCA = ("-m", "--module"), "--no-python", ("--mca", "-mca")
_OF_TABLE: tuple[Subject, ...] = ("meeting", "first server")  # what these say is found from it
_RANK_TABLE = ("-t", "--rank-table")


@frozen
class TlaunchLine:
    """What to type. Everything is quoted for a shell."""

    table: str | None  # the command that makes the rank table first
    run: str
    notes: tuple[str, ...]  # on what has to be filled in or typed where, and on options that are left out


@frozen
class Typed:
    """An option of another launcher as it was typed, with its values."""

    name: str
    values: tuple[str, ...]
    counterpart: Counterpart

    @property
    def value(self) -> str:
        return self.values[-1] if self.values else ""

    @property
    def key(self) -> str:
        return self.name.replace("_", "-")


@frozen
class Parsed:
    """The words of a line, taken apart: options, then a program with its arguments."""

    own: tuple[str, ...]  # tlaunch's own options, with their values
    typed: tuple[Typed, ...]
    unknown: tuple[str, ...]
    program: tuple[str, ...]

    def of(self, *subjects: Subject) -> list[Typed]:
        return [each for each in self.typed if each.counterpart.subject in subjects]


@frozen
class _Places:
    """Where the ranks are."""

    options: tuple[str, ...]
    table: tuple[str, ...] = ()  # the words that make the rank table
    from_one: bool = False  # the run is started from one machine
    note: str | None = None


def parsed(words: Sequence[str], own: Mapping[str, int]) -> Parsed:
    """Take the words behind a launcher's name apart, secrets masked. `own`: tlaunch's options with how many values each has; empty for another launcher.

    Behind an option that is not known the program begins at the first word that looks like Python's, or at `--`.
    """
    kept: list[str] = []
    typed: list[Typed] = []
    unknown: list[str] = []
    rest = list(masked_argv(words))
    while rest and rest[0].startswith("-") and rest[0] not in {"-", "--"}:
        word = rest.pop(0)
        name, joined, value = word.partition("=") if word.startswith("--") else (word, "", "")
        dashed = name.replace("_", "-")
        found = counterpart(name)
        if dashed in own and (found is None or found.subject is None):
            count = 0 if joined else own[dashed]
            kept += [dashed, *([value] if joined else rest[:count])]
        elif found is not None:
            count = found.values - bool(joined)
            typed.append(Typed(name, (*((value,) if joined else ()), *rest[: max(0, count)]), found))
        elif word[:2] in own and word[1] != "-":
            kept.append(word)
            count = 0
        else:
            unknown.append(name)
            count = next((at for at, each in enumerate(rest) if each.startswith("-") or is_python(each)), len(rest))
        del rest[: max(0, count)]
    return Parsed(tuple(kept), tuple(typed), tuple(unknown), tuple(rest[1:] if rest[:1] == ["--"] else rest))


def tlaunch_line(
    line: Parsed, *, command: str = "tlaunch run", by_python: bool = False, by_mpi: bool = False
) -> TlaunchLine:
    """Return the line that does the same. `by_python`: the launcher starts the program by Python; `by_mpi`: it is an mpirun."""
    keys = {each.key for each in line.typed}
    program = list(line.program)
    if keys & set(_MODULE):
        program[:0] = ["python", "-m"]
    elif (
        program and _NO_PYTHON not in keys and (program[0].endswith(".py") or (by_python and not is_python(program[0])))
    ):
        program.insert(0, "python")
    of_mpi = by_mpi and bool(program) and not is_python(program[0])
    places = _places(line, of_mpi=of_mpi or bool(keys & set(_MCA)))
    options, left_out = _options(
        line.typed, of_mpi="mpi" in (*places.options, *line.own), several="--devices" not in places.options
    )
    words = [
        *map(shlex.quote, (*places.options, *line.own)),
        *options,
        *(["--", shlex.join(program)] if program else []),
    ]
    table = shlex.join(places.table) if places.table else None
    notes = [places.note] if places.note else []
    if line.unknown:
        left_out.append(f"{', '.join(line.unknown)}: not known here, and left out")
    if places.table and not places.from_one:
        notes.insert(0, f"the second line is typed on every server, with the same {TABLE}")
    run = " ".join((command, *words))
    if MASK in run:
        notes.append("what is masked has to be filled in")
    return TlaunchLine(table, run, (*notes, *left_out))


def is_python(word: str) -> bool:
    """Return whether a word is called like a Python program, or like Python."""
    return word.endswith(".py") or _INTERPRETER.fullmatch(word) is not None


def _places(line: Parsed, *, of_mpi: bool) -> _Places:
    """Return the options that say where ranks are started, and how the rank table of several servers is made."""
    if any(word.partition("=")[0] in _RANK_TABLE for word in line.own) or any(
        each.counterpart.here == "--rank-table" for each in line.typed
    ):
        return _Places(())
    by_table, make = ("--rank-table", TABLE), ("tlaunch", "table", "generate", "--servers")
    engine = next((value for name, value in pairwise((*line.own, "")) if name == "--engine"), None)
    by_mpi = () if engine else ("--engine", "mpi")
    if files := line.of("server file"):
        makes = ("tlaunch", "table", "convert", files[-1].value, "--to", "v1.0", "--output", TABLE)
        note = f"{TABLE} holds all slots of {files[-1].value}" if line.of("ranks") else None
        return _Places((*by_mpi, *by_table), makes, from_one=True, note=note)
    devices, ranks = (_number(found[-1].value) if found else None for found in (line.of("devices"), line.of("ranks")))
    if hosts := line.of("servers"):
        counts = _of_hosts(hosts[-1].value, ranks)
        same = len(set(counts.values())) == 1
        each = str(next(iter(counts.values()))) if same else ",".join(map(str, counts.values()))
        return _Places(
            (*by_mpi, *by_table), (*make, ",".join(counts), "--devices", each, "--output", TABLE), from_one=True
        )
    fewest, _, most = line.of("server count")[-1].value.partition(":") if line.of("server count") else ("", "", "")
    servers = _number(most or fewest) or 1
    if servers == 1 and devices and ranks:
        servers = -(-ranks // devices)
    per_server = devices or (ranks if servers == 1 else None)
    shown = "N" if per_server is None else str(per_server)
    if devices and ranks and 1 < servers <= MAX_NAMED and ranks % devices:  # the last one has fewer
        shown = ",".join([shown] * (servers - 1) + [str(ranks % devices)])
    fill = "N stands for how many devices" if per_server is None else None
    if servers == 1 or engine == "slurm":  # which has its servers from the allocation
        return _Places((*by_mpi * of_mpi, "--devices", shown), note=fill)
    names = [_host(each.value) for each in line.of("first server")][-1:]
    others = [f"HOST{number}" for number in range(len(names) + 1, min(servers, MAX_NAMED) + 1)]
    if servers > MAX_NAMED:
        others = [*others[:1], "..."]
    note = f"{others[0]}: the name or address of the other server"
    if len(others) > 1:
        note = f"{others[0]} and so on: the names or addresses of the {'other ' * bool(names)}servers"
    return _Places(
        (*by_mpi * of_mpi, *by_table, *["--elastic"] * bool(most and most != fewest)),
        (*make, ",".join((*names, *others)), "--devices", shown, "--output", TABLE),
        from_one=of_mpi or engine == "mpi", note="; ".join(filter(None, (note, fill))),
    )  # fmt: skip


def _number(text: str) -> int | None:
    return int(text) or None if re.fullmatch(r"[0-9]{1,9}", text) else None


def _of_hosts(listed: str, ranks: int | None) -> Mapping[str, int]:
    """Return how many devices each host of mpirun's `h1:4,h2` or `h1,h1,h2` has, of which `ranks` together have one each."""
    counts: Counter[str] = Counter()
    for host in listed.split(","):
        name, _, slots = host.partition(":")
        counts[name] += _number(slots) or 1
    if ranks is None:
        return counts
    if ranks > counts.total():  # by --oversubscribe
        return dict.fromkeys(counts, -(-ranks // len(counts)))
    used: dict[str, int] = {}
    for name, count in counts.items():
        if (left := ranks - sum(used.values())) > 0:
            used[name] = min(count, left)
    return used


def _host(endpoint: str) -> str:
    """Return the host of `host:port`, `host` or `[address]:port`."""
    if endpoint.startswith("["):
        return endpoint[1:].partition("]")[0]
    return endpoint.partition(":")[0] if endpoint.count(":") == 1 else endpoint


def _options(typed: Sequence[Typed], *, of_mpi: bool, several: bool) -> tuple[list[str], list[str]]:
    """Return the options of tlaunch, quoted, and a note for those that it has not: the names, and why or what instead."""
    options: list[str] = []
    left_out: dict[str, list[str]] = {}
    for each in typed:
        words = _words(each, of_mpi=of_mpi, several=several)
        options += words or ()
        if words is None:
            reason = _reason(each, several=several)
            left_out.setdefault(reason, []).append(each.name)
    return options, [f"{', '.join(dict.fromkeys(names))}: {reason}" for reason, names in left_out.items()]


def _words(each: Typed, *, of_mpi: bool, several: bool) -> Sequence[str] | None:
    """Return the words, quoted, that do the same; None where none do."""
    value, here = shlex.quote(each.value), each.counterpart.here
    words: Sequence[str] | None = None
    if each.counterpart.subject not in {None, *_OF_TABLE} or each.key in {*_MODULE, _NO_PYTHON}:
        words = ()
    elif each.key == "-x" and "=" not in each.value:  # its value is that of this shell
        words = ("--env", f'{each.value}="${each.value}"') if several else None
    elif here is not None:
        words = (here, value)
    elif each.key == "--cluster-time-out":
        words = ("--env", f"MS_TOPO_TIMEOUT={value}")
    elif each.key == "--join" and each.value == "False":
        words = ("--detach",)
    elif each.key in _MCA and of_mpi:
        words = [f"--engine-option={shlex.quote(word)}" for word in ("--mca", *each.values)]
    return words


def _reason(each: Typed, *, several: bool) -> str:
    if each.counterpart.subject is not None:
        return "found from the rank table" if several else "not needed on one machine"
    if each.key == "-x":
        return "ranks have the variables of this shell"
    return each.counterpart.needless or each.counterpart.instead or ""
