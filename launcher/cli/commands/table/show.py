"""`tlaunch table show`: show servers and devices with their ranks, as a tree."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import click
from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from launcher.cli.commands.table.table_files import read_table
from launcher.cli.options.run import max_table_size_option, table_chip_option
from launcher.cli.options.types import IntRange, complete_files
from launcher.cli.text.columns import counted
from launcher.cli.text.stdout import say, write_out
from launcher.cli.text.style import screen_of
from launcher.core.codec import json_text
from launcher.core.errors import EXIT_FAILURE, EXIT_OK
from launcher.core.frozen import frozen
from launcher.core.records import HOST_RANK, Cluster, Device, Layout, Options, Server
from launcher.core.text import printable, ranges
from launcher.mesh.coordinates import AXES, coordinate_of, groups
from launcher.mesh.layouts import resolve_layout
from launcher.rank_table import TableReport
from launcher.rank_table.diagnostics import headline
from launcher.rank_table.profile import Profile

EPILOG = """\b
Examples:
  tlaunch table show rank_tables/rank_table_16pcs.json
  tlaunch table show rank_tables/rank_table_8pcs.json --mp 2 --pp 2

Exit codes: 0 success; 1 the table has errors; 2 wrong usage, or a file that cannot be read; 3 the layout does not fit
the devices.
"""
AXES_SHOWN = ("mp", "dp", "pp")  # the fastest-varying axis first
MAX_GROUP = 8  # ranks listed individually
MAX_OPTION_CHARS = 40  # network layers of an A5 table may take kilobytes
ENDLESS = 1_000_000  # columns: lines are not wrapped, so that `grep` works
WAYS = IntRange(max=10**6)


@click.command(epilog=EPILOG)
@click.option("--dp", type=WAYS, metavar="N", help="Data-parallel degree.  [default: devices / (mp * pp)]")
@click.option("--mp", type=WAYS, metavar="N", help="Model-parallel (tensor-parallel) degree.  [default: 1]")
@click.option("--pp", type=WAYS, metavar="N", help="Number of pipeline stages.  [default: 1]")
@click.option("--allow-idle-devices", is_flag=True, help="Accept a layout that leaves devices unused.")
@table_chip_option
@max_table_size_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("file", metavar="FILE", shell_complete=complete_files)
def show(file: str, *, chip: str, as_json: bool, allow_idle_devices: bool, **degrees: int | None) -> int:
    """Show servers and devices with their ranks, as a tree.

    With --dp, --mp or --pp, also show each rank's coordinates and groups. FILE may be - for stdin.
    """
    report = read_table(file, Profile(chip=chip))
    if report.cluster is None:
        say(report.render(screen_of(sys.stderr).columns))
        return EXIT_FAILURE
    for problem in report.warnings:
        say(headline(problem, str(report.path)))
    layout = None
    if given := {axis: degree for axis, degree in degrees.items() if degree is not None}:
        shape: dict[str, Any] = {"mp": 1, "pp": 1, **given}
        layout = resolve_layout(report.cluster.device_count, **shape, allow_idle_devices=allow_idle_devices)
    placement = Placement(report.cluster, layout)
    name = "table" if report.format is None else f"{report.format.value} table"
    write_out(json_text(_to_json(placement, report)) if as_json else _as_text(placement, f"{report.path}: {name}"))
    return EXIT_OK


@frozen
class Placement:
    """A cluster and the layout of its ranks, if a layout was requested."""

    cluster: Cluster
    layout: Layout | None

    @cached_property
    def groups(self) -> Mapping[str, tuple[tuple[int, ...], ...]]:
        """All groups of ranks, keyed by axis, or an empty mapping if no layout was requested."""
        return {} if self.layout is None else {axis: groups(axis, self.layout) for axis in AXES}

    @cached_property
    def group_texts(self) -> Mapping[str, Mapping[int, str]]:
        """The members of each rank's group as text, keyed by axis and rank. A group of one rank has the text ""."""
        texts: dict[str, dict[int, str]] = {axis: {} for axis in self.groups}
        for axis, found in self.groups.items():
            for ranks in found:
                shown = [*ranks[:2], "...", ranks[-1]] if len(ranks) > MAX_GROUP else ranks
                text = f"{{{','.join(map(str, shown))}}}" if len(ranks) > 1 else ""
                texts[axis] |= dict.fromkeys(ranks, text)
        return texts

    def is_idle(self, device: Device) -> bool:
        return self.layout is not None and device.global_rank >= self.layout.world_size

    def coordinates(self, device: Device) -> dict[str, int] | None:
        if self.layout is None or self.is_idle(device):
            return None
        place = coordinate_of(device.global_rank, self.layout)
        return {"pp": place.pp, "dp": place.dp, "mp": place.mp}


def _as_text(placement: Placement, title: str) -> str:
    """Return the tree as text, followed by the number of groups along each axis."""
    data = io.BytesIO()
    with io.TextIOWrapper(data, encoding=sys.stdout.encoding or "utf-8", errors="replace") as stream:
        console = Console(file=stream, width=ENDLESS, color_system=None, legacy_windows=False)
        console.print(_tree(placement, title), soft_wrap=True)
        stream.flush()
        drawn = data.getvalue().decode(stream.encoding)
    server_of = {
        device.global_rank: index for index, server in enumerate(placement.cluster.servers) for device in server.devices
    }
    for axis in AXES_SHOWN:
        found = placement.groups.get(axis, ())
        if found and len(found[0]) > 1:
            crossing = sum(len({server_of[rank] for rank in ranks}) > 1 for ranks in found)
            drawn += f"{axis}: {counted(len(found), 'group')} of {len(found[0]):,} ranks, {crossing:,} across servers\n"
    return drawn


def _tree(placement: Placement, title: str) -> Tree:
    cluster, layout = placement.cluster, placement.layout
    words = [title, _size(cluster.servers)]
    if layout is not None:
        idle = cluster.device_count - layout.world_size
        words += [str(layout), *([f"{idle} idle"] if idle else [])]
    tree = Tree(_label(", ".join(words)))
    lines = _device_lines(placement)
    pods: dict[str | None, list[Server]] = {}  # in the order of their first server
    for server in cluster.servers:
        pods.setdefault(server.super_pod_id, []).append(server)
    for pod, servers in pods.items():
        above = tree if pod is None else tree.add(_label(f"super pod {pod}: {_size(servers)}"))
        for server in servers:
            ranks = [device.global_rank for device in server.devices]
            about = [f"server {server.server_id}: {'rank' if len(ranks) == 1 else 'ranks'} {ranges(ranks)}"]
            about += [] if server.host_ip is None else [f"host_ip={server.host_ip}"]
            below = above.add(_label("  ".join([*about, *_option_words(server.options)])))
            for device in server.devices:
                below.add(_label(lines[device.global_rank]))
    return tree


def _label(text: str) -> Text:
    """Return the text as a label of the tree, with control characters escaped."""
    return Text(printable(text))


def _size(servers: Sequence[Server]) -> str:
    devices = sum(len(server.devices) for server in servers)
    return f"{counted(len(servers), 'server')}, {counted(devices, 'device')}"


def _device_lines(placement: Placement) -> dict[int, str]:
    """Return a line for each rank, in columns that are aligned across the whole cluster."""
    devices = [device for server in placement.cluster.servers for device in server.devices]
    rows = [tuple(_cells(device, placement)) for device in devices]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return {
        device.global_rank: "  ".join(
            cell.ljust(width) for cell, width in zip(row, widths, strict=True) if width
        ).rstrip()
        for device, row in zip(devices, rows, strict=True)
    }


def _cells(device: Device, placement: Placement) -> Iterator[str]:
    """Yield the cells of a device's line. The caller removes columns that are empty for all devices."""
    yield f"rank {device.global_rank}"
    yield "host" if device.device_id == HOST_RANK else f"device {device.device_id}"
    yield device.device_ip or ""
    yield "" if device.super_device_id is None else f"super device {device.super_device_id}"
    coordinates = placement.coordinates(device) or {}
    yield "idle" if placement.is_idle(device) else " ".join(f"{axis}={at}" for axis, at in coordinates.items())
    for axis in AXES_SHOWN:
        text = placement.group_texts.get(axis, {}).get(device.global_rank, "")
        yield f"{axis} {text}" if text else ""
    yield "  ".join(_option_words(device.options))


def _option_words(options: Options) -> Iterator[str]:
    for key, text in options:
        yield f"{key}={text}" if len(text) <= MAX_OPTION_CHARS else f"{key}=({len(text):,} characters)"


def _to_json(placement: Placement, report: TableReport) -> dict[str, Any]:
    layout = placement.layout
    return {
        "path": str(report.path),
        "format": None if report.format is None else report.format.value,
        "device_count": placement.cluster.device_count,
        "options": dict(placement.cluster.options),
        "layout": layout and {"dp": layout.dp, "mp": layout.mp, "pp": layout.pp},
        "servers": [
            {name: getattr(server, name) for name in ("server_id", "super_pod_id", "host_ip", "host_nic_ip")}
            | {"options": dict(server.options)}
            | {
                "devices": [
                    {name: getattr(one, name) for name in ("global_rank", "device_id", "device_ip", "super_device_id")}
                    | {"options": dict(one.options)}
                    | {"coordinates": placement.coordinates(one), "idle": placement.is_idle(one)}
                    for one in server.devices
                ]
            }
            for server in placement.cluster.servers
        ],
        "groups": placement.groups or None,
    }
