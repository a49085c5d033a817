"""Show how far a command is that reads and writes much."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(what: str, total_bytes: int | None) -> Iterator[Callable[[int], None]]:
    """Give a function that counts bytes which are done. On stderr, if that is a terminal, a bar shows them until the end.

    There is none where nobody knows how many there will be.
    """
    if total_bytes is None or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # most output goes to scripts
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total_bytes)
        yield lambda count_bytes: bar.advance(task, count_bytes)
