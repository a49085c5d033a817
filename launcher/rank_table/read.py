"""Read a rank table: bytes, JSON, format, shape, rules, and at last the cluster that it describes."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path

from launcher.core.errors import RefusedTableError
from launcher.core.frozen import frozen
from launcher.core.records import Cluster
from launcher.core.text import printable
from launcher.rank_table.catalogue import Severity
from launcher.rank_table.diagnostics import Problem, located_problems, render_problems
from launcher.rank_table.document import Document, parse_document
from launcher.rank_table.files import MAX_TABLE_BYTES, read_bytes
from launcher.rank_table.model import Table, groups_of
from launcher.rank_table.profile import Profile
from launcher.rank_table.table_format import Format

AS_HCCL = Profile()
_MAX_NAMED = 10  # unread keys in one note
_MAX_NAME_LENGTH = 40  # characters of such a key


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
        from launcher.rank_table.check import READERS  # noqa: PLC0415 - loads pydantic

        source = Path(os.path.abspath(self.path))  # noqa: PTH100 - links stay, dots go
        return replace(READERS[self.table.format].cluster(self.table), source=source)

    @property
    def servers(self) -> int:
        """The number of servers found, whatever is wrong with them."""
        return 0 if self.table is None else len(self.table.servers)

    @property
    def devices(self) -> int:
        """The number of devices found, whatever is wrong with them."""
        return 0 if self.table is None else len(self.table.devices)

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The problems for which HCCL refuses the table."""
        return tuple(problem for problem in self.problems if problem.severity is Severity.ERROR)

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """The problems that HCCL does not mind."""
        return tuple(problem for problem in self.problems if problem.severity is Severity.WARNING)

    def render(self) -> str:
        """Return all problems as text with source lines."""
        return render_problems(self.problems, self.document, str(self.path))


def read_rank_table(path: Path, profile: Profile = AS_HCCL, *, max_bytes: int = MAX_TABLE_BYTES) -> TableReport:
    """Read and check the table at `path`, as `profile` asks. Blocks while reading the file.

    A name that does not end in ".json" is a warning: HCCL refuses such a file by its name, other readers do not mind.

    Raises:
        UnreadableError: the file is missing, a directory, larger than `max_bytes`, or may not be read.
        KeyError: `profile` names a chip that is not in `CHIPS`.
    """
    return parse_rank_table(read_bytes(path, max_bytes), path, profile)


def parse_rank_table(data: bytes, path: Path, profile: Profile = AS_HCCL) -> TableReport:
    """Check a table that was read already; `path` is its name in messages.

    Raises:
        KeyError: `profile` names a chip that is not in `CHIPS`.
    """
    from launcher.rank_table.check import check_document  # noqa: PLC0415 - loads pydantic

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
    keys = list(dict.fromkeys(key for report in reports for key in _unread_keys(report)))
    if not keys:
        return None
    named = ", ".join(key[:_MAX_NAME_LENGTH] for key in islice(keys, _MAX_NAMED))
    more = f", and {len(keys) - _MAX_NAMED:,} more" if len(keys) > _MAX_NAMED else ""
    return f"left out, since no program reads them: {named}{more}"


def _unread_keys(report: TableReport) -> Iterator[str]:
    """Yield the keys that no format knows, and a lab's list of servers, which HCCL reads no more."""
    for warning in report.warnings:
        if warning.code == "RT401":
            yield warning.pointer.rpartition("/")[2].replace("~1", "/").replace("~0", "~")
    if report.table is not None and any("server_list" in group.fields for group in groups_of(report.table)):
        yield "server_list"


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

    Nor are they searched at the end, as they would be at once: they join the oldest generation, which seldom is.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()
            gc.enable()
