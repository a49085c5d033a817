"""Simulate a training step in a child process, and check that a layout fits the memory of a device."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from launcher.cli.run_options import RunOptions
from launcher.cli.text.columns import size
from launcher.cli.training.trainer_process import check_installed, started
from launcher.core.codec import decode
from launcher.core.errors import EXIT_OK, TlaunchError, UsageError, exit_code_of
from launcher.core.records import Layout
from launcher.recipes.catalog import recipe_named
from launcher.sharding.simulated_step import SimulatedRank, SimulatedStep

MODULE = "launcher.trainer.simulate"
SIMULATED = "transformer"  # the only recipe that can be simulated
DEVICES = ("npu", "cuda", "cpu")
_REMEDIES = {
    "activations": "use more `--micro-batches`, `--set parallel.recompute=true`, or a smaller train.batch_size",
    "moments": "increase `--dp`, `--mp` or `--pp`",
}


def simulated_step(
    options: RunOptions, layout: Layout, *, device: str | None = None, rank: int | None = None
) -> SimulatedStep:
    """Simulate a step of the bundled program for `rank`, or for each distinct rank of `layout`.

    `layout` fits the program's settings. By default, the device is the CPU if `train.device` says so, an NPU with a rank
    table, and else a CUDA device. Raises UsageError for another program than the Transformer, and UnreadableError if
    torch is not installed.
    """
    recipe = recipe_named(options.recipe)
    if recipe.name != SIMULATED:
        raise UsageError(
            f"recipe {recipe.name} cannot be simulated; expected recipe {SIMULATED}", hint=f"use --recipe {SIMULATED}"
        )
    config = recipe.config_called(options.config)
    if device is None:
        on_cpu = recipe.load(options.config, options.settings).train.device == "cpu"
        device = "cpu" if on_cpu else "cuda" if options.rank_table is None else "npu"
    words = ["--device", device]
    words += [] if config is None else ["--config", str(Path(config).absolute()) if Path(config).is_file() else config]
    for setting in options.settings:
        words += ["--set", setting]
    for axis in ("dp", "mp", "pp", "micro_batches"):
        words += [f"--{axis.replace('_', '-')}", str(getattr(layout, axis))]
    words += [] if rank is None else ["--rank", str(rank)]
    check_installed()
    with started(MODULE, *words) as child:
        assert child.stdout is not None, "it is a pipe"
        output = child.stdout.read()
        status = child.wait()
    if status != EXIT_OK:
        error = TlaunchError(f"the simulating process failed with exit code {status}", exit_code=exit_code_of(status))
        error.is_reported = status > 0
        raise error
    return decode(SimulatedStep, json.loads(output.splitlines()[-1]))


def check_device_memory(options: RunOptions, layout: Layout) -> None:
    """Raise UsageError if a rank of the bundled program needs more memory than --device-memory."""
    limit = options.device_memory
    assert limit is not None, "--device-memory is given"
    step = simulated_step(options, layout)
    rank = step.fullest
    if rank.peak.total <= limit:
        return
    largest = max(rank.peak.parts, key=lambda kind: rank.peak.parts[kind])
    remedy = _REMEDIES.get(largest, "increase `--mp` or `--pp`")
    raise UsageError(
        f"rank {rank.rank} (stage {rank.stage}) needs {size(rank.peak.total)} at the peak of a step on {step.device}; "
        f"expected at most --device-memory {size(limit)}",
        hint=f"{remedy}; rank {rank.rank} holds {', '.join(_parts(rank))}",
    )


def _parts(rank: SimulatedRank) -> Iterator[str]:
    return (f"{size(count)} of {kind}" for kind, count in rank.peak.parts.items() if count)
