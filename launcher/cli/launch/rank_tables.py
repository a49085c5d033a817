"""The devices of a run: read its rank table, or count them. Find packaged sample tables, and limit the size of a table."""

from __future__ import annotations

import filecmp
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from launcher.cli.launch.external.options import counterpart
from launcher.cli.run_options import RunOptions
from launcher.cli.text.stdout import say
from launcher.cli.text.style import screen_of
from launcher.core.env import TLAUNCH_MAX_TABLE_SIZE
from launcher.core.errors import RefusedTableError, UnreadableError
from launcher.core.frozen import frozen
from launcher.core.machine.proc import DEVICE_FILES, davinci_ids, nvidia_ids
from launcher.core.records import Cluster
from launcher.core.resources import data_dir, stand_in_note
from launcher.engines.variables import VISIBLE_DEVICES
from launcher.logs.terminal import escaped

SAMPLES = Path("rank_tables")  # what a person calls their directory, wherever it is installed


@frozen
class Table:
    """The devices of a run, and the text of the rank table that names them, read once: it may come from a pipe."""

    cluster: Cluster
    text: str | None = None  # None where there is no table
    format: str = ""
    notes: tuple[str, ...] = ()


def read_table(options: RunOptions) -> Table:
    """Read the rank table that the options name, or make a table of the devices that they count.

    Raises:
        UnreadableError, RefusedTableError: the table cannot be read, or breaks a rule.
    """
    if options.rank_table is None and options.engine == "slurm":
        from launcher.engines.slurm_allocation import cluster_of, read_allocation  # others need none of it

        return Table(cluster_of(read_allocation(os.environ), options.devices))
    if options.rank_table is None:
        if options.devices is not None:
            return Table(Cluster.local(options.devices))
        behind = next(filter(_says_devices, options.command), None)
        theirs = f"; {escaped(behind)} stands behind COMMAND, so it is the program's" if behind else ""
        return Table(Cluster.local(1), notes=(f"{one_rank_note(os.environ)}{theirs}",))
    from launcher.rank_table import Profile, read_rank_table  # --devices needs none of it
    from launcher.rank_table.diagnostics import headline

    # On a machine without Ascend devices no process will use HCCL, and what only HCCL asks for is a warning.
    chip = options.chip or ("auto" if davinci_ids() else "none")
    found: list[str] = []
    with sample_hinted(options.rank_table):
        path = found_table(options.rank_table, found.append)
        report = read_rank_table(path, Profile(chip), max_bytes=max_table_bytes())
    if report.cluster is None:
        refused = RefusedTableError(report.render(screen_of(sys.stderr).columns))
        refused.problems = report.problems
        raise refused
    warnings = (headline(problem, str(options.rank_table)) for problem in report.warnings)
    return Table(
        report.cluster, report.document.text, report.format.value if report.format else "", (*found, *warnings)
    )


def _says_devices(word: str) -> bool:
    """Return whether a word of COMMAND would say how many ranks there are, if it stood before that."""
    found = counterpart(word.partition("=")[0]) if word.startswith("--") else None
    of_table = word.partition("=")[0] == "--rank-table" or (found is not None and found.here == "--rank-table")
    return of_table or (found is not None and found.subject in {"devices", "ranks", "server count"})


def one_rank_note(environment: Mapping[str, str], device_files: Path = DEVICE_FILES) -> str:
    """Return the note for a run without a number of ranks, with the number of devices left idle.

    A user who limits the devices that can be seen knows how many there are.
    """
    note = "note: neither --devices nor --rank-table is given: there is one rank"
    count = len(davinci_ids(device_files)) or len(nvidia_ids(device_files))
    if count < 2 or any(environment.get(name) for name in VISIBLE_DEVICES):
        return note
    return f"{note}, though this machine has {count} devices; --devices {count} makes one for each"


def max_table_bytes() -> int:
    """Return how large a table may be: what --max-table-size has left in the environment, or the default."""
    from launcher.rank_table.table_reader import MAX_TABLE_BYTES  # `--help` needs none of it

    return int(os.environ.get(TLAUNCH_MAX_TABLE_SIZE) or MAX_TABLE_BYTES)


@contextmanager
def sample_hinted(path: Path) -> Iterator[None]:
    """Wrap the reading of `path`: where it is missing but has the name of a sample, the hint is that sample."""
    try:
        yield
    except UnreadableError as error:
        if _exists(path) or _sample(path.name) is None:
            raise
        raise UnreadableError(error.message, hint=f"did you mean {SAMPLES / path.name}, a sample?") from None


def found_table(path: Path, tell: Callable[[str], None] = say) -> Path:
    """Return `path` itself, or the sample table of that name where no such file is here: an installed copy has them too.

    `tell` gets a note of that: the name is also that of many a tutorial's own table, asked for from another directory.
    """
    if path.parent != SAMPLES or _exists(path):
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
    return sample if name and _exists(sample) else None


def _exists(path: Path) -> bool:
    return os.path.exists(path)  # noqa: PTH110 - Path.exists raises where a name is too long
