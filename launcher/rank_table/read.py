"""Read a rank table: bytes, JSON, format, shape, rules, and at last the cluster that it describes."""

from __future__ import annotations

import errno
import os
import select
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from launcher.core.errors import RefusedTableError, UnreadableError
from launcher.core.records import Cluster, Device, Server
from launcher.rank_table.catalogue import CATALOGUE, Finding
from launcher.rank_table.chips import CHIPS
from launcher.rank_table.diagnostics import Problem, Severity, render_problems
from launcher.rank_table.document import Document, parse_document
from launcher.rank_table.faults import Fault, printable
from launcher.rank_table.formats import Format, recognise, refusal
from launcher.rank_table.places import Place, Pointer, RepeatedKey, json_pointer
from launcher.rank_table.table import Table, text_at

PIPE_PATIENCE_S = 5
LARGEST_TABLE_BYTES = 256 * 1024 * 1024  # far beyond 131,072 devices; keeps a wrong path from filling the memory

Found = tuple[str, Finding]  # a code of the catalogue and what was found under it
Places = Mapping[Pointer, Place]


@dataclass(frozen=True)
class TableReport:
    """What reading a table gave. Invariant: `cluster` is there exactly when no problem is an error."""

    path: Path
    format: Format | None  # None where the document is in no known format
    cluster: Cluster | None
    problems: tuple[Problem, ...]  # in file order
    document: Document

    @property
    def errors(self) -> tuple[Problem, ...]:
        return tuple(problem for problem in self.problems if problem.severity is Severity.ERROR)

    @property
    def warnings(self) -> tuple[Problem, ...]:
        return tuple(problem for problem in self.problems if problem.severity is Severity.WARNING)

    def render(self) -> str:
        """All problems as text for people, with source lines."""
        return render_problems(self.problems, self.document, str(self.path))


def read_rank_table(path: Path, *, chip: str = "auto") -> TableReport:
    """Read and check the table at `path` for the hardware `chip` (a name in `CHIPS`). Blocks while reading the file.

    A name that does not end in ".json" is a warning: HCCL refuses such a file by its name, other readers do not mind.

    Raises:
        UnreadableError: the file is missing, a directory, too large, or may not be read.
        KeyError: `chip` is no name in `CHIPS`.
    """
    document = parse_document(_read_bytes(path))
    table_format = recognise(document.value) if document.checkable else None
    found = list(_name_warning(path))
    table = None
    if document.checkable:
        refused = refusal(document.value, table_format)
        if refused is not None:
            found.append((_refusal_code(document, table_format), refused))
        else:
            table = Table.of(document.value, CHIPS[chip])
            found.extend(_check(table))
    problems = _problems(document, found)
    refused_at_all = any(problem.severity is Severity.ERROR for problem in problems)
    cluster = None if refused_at_all or table is None else _cluster(table, path)
    return TableReport(path, table_format, cluster, problems, document)


def load_cluster(path: Path, *, chip: str = "auto") -> tuple[Cluster, tuple[Problem, ...]]:
    """The cluster that the table at `path` describes, and the warnings about it.

    Devices are sorted by global rank within their server; servers stay in file order. Blocks while reading the file.

    Raises:
        UnreadableError: the file is missing, a directory, too large, or may not be read.
        RefusedTableError: the table has errors; the message shows all of them at their lines.
    """
    report = read_rank_table(path, chip=chip)
    if report.cluster is None:
        raise RefusedTableError(report.render())
    return report.cluster, report.warnings


def _read_bytes(path: Path) -> bytes:
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            data = _read_at_most(file, LARGEST_TABLE_BYTES + 1)
    except IsADirectoryError:
        raise UnreadableError(f"{path} is a directory", hint="name the rank table inside it") from None
    except FileNotFoundError:
        raise UnreadableError(f"{path} does not exist", hint=_nearby(path)) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UnreadableError(f"{path} cannot be read: {reason}") from None
    if len(data) > LARGEST_TABLE_BYTES:
        limit = f"{LARGEST_TABLE_BYTES // 1024**2} MiB"
        raise UnreadableError(f"{path} is larger than {limit}", hint="a rank table has about 100 bytes per device")
    return data


def _open_without_waiting(path: str, flags: int) -> int:
    """Opening a named pipe would wait for ever for somebody to write to it; give that somebody a few seconds."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN | select.POLLHUP)
        if not waiting.poll(PIPE_PATIENCE_S * 1000):
            os.close(descriptor)
            raise OSError(errno.ETIMEDOUT, f"it is a pipe, and nobody wrote to it within {PIPE_PATIENCE_S} s")
    os.set_blocking(descriptor, True)
    return descriptor


def _read_at_most(file: BinaryIO, limit: int) -> bytes:
    """In pieces, since asking for `limit` bytes at once would set that much memory aside."""
    data = bytearray()
    while len(data) < limit and (piece := file.read(1024 * 1024)):
        data += piece
    return bytes(data)


def _nearby(path: Path) -> str:
    """The tables that are there, for a name that is not."""
    names = sorted(found.name for found in path.parent.glob("*.json"))[:5] if path.parent.is_dir() else []
    return f"{path.parent} holds {', '.join(names)}" if names else "check the path"


def _name_warning(path: Path) -> Iterator[Found]:
    if path.suffix != ".json":
        message = f'the name "{path.name}" does not end in .json, and HCCL refuses such a file'
        yield "RT406", Finding((), message, f"rename it to {path.with_suffix('.json').name}")


def _refusal_code(document: Document, table_format: Format | None) -> str:
    if not isinstance(document.value, dict):
        return "RT201"
    return "RT203" if table_format is None else "RT202"


def _check(table: Table) -> Iterator[Found]:
    """Shape and rules. What they need is imported here, so that importing this package loads no pydantic."""
    from launcher.rank_table import rules  # noqa: F401, PLC0415  # enters the rules into the catalogue
    from launcher.rank_table.schema import shape_problems  # noqa: PLC0415

    yield from shape_problems(table.fields)
    for entry in CATALOGUE.values():
        if entry.check is not None:
            for finding in entry.check(table):
                yield entry.code, finding


def _problems(document: Document, found: Iterable[Found]) -> tuple[Problem, ...]:
    """Faults of the text and findings of the rules, with lines and columns, in file order."""
    findings = list(found)
    pointers = {finding.pointer for _, finding in findings} | {finding.earlier for _, finding in findings}
    places = document.locate(pointer for pointer in pointers if pointer is not None)
    located = [(fault, "") for fault in document.faults]
    located += [(_repeat_fault(document, repeat), json_pointer(repeat.pointer)) for repeat in document.repeats]
    located += [
        (_finding_fault(document, places, code, finding), json_pointer(finding.pointer)) for code, finding in findings
    ]
    located.sort(key=lambda pair: (pair[0].offset, pair[0].code))
    return tuple(_problem(document, fault, pointer) for fault, pointer in located)


def _finding_fault(document: Document, places: Places, code: str, finding: Finding) -> Fault:
    place = places.get(finding.pointer, Place(None, 0, 1))
    message = finding.message
    if finding.earlier is not None and finding.earlier in places:
        message += f", first on line {document.position(places[finding.earlier].start).line}"
    if finding.at_key and place.key is not None:
        return Fault(code, place.key, len(str(finding.pointer[-1])) + 2, message, finding.hint)
    return Fault(code, place.start, place.end - place.start, message, finding.hint)


def _repeat_fault(document: Document, repeat: RepeatedKey) -> Fault:
    key, line = str(repeat.pointer[-1]), document.position(repeat.first).line
    message = f'key "{key[:40]}" is written twice, first on line {line}; the last one counts'
    return Fault("RT405", repeat.again, len(key) + 2, message, "remove one of the two")


def _problem(document: Document, fault: Fault, pointer: str) -> Problem:
    position, severity = document.position(fault.offset), CATALOGUE[fault.code].severity
    return Problem(
        code=fault.code,
        severity=severity,
        message=printable(fault.message),
        hint=None if fault.hint is None else printable(fault.hint),
        pointer=pointer,
        line=position.line,
        column=position.column,
        width=fault.width,
    )


def _cluster(table: Table, path: Path) -> Cluster:
    """The records. Only for a table without errors, where every number is known."""
    servers = []
    for server in table.servers:
        devices = [
            Device(device.device_id or 0, device.global_rank or 0, text_at(device.fields, "device_ip") or None)
            for device in server.devices
        ]
        devices.sort(key=lambda device: device.global_rank)
        host_nic_ip = text_at(server.fields, "host_nic_ip")
        servers.append(Server(server.server_id or "", tuple(devices), host_nic_ip, server.host_ip or None))
    return Cluster(tuple(servers), Path(os.path.abspath(path)))  # noqa: PTH100 - links stay, dots go
