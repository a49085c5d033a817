"""Rank tables by name: the samples that come with tlaunch, and how large a table may be."""

from __future__ import annotations

import filecmp
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from launcher.cli.text.stdout import say
from launcher.core.env import TLAUNCH_MAX_TABLE_SIZE
from launcher.core.errors import UnreadableError
from launcher.core.resources import data_dir, stand_in_note

SAMPLES = Path("rank_tables")  # what a person calls their directory, wherever it is installed


def max_table_bytes() -> int:
    """Return how large a table may be: what --max-table-size has left in the environment, or the default."""
    from launcher.rank_table.read import MAX_TABLE_BYTES  # `--help` needs none of it

    return int(os.environ.get(TLAUNCH_MAX_TABLE_SIZE) or MAX_TABLE_BYTES)


@contextmanager
def sample_hinted(path: Path) -> Iterator[None]:
    """Wrap the reading of `path`: where it is missing but has the name of a sample, the hint is that sample."""
    try:
        yield
    except UnreadableError as error:
        if _is_there(path) or _sample(path.name) is None:
            raise
        raise UnreadableError(error.message, hint=f"did you mean {SAMPLES / path.name}, a sample?") from None


def found_table(path: Path, tell: Callable[[str], None] = say) -> Path:
    """Return `path` itself, or the sample table of that name where no such file is here: an installed copy has them too.

    `tell` gets a note of that: the name is also that of many a tutorial's own table, asked for from another directory.
    """
    if path.parent != SAMPLES or _is_there(path):
        return path
    sample = _sample(path.name)
    if sample is None:
        return path
    tell(stand_in_note(str(path), "sample", sample))
    return sample


def is_sample(table: Path) -> bool:
    """Return whether that file is one of the samples, or a copy under the same name."""
    sample = _sample(table.name)
    if sample is None or not table.is_file():
        return False
    return table.samefile(sample) or filecmp.cmp(table, sample, shallow=False)


def _sample(name: str) -> Path | None:
    sample = data_dir(SAMPLES.name) / name
    return sample if name and _is_there(sample) else None


def _is_there(path: Path) -> bool:
    return os.path.exists(path)  # noqa: PTH110 - Path.exists raises where a name is too long
