"""`tlaunch plan fit`: fit the numbers of a device to measured trainings."""

from __future__ import annotations

from pathlib import Path

import click

from launcher.cli.commands.plan.plan_inputs import device_of
from launcher.cli.options.types import FILE
from launcher.cli.text.columns import aligned
from launcher.cli.text.output_file import put
from launcher.cli.text.stdout import say, write_lines
from launcher.core.errors import UsageError
from launcher.core.text import counted, printable
from launcher.plan.device_profile import WIDTHS, DeviceProfile, Fit
from launcher.plan.fit import fitted
from launcher.plan.measured_rows import MeasuredRow, read_rows
from launcher.plan.packaged_profiles import profile_like, starting_profile

EPILOG = """\b
Examples:
  tlaunch plan fit --rows measured.json --output device.json
  tlaunch plan layout --model model.json --device device.json --devices 64 --global-batch 1024

FILE has the measured trainings as {"rows": [...]}. The page on the planner in the documentation lists the fields of a row.

The fit starts from the packaged profile of the rows' device, or from --device. At most as many numbers are fitted as
there are measurements. A held-out error is the mean error for rows that were left out of the fit.

Exit codes: 0; 2 wrong usage, a file that cannot be read or written, or rows of several kinds of devices.
"""


@click.command(epilog=EPILOG, help="Fit the numbers of a device to measured trainings, and write a device profile.")
@click.option(
    "--rows", "rows_file", type=FILE, required=True, metavar="FILE", help="Read measured trainings from FILE."
)
@click.option("-o", "--output", type=FILE, required=True, metavar="FILE", help="Write the device profile to FILE.")
@click.option(
    "--device", metavar="FILE|NAME",
    help="Start from this device profile.  [default: the packaged profile of the rows' device, or A100-80]",
)  # fmt: skip
def fit(*, rows_file: Path, output: Path, device: str | None) -> None:
    base = device_of(device) if device else _start(read_rows(rows_file).rows, rows_file)
    read = read_rows(rows_file, base.software)
    rows = read.rows
    if read.incomplete:
        say(f"note: {counted(read.incomplete, 'row')} without all sizes of the model and the layout are not used")
    profile = fitted(rows, base, is_known=device is not None or profile_like(rows[0].device_name) is not None)
    put(str(output), profile.to_json().encode(), hint="--output device.json")
    write_lines(lines_of(base, profile))


def lines_of(base: DeviceProfile, profile: DeviceProfile) -> list[str]:
    """Return the fitted numbers before and after the fit, and the errors."""
    result = profile.fit or Fit(0)
    rows = [
        (name, f"{getattr(base.numbers, name):.3g}", f"{getattr(profile.numbers, name):.3g}")
        for name in WIDTHS
        if name in result.fitted
    ]
    software = profile.software
    settings = [software.schedule, f"{software.recompute} recompute"]
    settings += ["sharded optimizer"] * software.optimizer_shard + ["flash attention"] * software.flash_attention
    return [
        f"device:          {printable(profile.name)}, {profile.per_server} in a server",
        f"rows:            {result.rows}, most of them with {', '.join(settings)}",
        f"error:           {_errors(result.error)} for the fitted rows",
        f"held-out error:  {_errors(result.held_out_error, result.held_out_worst)}",
        f"memory error:    {_errors(result.memory_error)}",
        "",
        *aligned(("NUMBER", "BEFORE", "FITTED"), rows, right=frozenset({"BEFORE", "FITTED"})),
    ]


def _start(rows: tuple[MeasuredRow, ...], file: Path) -> DeviceProfile:
    """Return the profile to start from. Raises UsageError if the rows are of several kinds of devices."""
    kinds: dict[str, MeasuredRow] = {}
    for row in rows:
        known = profile_like(row.device_name)
        kinds.setdefault(known.name if known else row.device_name, row)
    if len(kinds) > 1:
        first, second, *_ = kinds.values()
        raise UsageError(
            f"{printable(str(file))} has rows of {counted(len(kinds), 'kind')} of devices: "
            f"{printable(first.device_name)}, {printable(second.device_name)}",
            hint="give a file with the rows of one device",
        )
    return starting_profile(rows[0].device_name, rows[0].per_server, rows[0].device_memory_bytes)


def _errors(mean: float | None, worst: float | None = None) -> str:
    if mean is None:
        return "not measured"
    return f"{mean:.1%} on average" + ("" if worst is None else f", {worst:.0%} at most")
