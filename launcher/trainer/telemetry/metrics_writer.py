"""Writes the metrics of a training to metrics.jsonl and to TensorBoard.

One rank writes both, and only in a run of tlaunch. Records are rate-limited, so that they do not slow down steps of a
millisecond, and files of a month stay small enough to plot.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from launcher.core.env import TLAUNCH_ATTEMPT, TLAUNCH_RUN_DIR
from launcher.core.machine.proc import PAGE_BYTES, stat, status
from launcher.core.metrics import Record, Saved, StageShares, StepMetrics, Validation, append
from launcher.core.run_dir import RunDir
from launcher.trainer.telemetry.event_file import EventFile, tensorboard_is_installed
from launcher.trainer.telemetry.heartbeat import device_memory_bytes
from launcher.trainer.telemetry.step_time import StepTime

# Minimum time between two step records, in seconds and as a share of the training's duration. So the file gets at most
# 20,000 records each time the duration grows by a factor of e.
REST_S, REST_SHARE = 0.02, 1 / 20_000
MAX_EXPONENT = 700  # exp of a larger loss would overflow
# Fields of a step record that are TensorBoard tags, and those whose tags begin with "step/".
STEP_SCALARS = ("learning_rate", "tokens_per_s", "memory_bytes", "peak_memory_bytes", "padding_share", "model_flops",
                "utilisation", "gradient_norm", "clipped_share")  # fmt: skip
STEP_PARTS = ("data_s", "compute_s", "communication_s", "bubble_s")
Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
PEAK_SIZE, PEAK_S = 1024, 0.05  # size of the square matrices, and duration, of the measurement of peak FLOP/s


def perplexity_of(loss: float) -> float:
    return math.exp(min(loss, MAX_EXPONENT))


@dataclass
class _Since:
    steps: int = 0
    # Sums over the steps
    time: StepTime = field(default_factory=StepTime)
    loss: float = 0.0
    gradient_norm: float = 0.0
    # Sums, or None if the program does not report the value
    tokens: float | None = 0
    padding_share: float | None = 0.0
    model_flops: float | None = 0.0
    clipped: float | None = 0
    # Of the last step
    time_ns: int = 0
    step: int = 0
    epoch: int = 0
    learning_rate: float = 0.0


class Metrics:
    """Writes metrics after the first and last step, and at most every `REST_S` seconds in between.

    The interval grows with the duration of the training. A step that is longer gets its own record. A record contains
    the number of its last step. Its loss, gradient norm, times, tokens, padding and FLOPs are means over all steps since
    the previous record. Pending steps are written before a validation, and before the loss or the gradient norm changes
    between finite and non-finite. The first non-finite value gets its own record.

    Never raises. The first failure to write prints one line in this rank's log.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        device: torch.device,
        *,
        writes: bool = True,
        ranks: int = 1,
        dtype: torch.dtype = torch.float32,
        product: Product = torch.mm,
    ) -> None:
        """Create the writer. `writes` is True on one rank. The other ranks write records only when `saved` is called.

        To know the peak FLOP/s, that rank calls `product`, the matrix product of the model's layers, on its CPUs for
        0.05 s with `dtype`. The other ranks are assumed to have the same CPUs.
        """
        self._device = device
        self._writes = writes
        self._attempt = attempt_in(environment)
        self._keepers = _keepers(environment, self._attempt)
        peak = peak_flops_per_s(device, dtype, product) if writes and self._keepers else None
        self._peak_flops_per_s = None if peak is None else peak * ranks
        self._since = _Since()
        self._is_finite = True  # of the last loss and gradient norm
        self._began_s, self._next_s = time.monotonic(), 0.0

    def stepped(
        self,
        step: int,
        time_of_step: StepTime,
        *,
        epoch: int,
        tokens: int | None,
        padding_share: float | None,
        model_flops: float | None,
        loss: float,
        gradient_norm: float,
        is_clipped: bool | None,
        learning_rate: float,
        is_last: bool,
    ) -> None:
        """Record a step. `tokens` and `model_flops` are sums over all ranks. Unknown values are None."""
        if not self._writes or not self._keepers:
            return
        was_finite, self._is_finite = self._is_finite, math.isfinite(loss) and math.isfinite(gradient_norm)
        if was_finite != self._is_finite:
            self.flush()
        since = self._since
        since.steps += 1
        since.time += time_of_step
        since.loss += loss
        since.gradient_norm += gradient_norm
        since.clipped = _sum(since.clipped, is_clipped)
        since.tokens = _sum(since.tokens, tokens)
        since.padding_share = _sum(since.padding_share, padding_share)
        since.model_flops = _sum(since.model_flops, model_flops)
        since.time_ns, since.step, since.epoch, since.learning_rate = time.time_ns(), step, epoch, learning_rate
        if is_last or (was_finite and not self._is_finite) or time.monotonic() >= self._next_s:
            self.flush()

    def validated(self, step: int, loss: float, *, of_tokens: bool = True, bleu: float | None = None) -> None:
        """Record the validation loss after `step`. If the loss is a mean per token, also record the perplexity."""
        if self._writes:
            self.flush()
            perplexity = perplexity_of(loss) if of_tokens else None
            self._keep(Validation(time.time_ns(), self._attempt, step, loss, perplexity, bleu))

    def stages_measured(self, step: int, busy: Sequence[float], predicted: Sequence[float]) -> None:
        """Record the fraction of time that each stage is busy, measured and predicted, for the steps up to `step`."""
        if self._writes:
            self.flush()
            self._keep(StageShares(time.time_ns(), self._attempt, step, tuple(busy), tuple(predicted)))

    def saved(self, step: int, what: str) -> None:
        self._keep(Saved(time.time_ns(), self._attempt, step, what))

    def flush(self) -> None:
        """Write one record for the steps since the previous record, if there are any. Call it also at the end."""
        since, self._since = self._since, _Since()
        if not since.steps:
            return
        steps, spent = since.steps, since.time
        knows_waiting = self._device.type == "cpu"
        achieved = _quotient(since.model_flops, spent.seconds)
        if self._peak_flops_per_s is not None:  # other processes may have slowed down its measurement
            self._peak_flops_per_s = max(self._peak_flops_per_s, achieved or 0.0)
        self._keep(
            StepMetrics(
                since.time_ns,
                self._attempt,
                since.step,
                loss=since.loss / steps,
                learning_rate=since.learning_rate,
                tokens_per_s=_quotient(since.tokens, spent.seconds),
                step_s=spent.seconds / steps,
                memory_bytes=memory_bytes(self._device),
                epoch=since.epoch,
                peak_memory_bytes=peak_memory_bytes(self._device),
                padding_share=_quotient(since.padding_share, steps),
                data_s=spent.data_s / steps,
                compute_s=spent.compute_s / steps if knows_waiting else None,
                communication_s=spent.communication_s / steps if knows_waiting else None,
                bubble_s=spent.bubble_s / steps if knows_waiting else None,
                model_flops=_quotient(since.model_flops, steps),
                utilisation=_quotient(achieved, self._peak_flops_per_s or 0.0),
                gradient_norm=since.gradient_norm / steps,
                clipped_share=_quotient(since.clipped, steps),
            )
        )
        now_s = time.monotonic()
        self._next_s = now_s + max(REST_S, (now_s - self._began_s) * REST_SHARE)

    def _keep(self, record: Record) -> None:
        for keeper in self._keepers:
            keeper.take(record)


@dataclass
class _Keeper:
    """Writes all records to a file. It logs the first error, and then stops writing unless `tries_again` is set."""

    path: Path
    write: Callable[[Record], None]
    told: set[str]  # reasons that this rank has already logged
    tries_again: bool
    has_failed: bool = False

    def take(self, record: Record) -> None:
        if self.has_failed and not self.tries_again:
            return
        try:
            self.write(record)
        except Exception as error:  # noqa: BLE001 - missing metrics must not end a training
            reason = str((isinstance(error, OSError) and error.strerror) or error)
            if not self.has_failed and reason not in self.told:
                self.told.add(reason)
                line = f"cannot write metrics to {self.path}: {reason}"
                with suppress(Exception):  # stdout may be closed, or its encoding may lack characters
                    encoding = sys.stdout.encoding
                    print(line.encode(encoding, "backslashreplace").decode(encoding), flush=True)
            self.has_failed = True


def _sum(total: float | None, value: float | None) -> float | None:
    return None if total is None or value is None else total + value


def _quotient(total: float | None, divisor: float) -> float | None:
    """Return total / divisor, or None if `total` is None or `divisor` is zero."""
    return total / divisor if total is not None and divisor else None


def _keepers(environment: Mapping[str, str], attempt: int) -> list[_Keeper]:
    """Return the files to which metrics are written: metrics.jsonl and, if TensorBoard is installed, its event file."""
    if not environment.get(TLAUNCH_RUN_DIR):
        return []
    run_dir = RunDir(Path(environment[TLAUNCH_RUN_DIR]))
    told: set[str] = set()
    keepers = [_Keeper(run_dir.metrics, partial(append, run_dir.metrics), told, tries_again=True)]
    if tensorboard_is_installed():
        scalars = _Scalars(run_dir.tensorboard, attempt)
        # A file that ends with half a record cannot be continued.
        keepers.append(_Keeper(run_dir.tensorboard, scalars.write, told, tries_again=False))
    return keepers


@dataclass
class _Scalars:
    """Writes records as TensorBoard scalars. The first record creates the event file."""

    directory: Path
    attempt: int
    file: EventFile | None = None

    def write(self, record: Record) -> None:
        named: dict[str, float | None] = {}  # by tag; none of a `Saved`
        match record:
            case StepMetrics():
                named = {"loss/train": record.loss, "step/seconds": record.step_s}
                named |= {name: getattr(record, name) for name in STEP_SCALARS}
                named |= {f"step/{part}": getattr(record, part) for part in STEP_PARTS}
            case Validation():
                named["loss/validation"] = record.validation_loss
                named |= {"perplexity": record.perplexity, "bleu": record.bleu}
            case StageShares():
                named = {f"stage_busy/{index}": share for index, share in enumerate(record.stage_busy)}
        values = {tag: value for tag, value in named.items() if value is not None}
        if not values:
            return
        if self.file is None:
            purge_step = record.step if self.attempt else None
            self.file = EventFile(self.directory, attempt=self.attempt, purge_step=purge_step)
        self.file.scalars(record.time_ns, record.step, values)


def attempt_in(environment: Mapping[str, str]) -> int:
    """Return the number of this attempt to run the job (TLAUNCH_ATTEMPT), or 0 outside a run."""
    text = environment.get(TLAUNCH_ATTEMPT, "")
    return int(text) if text.isdecimal() else 0


def memory_bytes(device: torch.device) -> int | None:
    """Return the peak memory of tensors on an accelerator, or the resident memory of this process on a CPU, in bytes.

    Returns None if it is unknown.
    """
    with suppress(Exception):  # after a failure accelerators may refuse to answer
        if device.type != "cpu":
            return device_memory_bytes(device)
        found = stat(os.getpid())
        return None if found is None else found.pages * PAGE_BYTES
    return None


def peak_memory_bytes(device: torch.device) -> int | None:
    """Return the peak memory of tensors on an accelerator, or of this process on a CPU, in bytes."""
    with suppress(Exception):
        if device.type != "cpu":
            return device_memory_bytes(device)
        return int(status(os.getpid())["VmHWM"].split()[0]) * 1024
    return None


def peak_flops_per_s(device: torch.device, dtype: torch.dtype, product: Product) -> float | None:
    """Measure the FLOP/s of this rank's CPUs by multiplying two large matrices with `product`.

    Returns None on accelerators, since torch does not report their rate. The result is the fastest of several
    repetitions, because other processes can only slow it down.
    """
    if device.type != "cpu":
        return None
    matrix = torch.ones(PEAK_SIZE, PEAK_SIZE, dtype=dtype)
    product(matrix, matrix)  # the first call takes longer
    fastest_s, began_s = math.inf, time.perf_counter()
    while (start_s := time.perf_counter()) < began_s + PEAK_S:
        product(matrix, matrix)
        fastest_s = min(fastest_s, time.perf_counter() - start_s)
    return 2 * PEAK_SIZE**3 / fastest_s
