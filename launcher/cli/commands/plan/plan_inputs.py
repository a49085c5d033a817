"""Reads what the planner's commands are given: a device, a model, and the number of devices."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from launcher.cli.options.run import MAX_DEVICES
from launcher.cli.options.types import BadValue
from launcher.core.codec import read_json
from launcher.core.errors import UnreadableError
from launcher.core.frozen import frozen
from launcher.core.text import printable
from launcher.plan.configuration import software_of
from launcher.plan.device_profile import DeviceProfile, read_profile
from launcher.plan.model_shape import ModelShape, model_from
from launcher.plan.packaged_profiles import profile_named

_GRID = re.compile(r"(\d{1,6})(?:\s*x\s*(\d{1,6}))?", re.IGNORECASE)


@frozen
class DeviceCount:
    devices: int
    per_server: int | None = None


class DeviceGrid(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.2 only
    """A number of devices, or servers x devices, such as 8x16."""

    name = "devices"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        matched = _GRID.fullmatch(str(value).strip())
        if matched is None:
            hint = "give a number of devices, or servers x devices, such as 8x8"
            raise BadValue(f"{value!r} is not a number of devices", param, ctx, hint)
        first, second = int(matched[1]), int(matched[2]) if matched[2] else None
        count = DeviceCount(first if second is None else first * second, second)
        if not 1 <= count.devices <= MAX_DEVICES:
            raise BadValue(f"{count.devices} devices are not between 1 and {MAX_DEVICES}", param, ctx)
        return count


def device_of(name: str) -> DeviceProfile:
    """Return the device profile in the file `name`, or the packaged one of this name. Raises UnreadableError."""
    path = Path(name).expanduser()
    return read_profile(path) if path.is_file() else profile_named(name)


def model_of(path: Path, device: DeviceProfile, seq: int | None = None) -> tuple[ModelShape, DeviceProfile]:
    """Return the model in a file, and `device` with the settings that the file states in addition to the model.

    The file has a model, or a measured row with a `model`. `seq` replaces the model's. Raises UnreadableError.
    """
    shown = printable(str(path))
    try:
        values = read_json(path)
    except (OSError, ValueError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        raise UnreadableError(
            f"{shown}: {reason}", hint="give a JSON file with `layers`, `hidden`, `heads`, `seq` and `vocab`"
        ) from None
    model = values
    if isinstance(values, Mapping) and "model" in values:
        model, device = values["model"], replace(device, software=software_of(values, device.software))
    if seq is not None and isinstance(model, Mapping):
        model = {**model, "seq": seq}
    return model_from(model, shown), device
