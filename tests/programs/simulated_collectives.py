"""Compare the collectives of a simulated step with those that real ranks record on the CPU, for the rows of parity.py.

    simulated_collectives.py [--directory DIRECTORY] [ROW ...]

Without ROW, the names of some rows, it compares all of them. Exit 1 if one differs. For each row

    ranks on the CPU      record a step as `--save-strategy` does, through gloo
    simulated as "npu"    every rank
    simulated as "cuda"   the first and the last rank

must start the same collectives and messages: operator, phase, kind, group, bytes, count and purpose. A simulated step
also fails if it mixes devices, or reads a value of the device elsewhere than in `host_values`.

What differs by design: gloo exchanges gradients by all_to_all where accelerators use reduce_scatter; and in float32 a CPU
divides the head's tokens into blocks of other sizes, so its statistics are as many bytes in more pieces.
"""

import argparse
import functools
import json
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from dataclasses import replace
from pathlib import Path

import parity
import train_layouts
from ranks import fork_ranks, own_world

from launcher.core.codec import decode, encode
from launcher.core.records import Layout
from launcher.recipes.load import load_settings
from launcher.recipes.transformer.transformer_settings import TransformerSettings
from launcher.sharding.strategy_report import ReportCollective
from launcher.trainer.parallel import head_loss
from launcher.trainer.session import Session
from launcher.trainer.simulate.devices import SimulatedDevice
from launcher.trainer.simulate.observed_step import observed_step
from launcher.trainer.telemetry.recording import Recorder
from launcher.trainer.telemetry.watch import watching

READS = {
    "launcher.trainer.parallel.collectives.host_value",  # the loss
    "launcher.trainer.parallel.collectives.host_values",  # the norm of the gradient, and votes
}
head_loss.ACCELERATOR_BYTES = head_loss.CPU_BYTES  # as many chunks


def settings_of(row):
    chosen = [f"{key}={value}" for key, value in train_layouts.SETTINGS.items()]
    chosen += [f"train.precision={row.precision}", *row.settings, *row.numbers, parity.BACKEND]
    return load_settings(TransformerSettings, None, chosen)


def record(row, directory):
    """In a rank: write the collectives of a step."""
    settings = settings_of(row)
    with own_world("backend") as world:
        session, recorder = Session(settings, world), Recorder(world.place.global_rank)
        with watching(session.model, recorder):
            session.train_step(train_layouts.batches(1)[0], 1e-3, step=1)
        found = [encode(one) for one in recorder.collectives()]
        (directory / f"rank{world.place.global_rank}.json").write_text(json.dumps(found))


def compare(row, kind, ranks, directory):
    """Simulate ranks, and return the differences."""
    layout, device = Layout(row.dp, row.mp, row.pp, row.micro_batches), SimulatedDevice.of(kind)
    differences = []
    for rank in ranks:
        step = observed_step(settings_of(row), layout, rank, device, train_layouts.batches(1)[0])
        recorded = json.loads((directory / f"rank{rank}.json").read_text())
        on_cpu = Counter(as_on_device(decode(ReportCollective, one), row) for one in recorded)
        simulated = Counter(as_on_device(one, row) for one in step.recorder.collectives())
        differences += [f"rank {rank} on the CPU only: {one}" for one in on_cpu - simulated]
        differences += [f"rank {rank} on {kind} only: {one}" for one in simulated - on_cpu]
        differences += [f"rank {rank} on {kind}: {one}" for one in not_recorded(step)]
        differences += [f"rank {rank} on {kind} reads in {one}" for one in step.observer.reads.keys() - READS]
    return differences


def as_on_device(one, row):
    if one.kind == "all_to_all":
        one = replace(one, kind="reduce_scatter")
    if row.precision == "float32" and one.what == "statistics":
        one = replace(one, bytes=one.bytes * one.count, count=1)
    return one


def not_recorded(step):
    """What torch.distributed was asked for, but the step has not recorded; and the other way round."""
    asked, recorded = Counter(), Counter()
    for one, count in step.observer.collectives.items():
        asked[one.kind, one.bytes] += count
    for one in step.recorder.collectives():
        recorded[one.kind, one.bytes] += one.count
    return [f"started {asked[each]}, recorded {recorded[each]}: {each}" for each in {*asked, *recorded} if asked[each] != recorded[each]]  # fmt: skip


def compare_all(rows, kind, directory):
    """Print a line for each row, and its differences. Return whether there are none."""
    failures = 0
    for row in rows:
        last = row.dp * row.mp * row.pp - 1
        try:
            lines = compare(row, kind, range(last + 1) if kind == "npu" else sorted({0, last}), directory / row.name)
        except Exception:  # noqa: BLE001 - told as a difference
            lines = [traceback.format_exc()]
        failures += bool(lines)
        print(f"{'FAIL' if lines else 'pass'}  {kind:4}  {row.name}", *lines[:8], sep="\n      ", flush=True)
    print(f"{kind}: {len(rows)} rows, {failures} of them differ", flush=True)
    return not failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--directory", type=Path, help="of recorded collectives; those that are there are not recorded again"
    )
    parser.add_argument("--kind", choices=("npu", "cuda"), help="only compare")  # a process can make one such device
    parser.add_argument("rows", nargs="*", metavar="ROW")
    options = parser.parse_args()
    rows = [row for row in parity.ROWS if not options.rows or row.name in options.rows]
    if options.kind is not None:
        return 0 if compare_all(rows, options.kind, options.directory) else 1
    with tempfile.TemporaryDirectory() as temporary:
        directory = options.directory or Path(temporary)
        for row in rows:
            if not (directory / row.name).exists():
                (directory / row.name).mkdir(parents=True)
                axes = {axis: getattr(row, axis) for axis in ("dp", "mp", "pp", "micro_batches")}
                fork_ranks(row.name, functools.partial(record, row, directory / row.name), **axes)
        argv = [sys.executable, __file__, "--directory", directory, *(row.name for row in rows)]
        codes = [subprocess.run([*argv, "--kind", kind], check=False).returncode for kind in ("npu", "cuda")]
        return max(codes)


if __name__ == "__main__":
    sys.exit(main())
