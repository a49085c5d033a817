"""The output of `tlaunch plan layout`, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from launcher.cli.text.columns import fitted
from launcher.core.codec import encode
from launcher.core.text import counted, printable
from launcher.plan.configuration import Configuration
from launcher.plan.device_profile import DeviceProfile
from launcher.plan.explanation import PART_NAMES, UNKNOWN, Change, class_reason, deciding_part
from launcher.plan.prediction import Prediction
from launcher.plan.search import SearchResult, Wanted, memory_limit, memory_margin

HEADER = (
    "DP", "MP", "PP", "MICRO", "SCHEDULE", "RECOMPUTE", "STEP", "COMPUTE", "HOST", "MP-COMM", "PP-COMM", "BUBBLE", "DP-COMM",
    "OPT", "OTHER", "MEMORY", "STAGE", "TOKENS/S", "MFU",
)  # fmt: skip
RIGHT = frozenset(HEADER) - {"MICRO", "SCHEDULE", "RECOMPUTE"}
NARROW = tuple(
    (name, 0) for name in ("OTHER", "OPT", "STAGE", "HOST", "SCHEDULE", "PP-COMM", "TOKENS/S", "RECOMPUTE", "DP-COMM")
)


def layout_json(prediction: Prediction, device: DeviceProfile) -> dict[str, Any]:
    """Return one prediction as JSON."""
    return {
        **_prediction_json(prediction, device),
        "device": device.name,
        "margin": device.margin,
        "not_in_the_model": list(UNKNOWN),
    }


def search_json(result: SearchResult, changes: Sequence[Change], device: DeviceProfile) -> dict[str, Any]:
    """Return the result of a search as JSON."""
    first = result.best[0] if result.best else None
    return {
        "device": device.name,
        "margin": device.margin,
        "best": [_prediction_json(each, device) for each in result.best],
        "classes": [
            {
                "mp": each.mp,
                "pp": each.pp,
                "reason": class_reason(each, first, device),
                "prediction": None if each.best is None else _prediction_json(each.best, device),
            }
            for each in result.classes
        ],
        "changes": [
            {"change": each.what, "gain": each.gain, "layout": _layout_json(each.configuration)} for each in changes
        ],
        "searched": len(result.candidates) + len(result.too_large),
        "simulated": result.simulated,
        "not_in_the_model": list(UNKNOWN),
    }


def layout_lines(prediction: Prediction, device: DeviceProfile, width: int) -> Iterator[str]:
    """Yield the prediction of one layout as lines."""
    devices = counted(prediction.configuration.layout.world_size, "device")
    yield f"prediction for {devices} {printable(device.name)}, {device.per_server} in a server; times in seconds"
    yield ""
    yield from _table([prediction], width)
    yield ""
    yield f"memory of stage {prediction.memory.rank}: " + ", ".join(
        f"{part} {value / 1e9:.1f} GB" for part, value in encode(prediction.memory).items() if part != "rank"
    )
    fits = "fits into" if prediction.memory_bytes <= memory_limit(device) else "may not fit into"
    yield f"{prediction.memory_bytes / 1e9:.1f} GB {fits} {device.memory_bytes / 1e9:.1f} GB, of which {memory_margin(device):.0%} are kept free"
    yield f"largest part of the step after compute: {deciding_part(prediction.parts)}"
    yield from _limits(device)


def search_lines(
    result: SearchResult, changes: Sequence[Change], device: DeviceProfile, wanted: Wanted, width: int
) -> Iterator[str]:
    """Yield the result of a search as lines."""
    yield (
        f"prediction for {counted(wanted.devices, 'device')} {printable(device.name)}, {device.per_server} in a server, "
        f"{memory_limit(device) / 1e9:.1f} GB usable; global batch {wanted.global_batch}; times in seconds"
    )
    if result.best:
        yield ""
        yield from _table(result.best, width)
    shown = {(each.configuration.layout.mp, each.configuration.layout.pp) for each in result.best[:1]}
    others = [each for each in result.classes if (each.mp, each.pp) not in shown]
    if others:
        first = result.best[0] if result.best else None
        yield ""
        yield "the best of every other mp and pp:"
        rows = [
            (
                str(each.mp), str(each.pp),
                "-" if each.best is None else _seconds(each.best.step_s),
                "-" if each.best is None else f"{each.best.memory_bytes / 1e9:.1f} GB",
                class_reason(each, first, device),
            )
            for each in others
        ]  # fmt: skip
        yield from fitted(
            ("MP", "PP", "STEP", "MEMORY", "REASON"),
            rows,
            width,
            giving_way=(("REASON", 30),),
            right=frozenset({"MP", "PP", "STEP", "MEMORY"}),
        )
    if changes:
        yield ""
        yield "what would help most, in tokens per second:"
        yield from (f"  {each.gain:+.1%}  {each.what}: {each.configuration}" for each in changes)
    yield ""
    yield f"{len(result.candidates) + len(result.too_large)} layouts, {result.simulated} simulated"
    yield from _limits(device)


def _limits(device: DeviceProfile) -> Iterator[str]:
    """Yield the margin of the prediction, and what the model leaves out."""
    if device.fit is None:
        yield "margin: not measured. The numbers of a packaged profile are from data sheets and assumptions."
        yield "hint: measure a few layouts, and use `tlaunch plan fit --rows FILE --output DEVICE.json`"
    elif device.margin is None:
        yield f"margin: not measured: one row has been fitted, which leaves none to check ({device.fit.rows} in all)"
    else:
        yield (
            f"margin: {device.margin:.1%} on average, {device.fit.held_out_worst or 0:.0%} at most, "
            f"for {device.fit.rows} measured rows that were left out of the fit in turn"
        )
    yield "not in the model:"
    yield from (f"  {line}" for line in UNKNOWN)


def _table(predictions: Sequence[Prediction], width: int) -> list[str]:
    rows = []
    for each in predictions:
        configuration, parts = each.configuration, each.parts
        layout, software = configuration.layout, configuration.software
        schedule = configuration.schedule + (f" x{configuration.chunks}" if configuration.chunks > 1 else "")
        rows.append(
            (
                str(layout.dp), str(layout.mp), str(layout.pp), f"{layout.micro_batches} x {configuration.micro_batch}",
                schedule if layout.pp > 1 else "-", software.recompute, _seconds(each.step_s),
                *(_seconds(getattr(parts, name)) for name in PART_NAMES),
                f"{each.memory_bytes / 1e9:.1f} GB", str(each.memory.rank), f"{each.tokens_per_s:.0f}", f"{each.mfu:.1%}",
            )
        )  # fmt: skip
    return fitted(HEADER, rows, width, giving_way=NARROW, right=RIGHT)


def _prediction_json(prediction: Prediction, device: DeviceProfile) -> dict[str, Any]:
    return {
        "step_s": prediction.step_s,
        "memory_bytes": prediction.memory_bytes,
        "tokens_per_s": prediction.tokens_per_s,
        "tflops_per_device": prediction.tflops_per_device,
        "mfu": prediction.mfu,
        "fits": prediction.memory_bytes <= memory_limit(device),
        "layout": _layout_json(prediction.configuration),
        "parts": encode(prediction.parts),
        "memory": encode(prediction.memory),
    }


def _layout_json(configuration: Configuration) -> dict[str, Any]:
    layout = configuration.layout
    return {
        "dp": layout.dp, "mp": layout.mp, "pp": layout.pp, "micro_batches": layout.micro_batches,
        "micro_batch": configuration.micro_batch, "chunks": configuration.chunks, **encode(configuration.software), "schedule": configuration.schedule,
    }  # fmt: skip


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f}" if seconds < 10 else f"{seconds:.2f}"
