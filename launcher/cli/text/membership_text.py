"""Put attempts into words: that there is another one, and which devices it has where the run is elastic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from launcher.cli.text.columns import counted, duration
from launcher.core.devices import device_name
from launcher.core.events import AttemptStarted, DevicesChanged, Joined
from launcher.core.records import DeviceAssignment, RunSpec, Server, full_assignment
from launcher.core.text import some_of
from launcher.logs.terminal import printable
from launcher.runs.changes import Change

SHOWN = 4  # names of devices


def membership_lines(event: AttemptStarted | DevicesChanged | Joined, spec: RunSpec) -> Iterator[str]:
    """Yield what a person should know of an attempt, or of devices that come and go. Safe to show."""
    servers = spec.cluster.servers
    match event:
        case AttemptStarted(number=number, allotment=None) if number:
            yield f"restart {number} of {spec.supervision.max_restarts}"
        case AttemptStarted(number=number, allotment=DeviceAssignment() as allotment):
            if number or allotment != full_assignment(spec.layout):
                yield attempt_text(number, allotment, servers)
        case DevicesChanged(left_out=left_out, taken_back=taken_back, reason=reason):
            parts = ((left_out, "left out"), (taken_back, "taken back"))
            changed = ", ".join(f"{_names(devices, servers)} {verb}" for devices, verb in parts if devices)
            yield printable(f"{changed}: {reason}")
        case Joined(server=server, pause_s=pause_s):
            pause = f"; ranks may start again for it in {duration(pause_s)}" if pause_s else ""
            yield f"server {printable(server)} has joined{pause}"
        case _:
            pass


def attempt_text(number: int, allotment: DeviceAssignment, servers: Sequence[Server]) -> str:
    """Return the layout of an attempt, the devices of the cluster that it does without, and those that are spare. Safe to show."""
    layout, used = allotment.layout, set(allotment.devices)
    text = f"attempt {number}: {layout} micro_batches={layout.micro_batches} on {counted(len(used), 'device')}"
    ranks = sorted(device.global_rank for server in servers for device in server.devices)
    parts = (("without", set(ranks) - used - set(allotment.spare)), ("spare:", allotment.spare))
    return text + "".join(f", {word} {_names(sorted(devices), servers)}" for word, devices in parts if devices)


def change_text(change: Change) -> str:
    """Return what an attempt has, beside the one before, how that ended, and what it cost to go on."""
    parts = (("less", change.left_out), ("more", change.taken_back))
    changed = "".join(f", {len(devices)} {word}" for word, devices in parts if devices) or ", the same"
    text = f"{change.layout} on {counted(change.devices, 'device')}{changed} (the attempt before: {change.cause.value})"
    if change.cost_s is None or change.repeated_steps is None:
        return text
    again = f", {counted(change.repeated_steps, 'step')} computed again" if change.repeated_steps else ""
    return f"{text}: {duration(change.cost_s)} until the next step{again}"


def _names(devices: Sequence[int], servers: Sequence[Server]) -> str:
    """Return how people call these devices, as many of them as fit a line."""
    return printable(some_of([device_name(device, servers) for device in devices], SHOWN))
