"""Find the newest whole checkpoints of a run whose weights are to be averaged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from launcher.checkpoint.average import AveragedBoxes
from launcher.checkpoint.index import DamagedError, Index, read_index
from launcher.checkpoint.tensors import StoredBoxes, all_bytes, opened, state_bytes
from launcher.cli.text.progress_bar import progress_bar
from launcher.cli.text.stdout import say
from launcher.core.errors import UsageError


@contextmanager
def averaged_with_bar(paths: Sequence[Path], count: int, reference: str) -> Iterator[AveragedBoxes]:
    """Give the mean of the newest `count` whole checkpoints of `paths`, and show how far reading and writing are.

    `reference` is what a person named. The files are compared with their digests first. A damaged checkpoint is
    reported, and an older one taken in its place.

    Raises:
        UsageError: fewer are whole, or they are not of one training.
        UnreadableError: one cannot be read, or another version has written it.
    """
    if len(paths) == 1 and paths[0].name == Path(reference).name:
        hint = f"name a run or a directory of checkpoints, such as {paths[0].parent}"
        raise UsageError(f"--average {count}: {paths[0]} is a single checkpoint", hint=hint)
    readable = [(path, index) for path in paths if (index := _index_of(path)) is not None]
    total = sum(all_bytes(index) + state_bytes(index, 1) for _, index in readable[:count])
    with progress_bar("merge", total) as advance, ExitStack() as stack:
        stored: list[StoredBoxes] = []
        for path, index in readable:
            if len(stored) == count:
                break
            try:
                stored.append(stack.enter_context(opened(path, index, advance, say)))
            except DamagedError as error:
                say(f"{error.message}; {path.name} is left out")
        if len(stored) < count:
            raise _too_few(paths, len(stored), count)
        yield AveragedBoxes(stored)


def _index_of(path: Path) -> Index | None:
    """Return the index of a checkpoint; None, and a line that says so, where it is damaged."""
    try:
        return read_index(path)
    except DamagedError as error:
        say(f"{error.message}; {path.name} is left out")
        return None


def _too_few(paths: Sequence[Path], whole: int, count: int) -> UsageError:
    more = "keep more with checkpoint.every_steps and checkpoint.keep"
    hint = f"use --average {whole}, or {more}" if whole > 1 else f"leave --average out, or {more}"
    found = f"{whole} whole checkpoint{'s' * (whole != 1)}"
    return UsageError(f"--average {count}: {paths[0].parent} has {found}", hint=hint)
