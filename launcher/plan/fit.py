"""Fits the numbers of a device to measured rows.

One mechanism for three rows or three hundred: all numbers start at a packaged profile, and at most as many of them move as
there are measurements, those with the largest effect first. Each moves only as far as the rows outweigh its width. What
remains is the residual of a layout, and corrects predictions near it (`nearby.py`).

The held-out error is measured by leaving out each part of the rows in turn: their prediction comes from the others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from launcher.core.errors import UsageError
from launcher.core.frozen import frozen
from launcher.plan.configuration import Software
from launcher.plan.device_profile import MEMORY_NUMBERS, WIDTHS, DeviceProfile, Fit
from launcher.plan.least_squares import minimised
from launcher.plan.measured_rows import MeasuredRow
from launcher.plan.nearby import observations_of, position_of
from launcher.plan.peak_memory import fullest_rank
from launcher.plan.pipeline import Path
from launcher.plan.prediction import model_step_s, predict

MOST_PARTS = 5  # into which rows are divided for the held-out error
_UNKNOWN_DEVICE = 3.0  # times the widths, if no packaged profile is of this device


@frozen
class _Timed:
    row: MeasuredRow
    step_s: float


@frozen
class _Filled:
    row: MeasuredRow
    memory_bytes: float


def fitted(rows: Sequence[MeasuredRow], base: DeviceProfile, *, is_known: bool = True) -> DeviceProfile:
    """Return `base` with its numbers fitted to `rows`, and the errors of the fit.

    `is_known` is false if `base` describes another device. Raises UsageError if no row has a time or a memory.
    """
    usable = [row for row in rows if _step_s(row, base) is not None or row.memory_bytes is not None]
    if not usable:
        raise UsageError(
            f"none of {len(rows)} rows has a measurement",
            hint="give `step_s`, `tflops_per_device`, `mfu` or `memory_gb` in `measured`",
        )
    factor = 1.0 if is_known else _UNKNOWN_DEVICE
    device = replace(base, software=_common_software(usable))
    profile, names = _fitted_once(usable, device, factor)
    time_errors, memory_errors = _errors(usable, profile, corrected=False)
    held_out, held_out_memory = _held_out(usable, device, factor)
    return replace(
        profile,
        sources={**base.sources, "fit": f"fitted to {len(usable)} measured rows: {', '.join(names)}"},
        fit=Fit(
            rows=len(usable),
            fitted=names,
            error=_mean(time_errors),
            held_out_error=_mean(held_out),
            held_out_worst=max(held_out, default=None),
            memory_error=_mean(held_out_memory or memory_errors),
        ),
    )


def _fitted_once(
    rows: Sequence[MeasuredRow], base: DeviceProfile, factor: float
) -> tuple[DeviceProfile, tuple[str, ...]]:
    """Return the fitted profile with its observations, and the names of the numbers that were free."""
    timed = [_Timed(row, step_s) for row in rows if (step_s := _step_s(row, base)) is not None]
    filled = [_Filled(row, row.memory_bytes) for row in rows if row.memory_bytes is not None]
    paths: list[Path | None] = [None] * len(timed)

    def time_residuals(device: DeviceProfile, exact: bool) -> list[float]:
        found = []
        for index, each in enumerate(timed):
            known = None if exact else paths[index]
            predicted_s, paths[index] = model_step_s(each.row.model, each.row.configuration, device, known)
            found.append(math.log(predicted_s / each.step_s))
        return found

    def memory_residuals(device: DeviceProfile, _exact: bool) -> list[float]:
        return [
            math.log(fullest_rank(each.row.model, each.row.configuration, device).total / each.memory_bytes)
            for each in filled
        ]

    profile, of_memory = _moved(base, MEMORY_NUMBERS, memory_residuals, len(filled), factor)
    times = [name for name in WIDTHS if name not in MEMORY_NUMBERS]
    profile, of_times = _moved(profile, times, time_residuals, len(timed), factor)
    if not timed:  # a fit of memory only keeps what is known about times
        return profile, of_memory
    left = [-each for each in time_residuals(profile, True)]
    positions = [position_of(each.row.model, each.row.configuration) for each in timed]
    return replace(profile, observations=observations_of(positions, left)), (*of_times, *of_memory)


def _moved(
    base: DeviceProfile,
    names: Sequence[str],
    residuals: Callable[[DeviceProfile, bool], list[float]],
    measurements: int,
    factor: float,
) -> tuple[DeviceProfile, tuple[str, ...]]:
    """Return `base` with the numbers `names` fitted, and the names of those that were free."""
    if not measurements:
        return base, ()

    def device_at(logarithms: Sequence[float]) -> DeviceProfile:
        moved = {name: getattr(base.numbers, name) * math.exp(x) for name, x in zip(names, logarithms, strict=True)}
        return replace(base, numbers=replace(base.numbers, **moved))

    logarithms, free = minimised(
        lambda at, exact: residuals(device_at(at), exact),
        [WIDTHS[name] * factor for name in names],
        most_free=measurements,
    )
    return device_at(logarithms), tuple(names[index] for index in free)


def _held_out(rows: Sequence[MeasuredRow], base: DeviceProfile, factor: float) -> tuple[list[float], list[float]]:
    """Return the errors of times and of memory for rows that the fit has not seen."""
    parts = min(MOST_PARTS, len(rows))
    times: list[float] = []
    memory: list[float] = []
    if parts < 2:
        return times, memory
    for part in range(parts):
        left_out = rows[part::parts]
        seen = [row for number, row in enumerate(rows) if number % parts != part]
        profile, _ = _fitted_once(seen, base, factor)
        of_times, of_memory = _errors(left_out, profile)
        times += of_times
        memory += of_memory
    return times, memory


def _errors(
    rows: Sequence[MeasuredRow], profile: DeviceProfile, *, corrected: bool = True
) -> tuple[list[float], list[float]]:
    """Return the absolute relative errors of times and of memory."""
    device = profile if corrected else replace(profile, observations=())
    times, memory = [], []
    for row in rows:
        predicted = predict(row.model, row.configuration, device)
        if (step_s := _step_s(row, device)) is not None:
            times.append(abs(predicted.step_s / step_s - 1))
        if row.memory_bytes is not None:
            memory.append(abs(predicted.memory_bytes / row.memory_bytes - 1))
    return times, memory


def _step_s(row: MeasuredRow, device: DeviceProfile) -> float | None:
    if row.step_s is not None or row.mfu is None:
        return row.step_s
    flops = row.model.step_flops(row.configuration.global_batch, recompute=False)
    return flops / (row.mfu * device.peak_flops_per_s) / row.configuration.layout.world_size


def _common_software(rows: Sequence[MeasuredRow]) -> Software:
    return Counter(row.configuration.software for row in rows).most_common(1)[0][0]


def _mean(errors: Sequence[float]) -> float | None:
    return math.fsum(errors) / len(errors) if errors else None
