"""The save schedule: when to save a checkpoint.

Checkpoints are saved after an interval of steps or minutes, after validations, on request, and before a requested stop:

    SIGUSR1    save after the present step, and continue training
    SIGTERM    save after the present step, then terminate as by that signal

All ranks save after the same step. Steps are counted identically on all ranks. Events known to one rank, a signal or
the time, are votes that are summed over all ranks within the step (`ShardedOptimizer.step`). If a rank is lost, the sum
fails and nothing is saved.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NoReturn

from launcher.core.frozen import frozen
from launcher.recipes.train import CheckpointConfig


@frozen
class Due:
    saves: bool = False
    ends: bool = False  # after saving


class SaveSchedule:
    """Decides after each step whether to save a checkpoint. All ranks make the same decision."""

    def __init__(self, config: CheckpointConfig, *, has_clock: bool) -> None:
        """Create the schedule. `has_clock` is True on exactly one rank, which measures the time."""
        self._config = config
        self._every_s = 60 * config.every_minutes if has_clock else 0.0
        self._saved_s = time.monotonic()
        self._asked: set[signal.Signals] = set()  # signals that have come; SIGUSR1 until the next checkpoint

    def votes(self) -> tuple[float, ...]:
        """Return this rank's votes to save and to stop after the current step. Each vote is 1 or 0.

        The tuple is empty if checkpoints are off, so that no data is sent.
        """
        if not self._config.enabled:
            return ()
        is_time = 0 < self._every_s <= time.monotonic() - self._saved_s
        return float(signal.SIGUSR1 in self._asked or is_time), float(signal.SIGTERM in self._asked)

    def after(self, step: int, votes: tuple[float, ...], *, is_last: bool, validates: bool) -> Due:
        """Decide whether to save and to stop after a step. `votes` are sums over all ranks. Call this once per step."""
        config = self._config
        if not config.enabled:
            return Due()
        wishes_to_save, wishes_to_end = votes
        counted = config.every_steps > 0 and step % config.every_steps == 0
        saves = bool(is_last or counted or (config.keep_best and validates) or wishes_to_save or wishes_to_end)
        if saves:
            self._saved_s = time.monotonic()
            self._asked.discard(signal.SIGUSR1)
        return Due(saves, bool(wishes_to_end))

    def on_demand(self) -> AbstractContextManager[None]:
        """Return a context manager in which SIGUSR1 requests a checkpoint after the current step."""
        return self._noting(signal.SIGUSR1)

    @contextmanager
    def ends_after_step(self) -> Iterator[None]:
        """Delay SIGTERM until the current step is finished and saved.

        A signal that comes too late takes effect at the end of the block. If the block raises, the exception ends the
        process.
        """
        with self._noting(signal.SIGTERM):
            yield
        if signal.SIGTERM in self._asked:
            end_by_sigterm()

    @contextmanager
    def _noting(self, number: signal.Signals) -> Iterator[None]:
        if not self._config.enabled:
            yield
            return
        before = signal.signal(number, lambda *_: self._asked.add(number))
        try:
            yield
        finally:
            signal.signal(number, before)


def end_by_sigterm() -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.raise_signal(signal.SIGTERM)
    os._exit(128 + signal.SIGTERM)  # SIGTERM is blocked
