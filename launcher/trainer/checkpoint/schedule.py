"""The moments at which a checkpoint is saved: after so many steps or minutes, after a validation, on demand, before a wanted end.

    SIGUSR1    a checkpoint after the present step, and the training goes on
    SIGTERM    a checkpoint after the present step, then the process ends as by that signal

All ranks save after the same step. They count steps alike. What one of them alone knows, a signal or the time, it votes for, and votes
are summed over all ranks within the step (`ShardedOptimizer.step`). Where a rank is lost that sum fails, so nothing is saved.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from launcher.core.frozen import frozen
from launcher.recipes.train import CheckpointConfig


@frozen
class Due:
    """The things that all ranks do after a step."""

    saves: bool = False
    ends: bool = False  # once that is saved


class SaveSchedule:
    """Says after each step, on every rank alike, whether to save. Does nothing where no checkpoints are written."""

    def __init__(self, config: CheckpointConfig, *, has_clock: bool) -> None:
        """`has_clock`: the minutes are counted on this rank, which must be so on one rank only."""
        self._config = config
        self._every_s = 60 * config.every_minutes if has_clock else 0.0
        self._saved_s = time.monotonic()
        self._wants_save = False
        self._wants_end = False

    def votes(self) -> tuple[float, ...]:
        """Return 1 for each thing that this rank wants after the present step, else 0: a checkpoint, an end.

        Nothing where no checkpoints are written: no rank sends more than it has to.
        """
        if not self._config.is_on:
            return ()
        is_time = 0 < self._every_s <= time.monotonic() - self._saved_s
        return float(self._wants_save or is_time), float(self._wants_end)

    def after(self, step: int, votes: tuple[float, ...], *, is_last: bool, validates: bool) -> Due:
        """Return what is due, given the sums of all ranks' `votes`, and whether this step is validated. Call it once for each step."""
        config = self._config
        if not config.is_on:
            return Due()
        wishes_to_save, wishes_to_end = votes
        counted = config.every_steps > 0 and step % config.every_steps == 0
        saves = bool(is_last or counted or (config.keep_best and validates) or wishes_to_save or wishes_to_end)
        if saves:
            self._saved_s, self._wants_save = time.monotonic(), False
        return Due(saves, bool(wishes_to_end))

    @contextmanager
    def on_demand(self) -> Iterator[None]:
        """Take SIGUSR1 as the wish for a checkpoint, which the next step fulfils where none is being taken."""

        def ask(*_: Any) -> None:
            self._wants_save = True

        with self._handled(signal.SIGUSR1, ask):
            yield

    @contextmanager
    def ends_after_step(self) -> Iterator[None]:
        """Have SIGTERM wait for the end of the present step, and for its checkpoint.

        If it has come too late for that, it acts at the end of the block; if the block has failed, that alone ends the process.
        """

        def ask(*_: Any) -> None:
            self._wants_end = True

        with self._handled(signal.SIGTERM, ask):
            yield
        if self._wants_end:
            end_by_sigterm()

    @contextmanager
    def _handled(self, number: signal.Signals, ask: Any) -> Iterator[None]:
        if not self._config.is_on:
            yield
            return
        before = signal.signal(number, ask)
        try:
            yield
        finally:
            signal.signal(number, before)


def end_by_sigterm() -> NoReturn:
    """End this process as SIGTERM ends one that has no handler."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.raise_signal(signal.SIGTERM)
    os._exit(128 + signal.SIGTERM)  # it is blocked here
