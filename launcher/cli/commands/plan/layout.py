"""`tlaunch plan layout`: predict step time and memory, and find the best dp, mp and pp."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import click

from launcher.cli.commands.plan.layout_text import layout_json, layout_lines, search_json, search_lines
from launcher.cli.commands.plan.plan_inputs import DeviceCount, DeviceGrid, device_of, model_of
from launcher.cli.options.chosen_run import json_option
from launcher.cli.options.types import FILE, IntRange, Size
from launcher.cli.text.stdout import write_lines, write_out
from launcher.core.codec import json_text
from launcher.core.errors import RefusedLayoutError, UsageError
from launcher.core.records import Layout
from launcher.mesh.layouts import resolve_layout
from launcher.mesh.schedules import KINDS
from launcher.plan.configuration import RECOMPUTES, Configuration, Recompute, Software, chunks_of
from launcher.plan.device_profile import DeviceProfile
from launcher.plan.explanation import best_changes
from launcher.plan.model_shape import ModelShape
from launcher.plan.prediction import predict
from launcher.plan.search import Wanted, memory_limit, search
from launcher.rank_table.table_reader import load_cluster

EPILOG = """\b
Examples:
  tlaunch plan layout --model model.json --device H100 --devices 64 --global-batch 1024
  tlaunch plan layout --model model.json --device A100-80 --devices 16x8 --global-batch 1536 --mp 8
  tlaunch plan layout --model model.json --device device.json --dp 8 --mp 4 --pp 16 --micro-batches 96 --micro-batch 2

FILE has a model as {"layers": 32, "hidden": 4096, "heads": 32, "seq": 4096, "vocab": 32000}. Optional keys: `ffn`,
`kv_heads`, `gated_mlp`, `tied_embeddings`, and for an encoder `encoder_layers` and `source_seq`. Names of Megatron-LM and
Hugging Face (config.json) are also read; add --seq to the latter. mp is tensor parallelism.

Devices: Ascend 910, Ascend 910B, A100-80, H100, or a file that `tlaunch plan fit` wrote.

With dp, mp, pp and the micro batches, one layout is predicted with the settings of the device profile. Otherwise all
layouts are searched: micro batches, schedule, recompute and a sharded optimizer are chosen unless you give them.

Exit codes: 0; 2 wrong usage, or a file that cannot be read; 3 no layout is possible, or none fits into memory.
"""


@click.command(
    epilog=EPILOG,
    help="Predict step time and memory of a Transformer's training, and find the best dp, mp and pp.\n\n"
    "No process is started, and no device is needed.",
)
@click.option(
    "--model", "model_file", type=FILE, required=True, metavar="FILE", help="Read the model from a JSON file."
)
@click.option("--seq", type=IntRange(1), metavar="N", help="Positions of a sample.  [default: the model's]")
@click.option("--device", required=True, metavar="FILE|NAME", help="Use this device profile.")
@click.option(
    "-n", "--devices", type=DeviceGrid(), metavar="N|SxD",
    help="Plan for N devices, or for S servers with D devices each.",
)  # fmt: skip
@click.option("-t", "--rank-table", type=FILE, metavar="FILE", help="Plan for the devices of a rank table.")
@click.option("--global-batch", type=IntRange(1), metavar="N", help="Samples of a step, of all devices together.")
@click.option("--dp", type=IntRange(1), metavar="N", help="Only layouts with this data parallelism.")
@click.option("--mp", "--tp", type=IntRange(1), metavar="N", help="Only layouts with this model parallelism.")
@click.option("--pp", type=IntRange(1), metavar="N", help="Only layouts with this pipeline parallelism.")
@click.option("--micro-batches", type=IntRange(1), metavar="N", help="Only layouts with N micro batches a step.")
@click.option("--micro-batch", type=IntRange(1), metavar="N", help="Only micro batches of N samples.")
@click.option("--schedule", type=click.Choice(KINDS), help="Use only this pipeline schedule.")
@click.option("--recompute", type=click.Choice(RECOMPUTES), help="Use only this recompute of activations.")
@click.option(
    "--optimizer-shard/--no-optimizer-shard",
    default=None,
    help="Divide the optimizer's states among the dp ranks (ZeRO-1).",
)
@click.option(
    "--flash-attention/--no-flash-attention", default=None,
    help="Keep no attention scores in memory.  [default: as in the device profile]",
)  # fmt: skip
@click.option(
    "--memory", type=Size(1), metavar="SIZE", help="Memory of a device, such as 64G.  [default: the profile's]"
)
@json_option
def layout(
    *,
    model_file: Path,
    seq: int | None,
    device: str,
    devices: DeviceCount | None,
    rank_table: Path | None,
    global_batch: int | None,
    dp: int | None,
    mp: int | None,
    pp: int | None,
    micro_batches: int | None,
    micro_batch: int | None,
    schedule: str | None,
    recompute: Recompute | None,
    optimizer_shard: bool | None,
    flash_attention: bool | None,
    memory: int | None,
    as_json: bool,
) -> None:
    model, profile = model_of(model_file, device_of(device), seq)
    count = _devices(devices, rank_table)
    if count and count.per_server:
        profile = replace(profile, per_server=count.per_server)
    given = profile.software
    software = Software(
        schedule or given.schedule,
        recompute or given.recompute,
        given.optimizer_shard if optimizer_shard is None else optimizer_shard,
        given.flash_attention if flash_attention is None else flash_attention,
    )
    profile = replace(profile, memory_bytes=memory or profile.memory_bytes, software=software)
    axes = dp is not None and mp is not None and pp is not None
    product = (dp or 1) * (mp or 1) * (pp or 1)
    if count is None and not axes:
        raise UsageError(
            "the number of devices is not known",
            hint="add `--devices N` or `--rank-table FILE`, or give --dp, --mp and --pp",
        )
    wanted = Wanted(
        devices=count.devices if count else product, global_batch=global_batch or 0, dp=dp, mp=mp, pp=pp,
        micro_batches=micro_batches, micro_batch=micro_batch, schedule=schedule, recompute=recompute,
        optimizer_shard=optimizer_shard, flash_attention=software.flash_attention,
    )  # fmt: skip
    if axes and (one := _one_layout(model, profile, wanted)):
        prediction = predict(model, one, profile)
        if as_json:
            write_out(json_text(layout_json(prediction, profile)))
        else:
            write_lines(layout_lines(prediction, profile, _width()))
    elif global_batch:
        _search(model, profile, wanted, as_json=as_json)
    else:
        raise UsageError("the batch is not known", hint="add `--global-batch N`, the samples of a step of all devices")


def _width() -> int:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize


def _search(model: ModelShape, profile: DeviceProfile, wanted: Wanted, *, as_json: bool) -> None:
    """Print the best layouts. Raises RefusedLayoutError if there are none."""
    result = search(model, profile, wanted)
    changes = best_changes(model, profile, result)
    if as_json:
        write_out(json_text(search_json(result, changes, profile)))
    else:
        write_lines(search_lines(result, changes, profile, wanted, _width()))
    if not result.best:
        raise RefusedLayoutError(
            f"no layout of {wanted.devices} devices is possible within {memory_limit(profile) / 1e9:.1f} GB of memory",
            hint="read the reasons above; use more devices, a smaller micro batch, or a device with more memory",
        )


def _devices(given: DeviceCount | None, rank_table: Path | None) -> DeviceCount | None:
    """Return the number of devices. Of uneven servers, the smallest decides which groups lie within a server."""
    if given and rank_table:
        raise UsageError("--devices cannot be combined with --rank-table", hint="give one of them")
    if rank_table is None:
        return given
    cluster, _ = load_cluster(rank_table)
    return DeviceCount(cluster.device_count, min(len(server.devices) for server in cluster.servers))


def _one_layout(model: ModelShape, profile: DeviceProfile, wanted: Wanted) -> Configuration | None:
    """Return the only configuration that is wanted, or None if the micro batches are not given.

    Raises RefusedLayoutError if the model or the devices do not allow it.
    """
    dp, mp, pp = wanted.dp or 1, wanted.mp or 1, wanted.pp or 1
    samples = wanted.global_batch // dp
    micro_batch, micro_batches = wanted.micro_batch, wanted.micro_batches
    if samples and micro_batch and not micro_batches:
        micro_batches = samples // micro_batch
    elif samples and micro_batches and not micro_batch:
        micro_batch = samples // micro_batches
    if not micro_batch or not micro_batches:
        return None
    if wanted.global_batch and dp * micro_batch * micro_batches != wanted.global_batch:
        raise RefusedLayoutError(
            f"dp * micro batches * micro batch = {dp} * {micro_batches} * {micro_batch} = "
            f"{dp * micro_batches * micro_batch}, but the global batch is {wanted.global_batch}",
            hint="leave out one of --global-batch, --micro-batches and --micro-batch",
        )
    resolve_layout(wanted.devices, dp=dp, mp=mp, pp=pp, micro_batches=micro_batches, allow_idle_devices=True)
    if model.heads % mp:
        raise RefusedLayoutError(
            f"{model.heads} heads are not divisible by mp={mp}", hint=f"use a divisor of {model.heads} for --mp"
        )
    if pp > len(model.stack):
        raise RefusedLayoutError(
            f"pp={pp} is more than {len(model.stack)} layers", hint=f"use `--pp {len(model.stack)}`"
        )
    chosen = Layout(dp=dp, mp=mp, pp=pp, micro_batches=micro_batches)
    return Configuration(chosen, micro_batch, profile.software, chunks_of(model, chosen, profile.software.schedule))
