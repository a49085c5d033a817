"""Progress bars for commands that process large files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(what: str, total_bytes: int | None) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on stderr, and yield a function that advances it by a number of bytes.

    Show no bar if the total is unknown or stderr is not a terminal.
    """
    if total_bytes is None or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich import console, progress  # only for terminals

    done = progress.BarColumn(), progress.DownloadColumn(binary_units=True), progress.TimeRemainingColumn()
    columns = progress.TextColumn("{task.description}"), *done
    with progress.Progress(*columns, console=console.Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total_bytes)
        yield lambda count_bytes: bar.advance(task, count_bytes)
