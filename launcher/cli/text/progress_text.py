"""How far a run has come, in a few words: `--console status`."""

from __future__ import annotations

import time
from collections.abc import Iterator

from launcher.core.heartbeat import Beat, read_heartbeat
from launcher.core.run_dir import RunDir

EVERY_S = 1.0  # a look at the heartbeats
EVERY_PLAIN_S = 30.0  # where each is a line of its own


class ProgressText:
    """Reads the heartbeat of rank 0."""

    def __init__(self, run_dir: RunDir, *, on_terminal: bool) -> None:
        self._path = run_dir.heartbeat(0)
        self._every_s = EVERY_S if on_terminal else EVERY_PLAIN_S
        self._next_s, self._text = 0.0, ""

    def forget(self) -> None:
        """Forget what was read of another attempt."""
        self._next_s, self._text = 0.0, ""

    def text(self) -> str:
        """Return "step 120, loss 3.214, 12,345 tokens/s" or the like; empty where nothing is known."""
        now_s = time.monotonic()
        if now_s >= self._next_s:
            heartbeat = read_heartbeat(self._path)
            self._text = ", ".join(_words(heartbeat.beat)) if heartbeat else ""
            self._next_s = now_s + (self._every_s if self._text else EVERY_S)
        return self._text


def _words(beat: Beat) -> Iterator[str]:
    if beat.step is not None:
        yield f"step {beat.step}"
    if beat.loss is not None:
        yield f"loss {beat.loss:.4f}"
    if beat.tokens_per_s is not None:
        yield f"{beat.tokens_per_s:,.0f} tokens/s"
