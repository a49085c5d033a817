"""The devices of a run, from its rank table or from --devices; packaged sample tables; the size limit of tables."""

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

SAMPLES = Path("rank_tables")  # the directory of samples in the documentation, wherever tlaunch is installed


@frozen
class Table:
    """The devices of a run. The text of the rank table is kept because a pipe can be read only once."""

    cluster: Cluster
    text: str | None = None  # None without a rank table
    format: str = ""
    notes: tuple[str, ...] = ()


def read_table(options: RunOptions) -> Table:
    """Return the devices from the rank table, from --devices or from the Slurm allocation.

    Raises UnreadableError if the table cannot be read, and RefusedTableError if it is invalid.
    """
    if options.rank_table is None and options.engine == "slurm":
        from launcher.engines.slurm_allocation import cluster_of, read_allocation  # only for --engine slurm

        return Table(cluster_of(read_allocation(os.environ), options.devices))
    if options.rank_table is None:
        if options.devices is not None:
            return Table(Cluster.local(options.devices))
        behind = next(filter(_says_devices, options.command), None)
        theirs = f"; {escaped(behind)} after COMMAND is passed to the program" if behind else ""
        return Table(Cluster.local(1), notes=(f"{one_rank_note(os.environ)}{theirs}",))
    from launcher.rank_table import Profile, headline, read_rank_table  # only with a rank table

    # Without Ascend devices nothing uses HCCL, so violations of HCCL's rules are only warnings.
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
    table_format = report.format.value if report.format else ""
    return Table(report.cluster, report.document.text, table_format, (*found, *warnings))


def _says_devices(word: str) -> bool:
    """Return True if a word of COMMAND looks like an option of `tlaunch run` for devices or ranks."""
    name = word.partition("=")[0]
    found = counterpart(name) if word.startswith("--") else None
    if name == "--rank-table" or found is None:
        return name == "--rank-table"
    return found.here == "--rank-table" or found.subject in {"devices", "ranks", "server count"}


def one_rank_note(environment: Mapping[str, str], device_files: Path = DEVICE_FILES) -> str:
    """Return a note that the run has only one rank, with the number of devices that this machine has.

    The number is left out if it is below 2, or if a variable such as CUDA_VISIBLE_DEVICES is set.
    """
    note = "note: starting one rank, because neither --devices nor --rank-table is given"
    count = len(davinci_ids(device_files)) or len(nvidia_ids(device_files))
    if count < 2 or any(environment.get(name) for name in VISIBLE_DEVICES):
        return note
    return f"{note}; this machine has {count} devices (--devices {count})"


def max_table_bytes() -> int:
    """Return the size limit of rank tables, from --max-table-size or the environment."""
    from launcher.rank_table.table_reader import MAX_TABLE_BYTES  # not needed for `--help`

    return int(os.environ.get(TLAUNCH_MAX_TABLE_SIZE) or MAX_TABLE_BYTES)


@contextmanager
def sample_hinted(path: Path) -> Iterator[None]:
    """If a missing file has the name of a packaged sample, add a hint about the sample to the error."""
    try:
        yield
    except UnreadableError as error:
        if _exists(path) or _sample(path.name) is None:
            raise
        raise UnreadableError(error.message, hint=f"did you mean {SAMPLES / path.name}, a sample?") from None


def found_table(path: Path, tell: Callable[[str], None] = say) -> Path:
    """Return `path`. If `path` is `rank_tables/NAME` and does not exist, return the packaged sample NAME instead.

    `tell` is called with a note if a sample is used.
    """
    if path.parent != SAMPLES or _exists(path) or (sample := _sample(path.name)) is None:
        return path
    tell(stand_in_note(str(path), "sample", sample))
    return sample


def is_sample(table: Path) -> bool:
    """Return True if a file is a packaged sample, or a copy of it with the same name."""
    sample = _sample(table.name)
    return sample is not None and table.is_file() and filecmp.cmp(table, sample, shallow=False)


def _sample(name: str) -> Path | None:
    sample = data_dir(SAMPLES.name) / name
    return sample if name and _exists(sample) else None


def _exists(path: Path) -> bool:
    return os.path.exists(path)  # noqa: PTH110 - Path.exists raises for long names
