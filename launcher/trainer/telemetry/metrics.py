"""The measurements of the training, kept for later readers: metrics.jsonl, and the same for TensorBoard.

One rank writes both, under tlaunch only. They are rationed, so that steps of a millisecond do not become slower by them,
nor files of a month too large to be drawn.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from launcher.core.env import TLAUNCH_ATTEMPT, TLAUNCH_RUN_DIR
from launcher.core.metrics import Record, Saved, StepMetrics, Validation, append
from launcher.core.run_dir import RunDir
from launcher.trainer.telemetry.event_file import EventFile, tensorboard_is_installed
from launcher.trainer.telemetry.heartbeat import device_memory_bytes

# Between two records of steps lie at least so many seconds, and so much of the time that the training has taken: a file
# has 20,000 records for every e-fold of it.
REST_S, REST_SHARE = 0.02, 1 / 20_000
MAX_EXPONENT = 700  # beyond it there is no perplexity that a float holds
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def perplexity_of(loss: float) -> float:
    return math.exp(min(loss, MAX_EXPONENT))


@dataclass
class _Since:
    """The work since the last record of steps."""

    steps: int = 0
    seconds: float = 0.0
    tokens: int = 0
    loss: float = 0.0  # sum over the steps
    # Of the last step
    time_ns: int = 0
    step: int = 0
    epoch: int = 0
    learning_rate: float = 0.0


class Metrics:
    """Writes after the first step, after the last one, and in between at most every `REST_S` seconds, later less often.

    A record is that of the step after which it comes; loss, time and tokens are the means of all steps since the record
    before, itself included. Where steps take longer than that every step has its own. Steps that wait for the next
    record are written before a validation, and where losses begin or cease to be finite numbers; the first that is none
    has a record of its own.

    Nothing here ever raises: what cannot be written costs one line in this rank's log, once.
    """

    def __init__(self, environment: Mapping[str, str], device: torch.device, *, writes: bool = True) -> None:
        """Only one rank `writes`, from its own step; any may say `saved`."""
        self._device = device
        self._writes = writes
        self._attempt = _attempt(environment)
        self._keepers = _keepers(environment, self._attempt)
        self._since = _Since()
        self._is_finite = True  # the last loss
        self._began_s, self._next_s = time.monotonic(), 0.0

    def stepped(
        self, step: int, seconds: float, *, epoch: int, tokens: int, loss: float, learning_rate: float, is_last: bool
    ) -> None:
        """Take note of a step that took `seconds`; `tokens` are those of all ranks."""
        if not self._writes or not self._keepers:
            return
        was_finite, self._is_finite = self._is_finite, math.isfinite(loss)
        if was_finite != self._is_finite:
            self._write_steps()
        since = self._since
        since.steps += 1
        since.seconds += seconds
        since.tokens += tokens
        since.loss += loss
        since.time_ns, since.step, since.epoch, since.learning_rate = time.time_ns(), step, epoch, learning_rate
        if is_last or (was_finite and not self._is_finite) or time.monotonic() >= self._next_s:
            self._write_steps()

    def validated(self, step: int, loss: float) -> None:
        """Record the mean loss per token of the validation data after `step`, in nats."""
        if self._writes:
            self._write_steps()
            self._keep(Validation(time.time_ns(), self._attempt, step, loss, perplexity_of(loss)))

    def flush(self) -> None:
        """Write the steps that wait: of a training that ends before its last step there will be no other record."""
        self._write_steps()

    def saved(self, step: int, what: str) -> None:
        self._keep(Saved(time.time_ns(), self._attempt, step, what))

    def _write_steps(self) -> None:
        since, self._since = self._since, _Since()
        if not since.steps:
            return
        self._keep(
            StepMetrics(
                since.time_ns,
                self._attempt,
                since.step,
                loss=since.loss / since.steps,
                learning_rate=since.learning_rate,
                tokens_per_s=since.tokens / since.seconds if since.seconds else None,
                step_s=since.seconds / since.steps,
                memory_bytes=memory_bytes(self._device),
                epoch=since.epoch,
            )
        )
        now_s = time.monotonic()
        self._next_s = now_s + max(REST_S, (now_s - self._began_s) * REST_SHARE)

    def _keep(self, record: Record) -> None:
        for keeper in self._keepers:
            keeper.take(record)


class _Keeper:
    """Writes records somewhere; the first failure is told, later ones are not. Then it goes on trying, or does not."""

    def __init__(self, path: Path, write: Callable[[Record], None], told: set[str], *, tries_again: bool) -> None:
        """`told`: reasons that the log of this rank holds already."""
        self._path = path
        self._write = write
        self._told = told
        self._tries_again = tries_again
        self._has_failed = False

    def take(self, record: Record) -> None:
        if self._has_failed and not self._tries_again:
            return
        try:
            self._write(record)
        except Exception as error:  # noqa: BLE001 - a courtesy must not end a training
            reason = str((isinstance(error, OSError) and error.strerror) or error)
            if not self._has_failed and reason not in self._told:
                self._told.add(reason)
                line = f"metrics will be missing from {self._path}: {reason}"
                with suppress(Exception):  # this rank's log may be closed, or have an encoding without these letters
                    encoding = sys.stdout.encoding
                    print(line.encode(encoding, "backslashreplace").decode(encoding), flush=True)
            self._has_failed = True


def _keepers(environment: Mapping[str, str], attempt: int) -> list[_Keeper]:
    """None without a run directory."""
    if not environment.get(TLAUNCH_RUN_DIR):
        return []
    run_dir = RunDir(Path(environment[TLAUNCH_RUN_DIR]))
    told: set[str] = set()
    keepers = [_Keeper(run_dir.metrics, partial(append, run_dir.metrics), told, tries_again=True)]
    if tensorboard_is_installed():
        scalars = _Scalars(run_dir.tensorboard, attempt)
        # A file that may end with half a record takes no more.
        keepers.append(_Keeper(run_dir.tensorboard, scalars.write, told, tries_again=False))
    return keepers


class _Scalars:
    """Records for TensorBoard. The file is made at the first one, after the first step."""

    def __init__(self, directory: Path, attempt: int) -> None:
        self._directory = directory
        self._attempt = attempt
        self._file: EventFile | None = None

    def write(self, record: Record) -> None:
        values = _values(record)
        if not values:
            return
        if self._file is None:
            purge_step = record.step if self._attempt else None
            self._file = EventFile(self._directory, attempt=self._attempt, purge_step=purge_step)
        self._file.scalars(record.time_ns, record.step, values)


def _values(record: Record) -> dict[str, float]:
    """Return the values of a record by their TensorBoard tag."""
    named: dict[str, float | None] = {}
    match record:
        case StepMetrics():
            named = {
                "loss/train": record.loss,
                "learning_rate": record.learning_rate,
                "tokens_per_s": record.tokens_per_s,
                "memory_bytes": record.memory_bytes,
            }
        case Validation():
            named = {"loss/validation": record.validation_loss, "perplexity": record.perplexity}
        case Saved():
            pass
    return {tag: value for tag, value in named.items() if value is not None}


def _attempt(environment: Mapping[str, str]) -> int:
    text = environment.get(TLAUNCH_ATTEMPT, "")
    return int(text) if text.isdecimal() else 0


def memory_bytes(device: torch.device) -> int | None:
    """Return the most bytes that tensors have taken on an accelerator, or what this process holds on the CPU; None if unknown."""
    with suppress(Exception):  # after a failure accelerators may refuse to answer
        if device.type != "cpu":
            return device_memory_bytes(device)
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * PAGE_BYTES
    return None
