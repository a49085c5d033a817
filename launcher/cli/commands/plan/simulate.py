"""`tlaunch plan simulate`: memory, FLOPs and collectives of a training step, on devices that do not exist."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from launcher.cli.launch.rank_tables import read_table
from launcher.cli.options.chosen_run import json_option
from launcher.cli.options.run import (
    allow_idle_devices_option,
    config_option,
    devices_option,
    layout_options,
    rank_table_option,
    recipe_option,
    settings_option,
)
from launcher.cli.options.types import IntRange
from launcher.cli.run_options import RunOptions
from launcher.cli.text.columns import fitted, size
from launcher.cli.text.stdout import say, write_lines, write_out
from launcher.cli.training.simulated import DEVICES, simulated_step
from launcher.cli.training.trainer_program import trainer_command
from launcher.core.codec import encode, json_text
from launcher.core.errors import UsageError
from launcher.core.text import printable, ranges
from launcher.mesh.layouts import resolve_layout
from launcher.sharding.simulated_step import MEMORY_KINDS, MemoryPeak, SimulatedRank, SimulatedStep

EPILOG = """\b
Examples:
  tlaunch plan simulate --devices 8 --mp 2 --pp 2
  tlaunch plan simulate --devices 1024 --mp 4 --pp 8 --micro-batches 16 \\
      --device cuda --set train.precision=bfloat16 --set train.batch_size=1024
  tlaunch plan simulate --rank-table rank_tables/rank_table_8pcs.json --rank 5
  tlaunch plan simulate --devices 8 --json | jq '.ranks[].peak'

The trainer's own code runs in one process on tensors without values. The batch has sentences of the maximum length
(data.source_length, data.target_length). PEAK is the largest sum of all tensors of a rank during a step. It does not
include the memory of the driver, of libraries and of communication, nor unused parts of the allocator's blocks.
AT is the operator that allocates last before the peak. Bytes of collectives are as in `tlaunch plan operators`.

Exit codes: 0; 2 wrong usage, a file cannot be read, or a torch version that cannot simulate; 3 invalid rank table or
layout.
"""
MEMORY = ("RANKS", "STAGE", "PEAK", *(kind.upper() for kind in MEMORY_KINDS), "FLOPS", "AT")
COLLECTIVES = ("RANK", "AXIS", "COLLECTIVE", "GROUP", "COUNT", "BYTES", "TENSOR")
RIGHT = frozenset(("STAGE", "PEAK", *(kind.upper() for kind in MEMORY_KINDS), "FLOPS", "COUNT", "BYTES", "RANK"))


@click.command(epilog=EPILOG)
@rank_table_option
@devices_option(".")
@layout_options
@allow_idle_devices_option
@recipe_option
@config_option
@settings_option
@click.option(
    "--device",
    type=click.Choice(DEVICES),
    help="Simulate this kind of device.  [default: cpu with train.device=cpu, npu with --rank-table, else cuda]",
)
@click.option("--rank", type=IntRange(0), metavar="N", help="Simulate only rank N.  [default: one rank of each kind]")
@json_option
def simulate(
    *,
    rank_table: Path | None,
    devices: int | None,
    dp: int | None,
    mp: int,
    pp: int,
    micro_batches: int | None,
    allow_idle_devices: bool,
    recipe: str | None,
    config: str | None,
    settings: tuple[str, ...],
    device: str | None,
    rank: int | None,
    as_json: bool,
) -> None:
    """Show the memory, FLOPs and communication of a training step without running it.

    Simulates the bundled Transformer on devices that this machine does not need to have. The other options are as for
    `tlaunch run`. Ranks with the same memory, FLOPs and communication are simulated once.
    """
    options = RunOptions(
        rank_table=rank_table, devices=devices, dp=dp, mp=mp, pp=pp, micro_batches=micro_batches,
        allow_idle_devices=allow_idle_devices, recipe=recipe, config=config, settings=settings,
    )  # fmt: skip
    table = read_table(options)
    for note in table.notes:
        say(note)
    layout = resolve_layout(
        table.cluster.device_count, dp=dp, mp=mp, pp=pp, micro_batches=micro_batches or 1,
        allow_idle_devices=allow_idle_devices,
    )  # fmt: skip
    layout = trainer_command(options, layout, needs_data=False).layout  # checks that the program fits
    if rank is not None and rank >= layout.world_size:
        raise UsageError(
            f"--rank {rank}: {layout} has no such rank", hint=f"choose from {ranges(range(layout.world_size))}"
        )
    step = simulated_step(options, layout, device=device, rank=rank)
    if as_json:
        write_out(json_text(encode(step)))
    else:
        write_lines(lines_of(step, shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize))


def lines_of(step: SimulatedStep, width: int) -> Iterator[str]:
    yield f"{step.recipe}, {step.layout}, micro batches {step.micro_batches}: simulated on {step.device} by torch {step.torch}"
    yield f"batch: {step.pairs} pairs of {step.source_tokens} source and {step.target_tokens} target tokens"
    yield f"assumed: {step.assumption}"
    yield ""
    yield from fitted(MEMORY, [_memory(each) for each in step.ranks], width, giving_way=(("AT", 12),), right=RIGHT)
    rows = [row for each in step.ranks for row in _collectives(each)]
    if rows:
        yield ""
        yield from fitted(COLLECTIVES, rows, width, giving_way=(("TENSOR", 8), ("GROUP", 8)), right=RIGHT)


def _memory(rank: SimulatedRank) -> tuple[str, ...]:
    flops = f"{rank.forward_flops + rank.backward_flops:.3g}"
    parts = map(size, rank.peak.parts.values())
    return ranges(rank.same), str(rank.stage), size(rank.peak.total), *parts, flops, _at(rank.peak)


def _at(peak: MemoryPeak) -> str:
    return " ".join(filter(None, (peak.phase, printable(peak.operator), printable(peak.function))))


def _collectives(rank: SimulatedRank) -> Iterator[tuple[str, ...]]:
    for one in rank.collectives:
        is_message = one.kind in {"send", "receive"}
        group = " > ".join(map(str, one.group)) if is_message else ranges(one.group)
        yield str(rank.rank), one.axis, one.kind, group, str(one.count), size(one.bytes), printable(one.what)
