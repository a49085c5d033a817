"""The course of a training by what one of its ranks has printed, where it has written no metrics.jsonl."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from launcher.core.metrics import StepMetrics
from launcher.core.run_dir import RunDir
from launcher.logs.lines import Line
from launcher.runs.rank_figures import FiguresReader
from launcher.runs.rank_logs import RankLogs
from launcher.runs.status import RunState

if TYPE_CHECKING:
    from launcher.logs.select import Matcher

READ_BYTES = 8 << 20  # of the end of the log: 150,000 lines, read in some seconds


def logged_steps(state: RunState, pattern: Matcher | None = None) -> tuple[int | None, tuple[StepMetrics, ...]]:
    """Return the lowest rank whose log tells of steps at its end, and these steps; None and nothing where none does.

    Their times are those of their lines, 0 where they carry none. Steps of epochs, which begin anew with each of them, go on.

    Raises:
        UsageError: the pattern takes too long.
    """
    reader = FiguresReader(state.run_dir, pattern)
    global_rank = next((rank.global_rank for rank in state.ranks if reader.logged(rank.global_rank) is not None), None)
    if reader.refused is not None:
        raise reader.refused
    if global_rank is None:
        return None, ()
    return global_rank, tuple(_steps(state.run_dir, global_rank, state.started_ns or 0, pattern))


def _steps(run_dir: RunDir, global_rank: int, near_ns: int, pattern: Matcher | None) -> Iterator[StepMetrics]:
    from launcher.logs.figures import figures_in  # noqa: PLC0415 - most runs have metrics.jsonl

    logs = RankLogs(run_dir, [global_rank], near_ns)
    logs.note_attempts()
    log = logs.of_rank.get(global_rank)
    if log is None:
        return
    before: tuple[int | None, int, int] = (None, 0, 0)  # attempt, step as it was printed, and what comes on top of it
    try:
        log.skip_to_last_bytes(READ_BYTES)
        for line in log.whole():
            for found in reversed(tuple(figures_in(_ended(line), pattern))):
                if found.step is None:
                    continue
                attempt, last, base = before
                if attempt != line.attempt:
                    base = 0
                elif found.epoch is not None and found.step < last:
                    base += last
                before = (line.attempt, found.step, base)
                yield StepMetrics(
                    line.time_ns or 0, line.attempt or 0, base + found.step, found.loss, tokens_per_s=found.tokens_per_s,
                    step_s=None if not found.steps_per_s else 1 / found.steps_per_s,
                )  # fmt: skip
    finally:
        log.close()


def _ended(line: Line) -> bytes:
    return line.raw + b"\n" * line.ends
