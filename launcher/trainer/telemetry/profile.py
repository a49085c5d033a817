"""Traces training steps by torch's profiler, and writes a file for chrome://tracing or Perfetto."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import torch
from torch.autograd import profiler

from launcher.core.atomic import replacing

WARM_UP_STEPS = 3  # not traced, because they open connections and allocate memory


class StepProfiler:
    """A profiler that traces `steps` steps of this rank after the first three, and writes one file."""

    def __init__(self, steps: int, path: Path | None, device: torch.device) -> None:
        """Prepare the profiler. Without a `path` it traces nothing, and `stepped` returns a message."""
        self._left = steps
        self._path = path
        self._steps = 0
        self._running = ExitStack()
        # Not `torch.profiler`, which imports torch's compiler at its first use. That takes every rank a second.
        self._profile = profiler.profile(
            path is not None and bool(steps), use_device=None if device.type == "cpu" else device.type
        )

    def stepped(self, *, is_last: bool) -> str:
        """Start or end the trace after a step; return a message to print, or an empty string. Never raises."""
        if not self._left:
            return ""
        if self._path is None:
            self._left = 0
            return "no profile: there is no run directory to write it to"
        self._steps += 1
        if self._steps == WARM_UP_STEPS and not is_last:
            self._running.enter_context(self._profile)
        is_over = self._steps == WARM_UP_STEPS + self._left or is_last
        return self.end() if is_over else ""

    def end(self) -> str:
        """End the trace at the end of the training; return a message to print, or an empty string. Never raises."""
        if not self._left:
            return ""
        self._left = 0
        if self._steps <= WARM_UP_STEPS:
            return f"no profile: the training ended after {self._steps} steps; the first {WARM_UP_STEPS} are not traced"
        self._running.close()
        assert self._path is not None, "nothing is traced without a path"
        try:
            with replacing(self._path) as aside:
                self._profile.export_chrome_trace(str(aside))
        except OSError as error:
            return f"no profile: {error.filename}: {error.strerror}"
        return f"profile: {self._path}"
