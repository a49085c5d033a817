"""This rank's signs of life: a beat after a step, a touch during whatever else takes long.

Both are rationed, so that steps of a millisecond do not become slower by them.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from launcher.core.heartbeat import Beat, beat, touch

REST_S = 0.2  # between two signs of life
FIRST_NAP_S, MAX_NAP_S = 0.0005, 0.02


@dataclass
class _Since:
    """The work since the last beat."""

    steps: int = 0
    seconds: float = 0.0
    busy_s: float = 0.0
    tokens: int = 0


class HeartbeatWriter:
    """Beats after the first step, after the last one, and in between at most every `REST_S` seconds.

    A beat tells of the step after which it comes; times and tokens are the means of all steps since the last beat.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._since = _Since()
        self._next_s = 0.0

    def stepped(
        self, step: int, last_step: int, seconds: float, busy_s: float, *, tokens: int | None, loss: float | None
    ) -> None:
        """Take note of a step that took `seconds`, in `busy_s` of which this rank worked; `tokens` are those of all ranks.

        None: there are none in what is trained on.
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
                # Accelerators wait in the background: nobody knows how much of the step they worked.
                busy_s=since.busy_s / since.steps if self._device.type == "cpu" else None,
                loss=loss,
                tokens_per_s=None if tokens is None else since.tokens / since.seconds,
                device_memory_bytes=device_memory_bytes(self._device),
            ),
        )
        self._since, self._next_s = _Since(), now_s + REST_S


class _Touches:
    def __init__(self) -> None:
        self._next_s = 0.0

    def touch(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + REST_S
            touch(os.environ)


# Call it wherever this rank gets on without taking steps.
getting_on = _Touches().touch


def wait_for_long(work: dist.Work | None) -> None:
    """Wait for ranks that may have much to do first. Says meanwhile that this rank is not the one that hangs."""
    assert work is not None, "only members of a group wait in it"
    nap_s = FIRST_NAP_S
    while not work.is_completed():
        getting_on()
        time.sleep(nap_s)
        nap_s = min(2 * nap_s, MAX_NAP_S)
    work.wait()


def device_memory_bytes(device: torch.device) -> int | None:
    """Return the most bytes that tensors have taken on the accelerator so far; None if torch does not report it."""
    tell = getattr(torch.accelerator, "max_memory_allocated", None)
    return None if device.type == "cpu" or tell is None else int(tell(device))
