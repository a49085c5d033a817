"""What the commands that look at tables share: reading what was named, and saying what was found."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.core.errors import UnreadableError
from launcher.core.resources import data_dir, stand_in_note

if TYPE_CHECKING:
    from launcher.rank_table import Problem, TableReport
    from launcher.rank_table.profile import Profile

STDIN = "-"
SAMPLES = Path("rank_tables")  # what a person calls their directory, wherever it is installed


def read_table(name: str, profile: Profile) -> TableReport:
    """Read and check the file `name`, or stdin where it is "-". Blocks until the end of the file.

    Raises:
        UnreadableError: it is missing, a directory, too large, or may not be read.
    """
    from launcher.rank_table.read import parse_rank_table

    _check_named(name)
    path = found_table(Path(name))
    return parse_rank_table(read_named(str(path)), path, profile)


def read_named(name: str) -> bytes:
    """The bytes of the file `name`, or of stdin where it is "-". Blocks until the end of the file.

    Raises:
        UnreadableError: it is missing, a directory, too large, or may not be read.
    """
    from launcher.cli.options.table_size import max_table_bytes
    from launcher.rank_table.files import read_bytes

    _check_named(name)
    if name == STDIN:
        return _read_stdin(max_table_bytes())
    with sample_hinted(Path(name)):
        return read_bytes(Path(name), max_table_bytes())


def _check_named(name: str) -> None:
    if not name:  # a Path would be that of this directory
        raise UnreadableError("the name of the file is empty", hint="name the rank table (an empty variable?)")


@contextmanager
def sample_hinted(path: Path) -> Iterator[None]:
    """Around the reading of `path`: where it is missing but has the name of a sample, the hint is that sample."""
    try:
        yield
    except UnreadableError as error:
        if _is_there(path) or _sample(path.name) is None:
            raise
        raise UnreadableError(error.message, hint=f"did you mean {SAMPLES / path.name}, a sample?") from None


def say_note(note: str) -> None:
    with suppress(OSError):  # nobody reads stderr
        print(note, file=sys.stderr)


def found_table(path: Path, say: Callable[[str], None] = say_note) -> Path:
    """`path` itself, or the sample table of that name where no such file is here: an installed copy has them too.

    `say` is told of that: the name is also that of many a tutorial's own table, asked for from another directory.
    """
    if path.parent != SAMPLES or _is_there(path):
        return path
    sample = _sample(path.name)
    if sample is None:
        return path
    say(stand_in_note(str(path), "sample", sample))
    return sample


def is_sample(table: Path) -> bool:
    """Whether that file is one of the samples, or a copy under the same name."""
    sample = _sample(table.name)
    if sample is None or not table.is_file():
        return False
    return table.samefile(sample) or table.read_bytes() == sample.read_bytes()


def _sample(name: str) -> Path | None:
    sample = data_dir(SAMPLES.name) / name
    return sample if name and _is_there(sample) else None


def _is_there(path: Path) -> bool:
    return os.path.exists(path)  # noqa: PTH110 - Path.exists raises where a name is too long


def _read_stdin(max_bytes: int) -> bytes:
    from launcher.rank_table.files import read_stream

    if sys.stdin is None:  # closed by whoever started us
        raise UnreadableError("stdin is closed", hint="name a file, or redirect one")
    try:
        return read_stream(sys.stdin.buffer, "stdin", max_bytes)
    except OSError as error:
        raise UnreadableError(f"stdin cannot be read: {error.strerror}") from None


def problem_to_json(problem: Problem) -> dict[str, Any]:
    return {
        "code": problem.code,
        "severity": problem.severity.value,
        "message": problem.message,
        "hint": problem.hint,
        "pointer": problem.pointer,
        "line": problem.line,
        "column": problem.column,
    }


def wants_colour(wanted: bool | None) -> bool:
    """As `--color` or `--no-color` say; without them only on a terminal, and never where NO_COLOR is set."""
    if wanted is not None:
        return wanted
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
