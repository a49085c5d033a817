"""Reads measured trainings: a JSON file {"rows": [...]} with the fields of published layouts.

A row has `model`, `device` (`name`, `per_server`), `dp`, `mp`, `pp`, `micro_batch`, `micro_batches`, and in `measured` one or
more of `step_s`, `tflops_per_device` (with recompute, as Megatron-LM counts), `mfu` and `memory_gb` (10⁹ bytes).
Optional: `schedule`, `recompute`, `optimizer_shard`, `flash_attention`. `micro_batches` may be null if `global_batch` is given.
Rows with other null sizes are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.core.codec import integer, read_json, real_number
from launcher.core.errors import UnreadableError
from launcher.core.frozen import frozen
from launcher.core.records import Layout
from launcher.plan.configuration import Configuration, Software, chunks_of, software_of
from launcher.plan.model_shape import REQUIRED, ModelShape, model_from, size_in

PLAIN = Software()
_FIELDS = ("dp", "mp", "pp", "micro_batch", "micro_batches")
_HINT = 'give {"rows": [...]}; docs/planner.md lists the fields of a row'


@frozen
class MeasuredRow:
    where: str  # file and number, for messages
    model: ModelShape
    configuration: Configuration
    device_name: str
    per_server: int | None
    device_memory_bytes: float | None
    step_s: float | None
    mfu: float | None
    memory_bytes: float | None


@frozen
class MeasuredRows:
    rows: tuple[MeasuredRow, ...]
    incomplete: int = 0  # rows that were left out because a size is null


def read_rows(path: Path, default: Software = PLAIN) -> MeasuredRows:
    """Return the measured rows of a file. `default` has the settings that a row does not state.

    Raises UnreadableError if the file or a row cannot be read.
    """
    try:
        values = read_json(path)
    except (OSError, ValueError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        raise UnreadableError(f"{path}: {reason}", hint=_HINT) from None
    rows = values.get("rows") if isinstance(values, Mapping) else None
    if not isinstance(rows, Sequence) or isinstance(rows, str) or not rows:
        raise UnreadableError(f"{path} has no `rows`", hint=_HINT)
    complete = [(number, row) for number, row in enumerate(rows, 1) if not _missing(row)]
    if not complete:
        raise UnreadableError(f"{path}: row 1 lacks `{_missing(rows[0])[0]}`", hint=_HINT)
    found = tuple(row_from(row, f"{path}: row {number}", default) for number, row in complete)
    return MeasuredRows(found, len(rows) - len(complete))


def row_from(row: Any, where: str, default: Software) -> MeasuredRow:
    """Return a measured row from its JSON object. Raises UnreadableError, which starts with `where`."""
    if not isinstance(row, Mapping):
        raise UnreadableError(f"{where}: a row is a JSON object, not {type(row).__name__}", hint=_HINT)
    model = model_from(row.get("model"), where)
    configuration = _configuration(row, model, where, default)
    device = row.get("device")
    device = device if isinstance(device, Mapping) else {}
    measured = row.get("measured")
    measured = measured if isinstance(measured, Mapping) else {}
    memory_gb, device_gb = _positive(measured, "memory_gb"), _positive(device, "memory_gb")
    per_server = integer(device.get("per_server"))
    return MeasuredRow(
        where=where,
        model=model,
        configuration=configuration,
        device_name=str(device.get("name") or "unknown"),
        per_server=per_server if per_server and per_server > 0 else None,
        device_memory_bytes=None if device_gb is None else device_gb * 1e9,
        step_s=_step_s(measured, model, configuration),
        mfu=_positive(measured, "mfu"),
        memory_bytes=None if memory_gb is None else memory_gb * 1e9,
    )


def _configuration(row: Mapping[str, Any], model: ModelShape, where: str, default: Software) -> Configuration:
    found = {name: integer(row.get(name)) for name in _FIELDS} | {"micro_batches": _micro_batches(row)}
    sizes = {name: value for name, value in found.items() if value is not None and value >= 1}
    if missing := [name for name in _FIELDS if name not in sizes]:
        raise UnreadableError(
            f"{where}: `{missing[0]}` is {row.get(missing[0])!r}, not a positive whole number", hint=_HINT
        )
    layout = Layout(dp=sizes["dp"], mp=sizes["mp"], pp=sizes["pp"], micro_batches=sizes["micro_batches"])
    if layout.pp > len(model.stack):
        raise UnreadableError(f"{where}: pp {layout.pp} is more than {len(model.stack)} layers", hint=_HINT)
    software = software_of(row, default)
    return Configuration(layout, sizes["micro_batch"], software, chunks_of(model, layout, software.schedule))


def _missing(row: Any) -> list[str]:
    """Return the names of sizes that a row lacks. A row that is not an object lacks none: it is refused later."""
    if not isinstance(row, Mapping):
        return []
    model = row.get("model")
    sizes = {name: row.get(name) for name in _FIELDS}
    if sizes["micro_batches"] is None:
        sizes["micro_batches"] = _micro_batches(row)
    if isinstance(model, Mapping):
        sizes |= {name: size_in(model, name) for name in REQUIRED}
    return [name for name, size in sizes.items() if size is None]


def _micro_batches(row: Mapping[str, Any]) -> int | None:
    """Return the number of micro batches, from the global batch if the row does not state it."""
    if row.get("micro_batches") is not None:
        return integer(row["micro_batches"])
    batch, dp, size = (integer(row.get(name)) for name in ("global_batch", "dp", "micro_batch"))
    if batch is None or not dp or not size or batch % (dp * size):
        return None
    return batch // (dp * size)


def _step_s(measured: Mapping[str, Any], model: ModelShape, configuration: Configuration) -> float | None:
    if (step_s := _positive(measured, "step_s")) is not None:
        return step_s
    if (rate := _positive(measured, "tflops_per_device")) is None:
        return None
    flops = model.step_flops(configuration.global_batch, recompute=configuration.software.recompute == "full")
    return flops / (rate * 1e12) / configuration.layout.world_size


def _positive(values: Mapping[str, Any], name: str) -> float | None:
    number = real_number(values.get(name))
    return number if number is not None and number > 0 else None
