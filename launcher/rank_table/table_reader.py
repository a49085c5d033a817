"""Read a rank table: bytes, JSON, format, shape, rules, and at last the cluster that it describes; replace its bytes."""

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
from launcher.rank_table.model import Table, groups_of
from launcher.rank_table.profile import Profile
from launcher.rank_table.table_format import Format

AS_HCCL = Profile()
PIPE_PATIENCE_S = 5
# What HCCL takes of a v1.x table as a string; one of 131,072 devices has 12 to 24 MB. A v2.0 table of 65,536 ranks has
# 20 MB in one layer of its network, and hundreds in three, which needs an option. Everything up to this size, whatever is
# in it, is read and reported within 500 MB of memory, and a table of 131,072 devices within 300 MB.
MAX_TABLE_BYTES = 40 << 20
_PIECE_BYTES = 1 << 20
_MAX_NAMED = 10  # unread keys in one note
_MAX_NAME_LENGTH = 40  # characters of such a key
_MANY_OBJECTS = 50_000  # whose search for garbage takes longer than some milliseconds


@frozen
class TableReport:
    """The result of reading a table."""

    path: Path
    format: Format | None  # None where the document is in no known format
    problems: tuple[Problem, ...]  # in file order
    document: Document
    table: Table | None  # None where the document is no rank table, or its text too broken to tell

    @cached_property
    def valid(self) -> bool:
        """True if HCCL would take the table: no problem is an error."""
        return self.table is not None and not self.errors

    @cached_property
    def cluster(self) -> Cluster | None:
        """The records, there exactly when the table is valid. Made when first asked for."""
        if self.table is None or not self.valid:
            return None
        from launcher.rank_table.check import READERS  # noqa: PLC0415 - loads every rule

        source = Path(os.path.abspath(self.path))  # noqa: PTH100 - links stay, dots go
        return replace(READERS[self.table.format].cluster(self.table), source=source)

    @property
    def servers(self) -> int:
        """The number of servers found, whatever is wrong with them; `devices` likewise."""
        return 0 if self.table is None else len(self.table.servers)

    @property
    def devices(self) -> int:
        return 0 if self.table is None else len(self.table.devices)

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The problems for which HCCL refuses the table."""
        return tuple(problem for problem in self.problems if problem.severity is Severity.ERROR)

    @property
    def warnings(self) -> tuple[Problem, ...]:
        return tuple(problem for problem in self.problems if problem.severity is Severity.WARNING)

    def render(self, columns: int | None = None) -> str:
        """Return the problems as `render_problems` does, for a terminal of so many columns if there is one."""
        return render_problems(self.problems, self.document, str(self.path), columns=columns)


def read_rank_table(path: Path, profile: Profile = AS_HCCL, *, max_bytes: int = MAX_TABLE_BYTES) -> TableReport:
    """Read and check the table at `path`, as `profile` asks. Blocks while reading the file.

    A name that does not end in ".json" is a warning: HCCL refuses such a file by its name, other readers do not mind.

    Raises:
        UnreadableError: the file is missing, a directory, larger than `max_bytes`, or may not be read.
    """
    return parse_rank_table(read_bytes(path, max_bytes), path, profile)


def parse_rank_table(data: bytes, path: Path, profile: Profile = AS_HCCL) -> TableReport:
    """Check a table that was read already; `path` is its name in messages."""
    from launcher.rank_table.check import check_document  # noqa: PLC0415 - loads every rule

    with _without_garbage_collection():
        document = parse_document(data)
        if not document.may_be_json and (problem := _another_kind(data, path)):
            return TableReport(path, None, (problem,), document, None)
        checked = check_document(document, path, profile)
        problems = located_problems(document, checked.findings, checked.chip)
    return TableReport(path, checked.format, problems, document, checked.table)


def load_cluster(path: Path, profile: Profile = AS_HCCL) -> tuple[Cluster, tuple[Problem, ...]]:
    """Return the cluster that the table at `path` describes, and the warnings about it.

    Devices are sorted by global rank within their server; servers stay in file order. Blocks while reading the file.

    Raises:
        UnreadableError: the file is missing, a directory, too large, or may not be read.
        RefusedTableError: the table has errors; the message shows all of them at their lines.
    """
    report = read_rank_table(path, profile)
    if report.cluster is None:
        raise RefusedTableError(report.render())
    return report.cluster, report.warnings


def unread_note(reports: Iterable[TableReport]) -> str | None:
    """Return a note that names the keys of these tables that no reader uses; None where there are none."""
    keys: dict[str, None] = {}
    for report in reports:
        unknown = (warning.pointer for warning in report.warnings if warning.code == "RT401")
        keys |= {at.rpartition("/")[2].replace("~1", "/").replace("~0", "~"): None for at in unknown}
        # A lab's list of servers, which HCCL reads no more.
        if report.table is not None and any("server_list" in group.fields for group in groups_of(report.table)):
            keys["server_list"] = None
    if not keys:
        return None
    named = ", ".join(key[:_MAX_NAME_LENGTH] for key in islice(keys, _MAX_NAMED))
    more = f", and {len(keys) - _MAX_NAMED:,} more" if len(keys) > _MAX_NAMED else ""
    return f"left out, since no program reads them: {named}{more}"


def _another_kind(data: bytes, path: Path) -> Problem | None:
    """Return one problem instead of many for a text that was never meant as JSON: a list of hosts, or a program."""
    from launcher.rank_table.detect import certainly_plain, program_kind  # noqa: PLC0415

    name = printable(str(path))
    if kind := certainly_plain(data):
        devices = " --devices N" if kind == "nodelist" else ""
        hint = f"tlaunch table convert {name} --from {kind}{devices} --to v1.0"
        message = f"this is not a rank table: it looks like a {kind}, which names hosts for another launcher"
        return Problem("RT202", Severity.ERROR, message, hint, "", 1, 1)
    if program := program_kind(data, path.suffix):
        message = f"this is not a rank table: it looks like {printable(program)}"
        hint = "name the table, a JSON file; a program stands behind --, as in `tlaunch run -- python train.py`"
        return Problem("RT116", Severity.ERROR, message, hint, "", 1, 1)
    return None


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Collect no garbage: among hundreds of thousands of new objects, all in use, looking for cycles only costs time.

    Nor are they searched at the end, as so many would be at once: they join the oldest generation, which seldom is.
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
    """Read the whole file. Block; on a pipe `PIPE_PATIENCE_S` until data arrives.

    Raises:
        UnreadableError: the file is missing, a directory, larger than `max_bytes`, or may not be read.
    """
    try:
        with open(path, "rb", buffering=0, opener=_open_without_waiting) as file:
            size_bytes = os.fstat(file.fileno()).st_size  # 0 for what is no regular file
            if size_bytes > max_bytes:
                raise _too_large(f"{path} has {_size(size_bytes)}", size_bytes, max_bytes)
            return read_stream(file, str(path), max_bytes)
    except IsADirectoryError:
        raise UnreadableError(f"{path} is a directory", hint="name the rank table inside it") from None
    except FileNotFoundError:
        names = sorted(found.name for found in path.parent.glob("*.json"))[:5] if path.parent.is_dir() else []
        hint = f"{path.parent} holds {', '.join(names)}" if names else "check the path"
        raise UnreadableError(f"{path} does not exist", hint=hint) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UnreadableError(f"{path} cannot be read: {reason}") from None


def read_stream(file: BinaryIO | FileIO, name: str, max_bytes: int = MAX_TABLE_BYTES) -> bytes:
    """Read up to the end, in pieces: asking for `max_bytes` at once would set that much memory aside.

    Raises:
        UnreadableError: there is more than that.
        OSError: it cannot be read.
    """
    pieces: list[bytes] = []
    left = max_bytes + 1
    while left > 0 and (piece := file.read(min(left, _PIECE_BYTES))) != b"":
        if piece is None:  # of a device, or of a file of the kernel's
            _await_data(file.fileno())
            continue
        pieces.append(piece)
        left -= len(piece)
    if left <= 0:
        raise _too_large(f"{name} gives more than {_size(max_bytes)}", None, max_bytes)
    return b"".join(pieces)


def read_head(path: Path, count: int) -> bytes:
    """Read the first `count` bytes of a regular file; nothing where they cannot be read."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            return file.read(count) or b""  # None: a file of the kernel's that has nothing now
    except OSError:
        return b""


def _too_large(what: str, size_bytes: int | None, max_bytes: int) -> UnreadableError:
    enough = "SIZE" if size_bytes is None else f"{(size_bytes >> 20) + 1}M"
    limit = "" if size_bytes is None else f", and no table of more than {_size(max_bytes)} is read"
    hint = f"is it a rank table? --max-table-size {enough} has it read: one device takes about 100 bytes of a table"
    return UnreadableError(what + limit, hint=hint)


def _size(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.4g} MiB" if size_bytes >= 1 << 20 else f"{size_bytes:,} bytes"


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a file; wait a few seconds for the first data of a pipe. Only reads of pipes block: a device may never end."""
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
        raise OSError(errno.ETIMEDOUT, f"it is a {kind}, and no data came within {PIPE_PATIENCE_S} s")


def overwrite(path: Path, original: bytes, data: bytes) -> None:
    """Replace the file at `path`, which held `original`, by `data`: written aside and renamed, with the same mode.

    A symbolic link stays one; the file that it leads to is replaced. The owner is kept where that is permitted.

    Raises:
        UsageError: there is no regular file, but a pipe or a device.
        UnreadableError: it holds something else by now, or it cannot be replaced.
    """
    try:
        target = path.resolve(strict=True)
        status = target.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"{path} is not a regular file, so it cannot be replaced", hint="use - and a redirection")
        with replacing(target) as aside:
            aside.touch(mode=0o600)
            aside.write_bytes(data)
            with suppress(PermissionError):
                os.chown(aside, status.st_uid, status.st_gid)
            aside.chmod(stat.S_IMODE(status.st_mode))
            if target.stat().st_size != len(original) or read_bytes(target, len(original)) != original:
                raise UnreadableError(f"{path} was changed meanwhile, and is left as it is", hint="run this again")
    except OSError as error:
        raise UnreadableError(f"{path} cannot be replaced: {error.strerror}") from None
