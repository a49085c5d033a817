"""The progress of a training as text, by the heartbeat of its rank 0."""

from __future__ import annotations

import re
import time

from launcher.cli.text.columns import duration
from launcher.core.heartbeat import Beat, Heartbeat, read_heartbeat
from launcher.core.run_dir import RunDir

STEP_LINE = re.compile(rb"^epoch: \d+ step: \d+, loss is .*\n", re.MULTILINE)  # of the bundled trainer, after each step
HEARTBEAT_EVERY_S = 1.0
HEARTBEAT_EVERY_PLAIN_S = 30.0  # where each is a line of its own


class ProgressText:
    """The step, loss, speed and time left in the heartbeat of rank 0."""

    def __init__(self, run_dir: RunDir, *, on_terminal: bool, needs_end: bool = False) -> None:
        """`needs_end`: nothing is told of a program that does not say after which step it is over."""
        self._path = run_dir.heartbeat(0)
        self._every_s = HEARTBEAT_EVERY_S if on_terminal else HEARTBEAT_EVERY_PLAIN_S
        self._needs_end = needs_end
        self.forget()

    def forget(self) -> None:
        """Forget what was read of another attempt."""
        self._next_s, self._text = 0.0, ""
        self._first: tuple[int, int] | None = None  # the first step that was read, and the time of its heartbeat

    def text(self) -> str:
        """Return "step 120 of 400, loss 3.2140, 12,345 tokens/s, 48 s left" or the like; empty where nothing is known."""
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._text = self._of(read_heartbeat(self._path))
            self._next_s = now_s + (self._every_s if self._text else HEARTBEAT_EVERY_S)
        return self._text

    def without_steps(self, lines: bytes) -> bytes:
        """Return lines of rank 0 without those of its steps, where `text` tells of them."""
        if not STEP_LINE.search(lines):
            return lines
        if not self._text:
            self._next_s = 0.0  # a heartbeat comes before the line of its step
        return STEP_LINE.sub(b"", lines) if self.text() else lines

    def _of(self, heartbeat: Heartbeat | None) -> str:
        beat = heartbeat.beat if heartbeat else Beat()
        if self._needs_end and beat.last_step is None:
            return ""
        end = "" if beat.last_step is None else f" of {beat.last_step}"
        left_s = self._left_s(heartbeat)
        figures = (
            None if beat.step is None else f"step {beat.step}{end}",
            None if beat.loss is None else f"loss {beat.loss:.4f}",
            None if beat.tokens_per_s is None else f"{beat.tokens_per_s:,.0f} tokens/s",
            None if left_s is None else f"{duration(left_s)} left",
        )
        return ", ".join(filter(None, figures))

    def _left_s(self, heartbeat: Heartbeat | None) -> float | None:
        """Return the seconds until the last step, at the pace since the first heartbeat that was read; None if unknown."""
        if heartbeat is None or heartbeat.beat.step is None:
            return None
        step, last = heartbeat.beat.step, heartbeat.beat.last_step
        if self._first is None or self._first[0] > step:
            self._first = (step, heartbeat.time_ns)
        first, first_ns = self._first
        if last is None or not first < step < last:
            return None
        return (last - step) * max(0, heartbeat.time_ns - first_ns) / 1e9 / (step - first)
