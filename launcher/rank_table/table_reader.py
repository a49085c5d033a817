"""Read a rank table: decode, parse and check it, and return the cluster it describes. Also replaces file contents."""

from __future__ import annotations

import errno
import gc
import os
import select
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from launcher.core.atomic import replacing
from launcher.core.errors import RefusedTableError, UnreadableError, UsageError
from launcher.core.frozen import frozen
from launcher.core.records import Cluster
from launcher.core.regular_files import open_regular
from launcher.core.text import printable
from launcher.rank_table.catalogue import Severity
from launcher.rank_table.diagnostics import Problem, located_problems, render_problems
from launcher.rank_table.document import Document, parse_document
from launcher.rank_table.model import Table
from launcher.rank_table.profile import Profile
from launcher.rank_table.table_format import Format

AS_HCCL = Profile()
PIPE_PATIENCE_S = 5
# HCCL's limit for a v1.x table; a table of 131,072 devices has 12 to 24 MB. A v2.0 table of 65,536 ranks has 20 MB with
# one network layer, and hundreds with three, which needs --max-table-size. Any file up to this size is checked within
# 500 MB of memory, and a table of 131,072 devices within 300 MB.
MAX_TABLE_BYTES = 40 << 20
_PIECE_BYTES = 1 << 20
_MAX_NAMED = 10  # unknown keys in one note
_MAX_NAME_LENGTH = 40  # characters of a key in a note
_MANY_OBJECTS = 50_000  # collecting garbage among more objects takes longer than some milliseconds


@frozen
class TableReport:
    path: Path
    format: Format | None  # None if the format is unknown
    problems: tuple[Problem, ...]  # in file order
    document: Document
    table: Table | None  # None if the document is not a rank table, or cannot be parsed

    @cached_property
    def valid(self) -> bool:
        """True if the problems include no error, so that HCCL accepts the table."""
        return self.table is not None and not self.errors

    @cached_property
    def cluster(self) -> Cluster | None:
        """The cluster, built on first use, or None if the table is not valid."""
        if self.table is None or not self.valid:
            return None
        from launcher.rank_table.check import READERS  # noqa: PLC0415 - loads every rule

        source = Path(os.path.abspath(self.path))  # noqa: PTH100 - keeps symbolic links, removes dots
        return replace(READERS[self.table.format].cluster(self.table), source=source)

    @property
    def servers(self) -> int:
        """The number of servers in the file, including servers with errors."""
        return 0 if self.table is None else len(self.table.servers)

    @property
    def devices(self) -> int:
        return 0 if self.table is None else len(self.table.devices)

    @property
    def errors(self) -> tuple[Problem, ...]:
        return tuple(problem for problem in self.problems if problem.severity is Severity.ERROR)

    @property
    def warnings(self) -> tuple[Problem, ...]:
        return tuple(problem for problem in self.problems if problem.severity is Severity.WARNING)

    def render(self, columns: int | None = None) -> str:
        """Return the problems as text. Source lines are shortened to the terminal's width, `columns`."""
        return render_problems(self.problems, self.document, str(self.path), columns=columns)


def read_rank_table(path: Path, profile: Profile = AS_HCCL, *, max_bytes: int = MAX_TABLE_BYTES) -> TableReport:
    """Read the table at `path`, and check it for the hardware and the program of `profile`.

    A name that does not end in ".json" gives a warning: HCCL refuses such a file, but other readers accept it.

    Raises:
        UnreadableError: the file is missing, a directory, larger than `max_bytes`, or not readable.
    """
    return parse_rank_table(read_bytes(path, max_bytes), path, profile)


def parse_rank_table(data: bytes, path: Path, profile: Profile = AS_HCCL) -> TableReport:
    """Parse and check the content of a table. The file at `path` is not read."""
    from launcher.rank_table.check import check_document  # noqa: PLC0415 - loads every rule

    with _without_garbage_collection():
        document = parse_document(data)
        if not document.may_be_json and (problem := _another_kind(data, path)):
            return TableReport(path, None, (problem,), document, None)
        checked = check_document(document, path, profile)
        problems = located_problems(document, checked.findings, checked.chip)
    return TableReport(path, checked.format, problems, document, checked.table)


def load_cluster(path: Path, profile: Profile = AS_HCCL) -> tuple[Cluster, tuple[Problem, ...]]:
    """Return the cluster that the table at `path` describes, and the warnings about the table.

    Devices are sorted by global rank within their server; servers are in file order. Blocks while reading the file.

    Raises:
        UnreadableError: the file is missing, a directory, too large, or not readable.
        RefusedTableError: the table has errors; the message shows them with their lines.
    """
    report = read_rank_table(path, profile)
    if report.cluster is None:
        raise RefusedTableError(report.render())
    return report.cluster, report.warnings


def unread_note(reports: Iterable[TableReport]) -> str | None:
    """Return a note that lists the keys that no program reads, or None if every key is read."""
    keys: dict[str, None] = {}
    for report in reports:
        unknown = (warning.pointer for warning in report.warnings if warning.code == "RT401")
        keys |= {at.rpartition("/")[2].replace("~1", "/").replace("~0", "~"): None for at in unknown}
        # HCCL does not read the server_list of legacy-lab.
        if report.table is not None and any("server_list" in group.fields for group in report.table.groups):
            keys["server_list"] = None
    if not keys:
        return None
    named = ", ".join(key[:_MAX_NAME_LENGTH] for key in islice(keys, _MAX_NAMED))
    more = f", and {len(keys) - _MAX_NAMED:,} more" if len(keys) > _MAX_NAMED else ""
    return f"dropped, because no program reads them: {named}{more}"


def _another_kind(data: bytes, path: Path) -> Problem | None:
    """Return a problem if the text is a list of hosts or a program instead of JSON."""
    from launcher.rank_table.detect import certainly_plain, program_kind  # noqa: PLC0415

    name = printable(str(path))
    if kind := certainly_plain(data):
        devices = " --devices N" if kind == "nodelist" else ""
        hint = f"convert it: `tlaunch table convert {name} --from {kind}{devices} --to v1.0`"
        message = f"this is not a rank table: it looks like a {kind} for another launcher"
        return Problem("RT202", Severity.ERROR, message, hint, "", 1, 1)
    if program := program_kind(data, path.suffix):
        message = f"this is not a rank table: it looks like {printable(program)}"
        hint = "give a rank table in JSON; write a program after --, as in `tlaunch run -- python train.py`"
        return Problem("RT116", Severity.ERROR, message, hint, "", 1, 1)
    return None


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Disable garbage collection while a table is parsed, since none of the new objects could be freed.

    Afterwards, the new objects are moved to the oldest generation, which is rarely collected, so they are not searched
    soon.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if gc.get_count()[0] > _MANY_OBJECTS and not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def read_bytes(path: Path, max_bytes: int = MAX_TABLE_BYTES) -> bytes:
    """Read a file. From a pipe, wait up to `PIPE_PATIENCE_S` for the first data.

    Raises:
        UnreadableError: the file is missing, a directory, larger than `max_bytes`, or not readable.
    """
    try:
        with open(path, "rb", buffering=0, opener=_open_without_waiting) as file:
            size_bytes = os.fstat(file.fileno()).st_size  # 0 unless it is a regular file
            if size_bytes > max_bytes:
                raise _too_large(f"{path} has {_size(size_bytes)}", size_bytes, max_bytes)
            return read_stream(file, str(path), max_bytes)
    except IsADirectoryError:
        raise UnreadableError(f"{path} is a directory", hint="give the path of a file in the directory") from None
    except FileNotFoundError:
        names = sorted(found.name for found in path.parent.glob("*.json"))[:5] if path.parent.is_dir() else []
        hint = f"choose a file in {path.parent}: {', '.join(names)}" if names else "check the path"
        raise UnreadableError(f"{path} does not exist", hint=hint) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UnreadableError(f"{path} cannot be read: {reason}") from None


def read_stream(file: BinaryIO | FileIO, name: str, max_bytes: int = MAX_TABLE_BYTES) -> bytes:
    """Read a stream to its end in chunks, because a single read would allocate `max_bytes` at once.

    Raises:
        UnreadableError: there are more than `max_bytes`.
        OSError: the stream cannot be read.
    """
    pieces: list[bytes] = []
    left = max_bytes + 1
    while left > 0 and (piece := file.read(min(left, _PIECE_BYTES))) != b"":
        if piece is None:  # a device or a kernel file without data
            _await_data(file.fileno())
            continue
        pieces.append(piece)
        left -= len(piece)
    if left <= 0:
        raise _too_large(f"{name} has more than {_size(max_bytes)}", None, max_bytes)
    return b"".join(pieces)


def read_head(path: Path, count: int) -> bytes:
    """Return the first `count` bytes of a regular file, or no bytes if the file cannot be read."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            return file.read(count) or b""  # None: a kernel file without data
    except OSError:
        return b""


def _too_large(what: str, size_bytes: int | None, max_bytes: int) -> UnreadableError:
    enough = "SIZE" if size_bytes is None else f"{(size_bytes >> 20) + 1}M"
    limit = "" if size_bytes is None else f", more than the limit of {_size(max_bytes)}"
    hint = f"if it is a rank table, use --max-table-size {enough}; a table has about 100 bytes per device"
    return UnreadableError(what + limit, hint=hint)


def _size(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.4g} MiB" if size_bytes >= 1 << 20 else f"{size_bytes:,} bytes"


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a file without blocking, except that opening a pipe waits a few seconds for the first data."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
    if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        try:
            _await_data(descriptor)
        except OSError:
            os.close(descriptor)
            raise
        os.set_blocking(descriptor, True)
    return descriptor


def _await_data(descriptor: int) -> None:
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN | select.POLLHUP)
    if not waiting.poll(PIPE_PATIENCE_S * 1000):
        kind = "pipe" if stat.S_ISFIFO(os.fstat(descriptor).st_mode) else "device"
        raise OSError(errno.ETIMEDOUT, f"it is a {kind}, and no data arrived within {PIPE_PATIENCE_S} s")


def overwrite(path: Path, original: bytes, data: bytes) -> None:
    """Atomically replace the file at `path` if it still contains `original`. The file keeps its mode.

    If `path` is a symbolic link, its target is replaced. The owner is kept if permitted.

    Raises:
        UsageError: it is not a regular file.
        UnreadableError: its content has changed, or it cannot be replaced.
    """
    try:
        target = path.resolve(strict=True)
        status = target.stat()
        if not stat.S_ISREG(status.st_mode):
            message = f"{path} is not a regular file, so it cannot be replaced"
            raise UsageError(message, hint="use `-` and redirect the output")
        with replacing(target) as aside:
            aside.touch(mode=0o600)
            aside.write_bytes(data)
            with suppress(PermissionError):
                os.chown(aside, status.st_uid, status.st_gid)
            aside.chmod(stat.S_IMODE(status.st_mode))
            if target.stat().st_size != len(original) or read_bytes(target, len(original)) != original:
                message = f"{path} was changed by another program, so it was not replaced"
                raise UnreadableError(message, hint="run the command again")
    except OSError as error:
        raise UnreadableError(f"{path} cannot be replaced: {error.strerror}") from None
