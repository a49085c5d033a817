"""A device and its servers as a few numbers, and the JSON file that holds them.

Every number has a width: the factor by which it may plausibly differ, as a standard deviation of its logarithm. A fit
moves a number away from its profile only as far as the measured rows outweigh that width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from launcher.core.codec import encode, json_text, read_json, real_number
from launcher.core.errors import UnreadableError
from launcher.core.frozen import frozen
from launcher.plan.configuration import Software, software_of
from launcher.plan.nearby import Observation, observation_from

WIDTHS: dict[str, float] = {
    "flops_per_s": 0.3, "memory_bytes_per_s": 0.4, "dispatch_s": 0.7, "backward_dispatch": 0.3, "layer_fixed_s": 0.8,
    "link_latency_s": 1.0, "link_bytes_per_s": 0.6, "network_latency_s": 0.7, "network_bytes_per_s": 0.7,
    "message_latency_s": 1.0, "message_bytes_per_s": 0.8, "micro_batch_s": 1.0, "step_s": 1.0, "optimizer_factor": 0.7,
    "score_bytes": 0.4, "elementwise_factor": 0.4, "head_factor": 0.5, "base_bytes": 0.5, "kept_factor": 0.15,
}  # fmt: skip
MEMORY_NUMBERS = ("base_bytes", "kept_factor")  # the others are of times


@frozen
class Numbers:
    """Measured or assumed speeds. Times and rates are those that a training reaches, not peaks of a data sheet."""

    flops_per_s: float  # of large matrix products
    memory_bytes_per_s: float
    link_bytes_per_s: float  # of an all-reduce within a server, by each device ("bus bandwidth")
    network_bytes_per_s: float  # between servers, by all devices of a server together
    message_bytes_per_s: float  # of a pipeline message between servers, by each device
    dispatch_s: float = 0.7e-3  # of the host, for a layer's forward pass: no layer is faster
    backward_dispatch: float = 1.2  # the same for backward, relative to forward
    layer_fixed_s: float = 0.1e-3  # on the device, for a layer's forward pass of any size
    link_latency_s: float = 25e-6  # of an all-reduce, for each doubling of the group
    network_latency_s: float = 60e-6  # the same between servers
    message_latency_s: float = 50e-6
    micro_batch_s: float = 0.3e-3  # of the host, for each forward and backward pass of a stage
    step_s: float = 10e-3  # data, metrics
    optimizer_factor: float = 1.0  # times 26 bytes a parameter through the memory
    score_bytes: float = 12.0  # moved for each attention score, without flash attention
    elementwise_factor: float = 1.0  # times the bytes of norms, residuals, dropout and activations
    head_factor: float = 1.0  # times the head's roofline
    base_bytes: float = 3.5e9  # memory of libraries, communication buffers and unused blocks
    kept_factor: float = 1.0  # times the bytes of activations


@frozen
class Fit:
    """How well the numbers predict measured rows. Errors are mean absolute relative errors."""

    rows: int
    fitted: tuple[str, ...] = ()  # names of the numbers that were fitted; the others are the base profile's
    error: float | None = None  # of the rows that were fitted
    held_out_error: float | None = None  # of rows that were left out in turn
    held_out_worst: float | None = None
    memory_error: float | None = None


@frozen
class DeviceProfile:
    name: str
    per_server: int
    memory_bytes: float  # of a device
    peak_flops_per_s: float  # of the data sheet, for MFU
    numbers: Numbers
    software: Software = Software()
    sources: Mapping[str, str] = field(default_factory=dict)  # by number, or "all"
    fit: Fit | None = None
    observations: tuple[Observation, ...] = ()

    def to_json(self) -> str:
        return json_text(encode(self))

    @property
    def margin(self) -> float | None:
        """The mean error that the fit showed on rows that it had not seen; None without a fit."""
        return None if self.fit is None else self.fit.held_out_error


def read_profile(path: Path) -> DeviceProfile:
    """Return the profile in a file that `tlaunch plan fit` wrote. Raises UnreadableError."""
    hint = "write the file with `tlaunch plan fit --rows FILE --output DEVICE.json`"
    try:
        values = read_json(path)
        return profile_from(values)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        reason = f"`{error.args[0]}` is missing" if isinstance(error, KeyError) else reason
        raise UnreadableError(f"{path} is not a device profile: {reason}", hint=hint) from None


def profile_from(values: Any) -> DeviceProfile:
    """Return the profile of a decoded JSON object. Raises ValueError, KeyError, TypeError or AttributeError."""
    numbers = {name: _positive(values["numbers"], name) for name in WIDTHS if name in values["numbers"]}
    missing = [name for name in ("flops_per_s", "memory_bytes_per_s") if name not in numbers]
    if missing:
        raise ValueError(f"`numbers` lacks `{missing[0]}`")
    fit = values.get("fit")
    return DeviceProfile(
        name=str(values["name"]),
        per_server=int(_positive(values, "per_server")),
        memory_bytes=_positive(values, "memory_bytes"),
        peak_flops_per_s=_positive(values, "peak_flops_per_s"),
        numbers=Numbers(**numbers),
        software=software_of(values.get("software") or {}, Software()),
        sources={str(name): str(source) for name, source in (values.get("sources") or {}).items()},
        fit=None if fit is None else _fit_from(fit),
        observations=tuple(observation_from(each) for each in values.get("observations") or ()),
    )


def _fit_from(values: Mapping[str, Any]) -> Fit:
    return Fit(
        rows=int(values["rows"]),
        fitted=tuple(map(str, values.get("fitted") or ())),
        error=real_number(values.get("error")),
        held_out_error=real_number(values.get("held_out_error")),
        held_out_worst=real_number(values.get("held_out_worst")),
        memory_error=real_number(values.get("memory_error")),
    )


def _positive(values: Mapping[str, Any], name: str) -> float:
    number = real_number(values[name])
    if number is None or number <= 0:
        raise ValueError(f"`{name}` is {values[name]!r}, not a positive number")
    return number
