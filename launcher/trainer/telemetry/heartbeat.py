"""Writes this rank's heartbeat file: rewrites it after steps, and touches it during other long work.

Both are rate-limited, so that they do not slow down steps of a millisecond.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from launcher.core.heartbeat import Beat, beat, touch

REST_S = 0.2  # minimum time between two heartbeats
FIRST_NAP_S, MAX_NAP_S = 0.0005, 0.02


@dataclass
class _Since:
    steps: int = 0
    seconds: float = 0.0
    busy_s: float = 0.0
    tokens: int = 0


class HeartbeatWriter:
    """Writes this rank's heartbeat after the first and last step, and at most every `REST_S` seconds in between.

    A heartbeat contains the number of the latest step, and mean times and tokens of the steps since the previous one.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._since = _Since()
        self._next_s = 0.0

    def stepped(
        self, step: int, last_step: int, seconds: float, busy_s: float, *, tokens: int | None, loss: float | None
    ) -> None:
        """Record a step that took `seconds`. This rank worked for `busy_s` of them, and otherwise waited for others.

        `tokens` is the number over all ranks, or None if the training data has no tokens.
        """
        since = self._since
        since.steps += 1
        since.seconds += seconds
        since.busy_s += busy_s
        since.tokens += tokens or 0
        now_s = time.monotonic()
        if now_s < self._next_s and step != last_step:
            return
        beat(
            os.environ,
            Beat(
                step=step,
                last_step=last_step,
                # Accelerators wait in the background, so their busy time is unknown.
                busy_s=since.busy_s / since.steps if self._device.type == "cpu" else None,
                loss=loss,
                tokens_per_s=None if tokens is None else since.tokens / since.seconds,
                device_memory_bytes=device_memory_bytes(self._device),
            ),
        )
        self._since, self._next_s = _Since(), now_s + REST_S


_next_touch_s = 0.0


def getting_on() -> None:
    """Touch the heartbeat file, at most every `REST_S` seconds. Call this often during long work without steps."""
    global _next_touch_s  # noqa: PLW0603 - state of the process
    now_s = time.monotonic()
    if now_s >= _next_touch_s:
        _next_touch_s = now_s + REST_S
        touch(os.environ)


def wait_for_long(work: dist.Work | None) -> None:
    """Wait for a collective that other ranks may join late, and keep touching the heartbeat file meanwhile."""
    assert work is not None, "only members of a group wait in it"
    nap_s = FIRST_NAP_S
    while not work.is_completed():
        getting_on()
        time.sleep(nap_s)
        nap_s = min(2 * nap_s, MAX_NAP_S)
    work.wait()


def device_memory_bytes(device: torch.device) -> int | None:
    """Return the peak memory of tensors on the accelerator in bytes, or None if it is unknown."""
    tell = getattr(torch.accelerator, "max_memory_allocated", None)
    return None if device.type == "cpu" or tell is None else int(tell(device))
