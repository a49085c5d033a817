"""How far a run has come, in a few words: `--console status`."""

from __future__ import annotations

import time
from collections.abc import Iterator

from launcher.core.heartbeat import Beat, read_heartbeat
from launcher.core.records import RunSpec
from launcher.core.run_dir import RunDir

EVERY_S = 1.0  # a look at the heartbeats
EVERY_PLAIN_S = 30.0  # where each is a line of its own


class Pace:
    """Reads the heartbeats of the ranks whose lines would be shown: they know the loss, if any does."""

    def __init__(self, spec: RunSpec, *, on_terminal: bool) -> None:
        run_dir = RunDir(spec.run_dir)
        self._heartbeats = [run_dir.heartbeat(rank) for rank in spec.console_ranks]
        self._every_s = EVERY_S if on_terminal else EVERY_PLAIN_S
        self._next_s, self._text = 0.0, ""

    def text(self) -> str:
        """Such as "step 120, loss 3.214, 12,345 tokens/s"; empty where no rank tells."""
        now_s = time.monotonic()
        if now_s >= self._next_s:
            found = [read_heartbeat(path) for path in self._heartbeats]
            self._text = ", ".join(_words([heartbeat.beat for heartbeat in found if heartbeat]))
            self._next_s = now_s + (self._every_s if self._text else EVERY_S)
        return self._text


def _words(beats: list[Beat]) -> Iterator[str]:
    steps = [beat.step for beat in beats if beat.step is not None]
    losses = [beat.loss for beat in beats if beat.loss is not None]
    rates = [beat.tokens_per_s for beat in beats if beat.tokens_per_s is not None]
    if steps:
        yield f"step {max(steps)}"
    if losses:
        yield f"loss {losses[-1]:.4f}"
    if rates:
        yield f"{rates[-1]:,.0f} tokens/s"
