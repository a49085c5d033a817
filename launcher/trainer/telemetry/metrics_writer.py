"""The measurements of the training, kept for later readers: metrics.jsonl, and the same for TensorBoard.

One rank writes both, under tlaunch only. They are rationed, so that steps of a millisecond do not become slower by them,
nor files of a month too large to be drawn.
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

# Between two records of steps lie at least so many seconds, and so much of the time that the training has taken: a file
# has 20,000 records for every e-fold of it.
REST_S, REST_SHARE = 0.02, 1 / 20_000
MAX_EXPONENT = 700  # beyond it there is no perplexity that a float holds
Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
PEAK_SIZE, PEAK_S = 1024, 0.05  # of the square matrices whose product shows what a rank's CPUs can do, and for how long


def perplexity_of(loss: float) -> float:
    return math.exp(min(loss, MAX_EXPONENT))


@dataclass
class _Since:
    """The work since the last record of steps."""

    steps: int = 0
    # Sums over the steps
    time: StepTime = field(default_factory=StepTime)
    loss: float = 0.0
    # The same, or None where the program does not tell it
    tokens: float | None = 0
    padding_share: float | None = 0.0
    model_flops: float | None = 0.0
    # Of the last step
    time_ns: int = 0
    step: int = 0
    epoch: int = 0
    learning_rate: float = 0.0


class Metrics:
    """Writes after the first step, after the last one, and in between at most every `REST_S` seconds, later less often.

    A record is that of the step after which it comes; loss, times, tokens, padding and FLOPs are the means of all steps
    since the record before, itself included. Where steps take longer than that every step has its own. Steps that wait for the next
    record are written before a validation, and where losses begin or cease to be finite numbers; the first that is none
    has a record of its own.

    Nothing here ever raises: what cannot be written costs one line in this rank's log, once.
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
        """Only one of all `ranks` `writes`, from its own step; any may say `saved`.

        That one measures for 0.05 s what its CPUs can do with `dtype` by `product`, which the model's layers multiply by: the
        others are taken to be like it.
        """
        self._device = device
        self._writes = writes
        self._attempt = attempt_in(environment)
        self._keepers = _keepers(environment, self._attempt)
        peak = peak_flops_per_s(device, dtype, product) if writes and self._keepers else None
        self._peak_flops_per_s = None if peak is None else peak * ranks
        self._since = _Since()
        self._is_finite = True  # the last loss
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
        learning_rate: float,
        is_last: bool,
    ) -> None:
        """Take note of a step; `tokens` and `model_flops` are those of all ranks, the rest is of this one.

        None stands for what the program does not know.
        """
        if not self._writes or not self._keepers:
            return
        was_finite, self._is_finite = self._is_finite, math.isfinite(loss)
        if was_finite != self._is_finite:
            self._write_steps()
        since = self._since
        since.steps += 1
        since.time += time_of_step
        since.loss += loss
        since.tokens = _sum(since.tokens, tokens)
        since.padding_share = _sum(since.padding_share, padding_share)
        since.model_flops = _sum(since.model_flops, model_flops)
        since.time_ns, since.step, since.epoch, since.learning_rate = time.time_ns(), step, epoch, learning_rate
        if is_last or (was_finite and not self._is_finite) or time.monotonic() >= self._next_s:
            self._write_steps()

    def validated(self, step: int, loss: float, *, of_tokens: bool = True, bleu: float | None = None) -> None:
        """Record the mean loss of the validation data after `step`; one that is per token, in nats, has a perplexity."""
        if self._writes:
            self._write_steps()
            perplexity = perplexity_of(loss) if of_tokens else None
            self._keep(Validation(time.time_ns(), self._attempt, step, loss, perplexity, bleu))

    def stages_measured(self, step: int, busy: Sequence[float], predicted: Sequence[float]) -> None:
        """Record which share of the steps up to `step` each pipeline stage worked."""
        if self._writes:
            self._write_steps()
            self._keep(StageShares(time.time_ns(), self._attempt, step, tuple(busy), tuple(predicted)))

    def flush(self) -> None:
        """Write the steps that wait: of a training that ends before its last step there will be no other record."""
        self._write_steps()

    def saved(self, step: int, what: str) -> None:
        self._keep(Saved(time.time_ns(), self._attempt, step, what))

    def _write_steps(self) -> None:
        since, self._since = self._since, _Since()
        if not since.steps:
            return
        steps, spent = since.steps, since.time
        knows_waiting = self._device.type == "cpu"
        peak = self._peak_flops_per_s
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
                utilisation=_quotient(since.model_flops, spent.seconds * (peak or 0.0)),
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


def _sum(total: float | None, value: float | None) -> float | None:
    return None if total is None or value is None else total + value


def _quotient(total: float | None, divisor: float) -> float | None:
    """Return total / divisor; None where the one is not known, or the other is zero."""
    return total / divisor if total is not None and divisor else None


def _keepers(environment: Mapping[str, str], attempt: int) -> list[_Keeper]:
    """Return what keeps the metrics of a run; an empty list where there is no run directory."""
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
                "peak_memory_bytes": record.peak_memory_bytes,
                "padding_share": record.padding_share,
                "step/seconds": record.step_s,
                "step/data_s": record.data_s,
                "step/compute_s": record.compute_s,
                "step/communication_s": record.communication_s,
                "step/bubble_s": record.bubble_s,
                "model_flops": record.model_flops,
                "utilisation": record.utilisation,
            }
        case Validation():
            named = {"loss/validation": record.validation_loss, "perplexity": record.perplexity, "bleu": record.bleu}
        case StageShares():
            named = {f"stage_busy/{index}": share for index, share in enumerate(record.stage_busy)}
        case Saved():
            pass
    return {tag: value for tag, value in named.items() if value is not None}


def attempt_in(environment: Mapping[str, str]) -> int:
    """Return the number of the attempt of the run that this process is part of; 0 outside of a run."""
    text = environment.get(TLAUNCH_ATTEMPT, "")
    return int(text) if text.isdecimal() else 0


def memory_bytes(device: torch.device) -> int | None:
    """Return the most bytes that tensors have taken on an accelerator, or what this process holds on the CPU; None if unknown."""
    with suppress(Exception):  # after a failure accelerators may refuse to answer
        if device.type != "cpu":
            return device_memory_bytes(device)
        found = stat(os.getpid())
        return None if found is None else found.pages * PAGE_BYTES
    return None


def peak_memory_bytes(device: torch.device) -> int | None:
    """Return the most bytes so far, of what `memory_bytes` is about; None if unknown."""
    with suppress(Exception):
        if device.type != "cpu":
            return device_memory_bytes(device)
        return int(status(os.getpid())["VmHWM"].split()[0]) * 1024
    return None


def peak_flops_per_s(device: torch.device, dtype: torch.dtype, product: Product) -> float | None:
    """Return the FLOP/s that `product` of two large matrices reaches on the CPUs of this rank.

    None on accelerators, whose rate torch does not tell.

    It is the fastest of several: a rank may be disturbed, but never works faster than it can.
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
