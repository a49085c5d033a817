"""Messages about attempts: restarts, and changes of devices in elastic runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from launcher.cli.text.columns import counted, duration
from launcher.core.devices import device_name
from launcher.core.events import AttemptStarted, DevicesChanged, Joined
from launcher.core.records import DeviceAssignment, RunSpec, Server, full_assignment
from launcher.core.text import some_of
from launcher.logs.terminal import printable
from launcher.runs.training_history import Change

SHOWN = 4  # names of devices


def membership_lines(event: AttemptStarted | DevicesChanged | Joined, spec: RunSpec) -> Iterator[str]:
    """Yield lines about a new attempt, or about devices that leave or return."""
    servers = spec.cluster.servers
    match event:
        case AttemptStarted(number=number, allotment=None) if number:
            yield f"restart {number} of {spec.supervision.max_restarts}"
        case AttemptStarted(number=number, allotment=DeviceAssignment() as allotment):
            if number or allotment != full_assignment(spec.layout):
                yield attempt_text(number, allotment, servers)
        case DevicesChanged(left_out=left_out, taken_back=taken_back, reason=reason):
            parts = ((left_out, "excluded"), (taken_back, "included again"))
            changed = ", ".join(f"{_names(devices, servers)} {verb}" for devices, verb in parts if devices)
            yield printable(f"{changed}: {reason}")
        case Joined(server=server, pause_s=pause_s):
            pause = f"; the run may restart to use it in {duration(pause_s)}" if pause_s else ""
            yield f"server {printable(server)} has joined{pause}"


def attempt_text(number: int, allotment: DeviceAssignment, servers: Sequence[Server]) -> str:
    """Describe the layout of an attempt, its unused devices and its spare devices."""
    layout, used = allotment.layout, set(allotment.devices)
    text = f"attempt {number}: {layout} micro_batches={layout.micro_batches} on {counted(len(used), 'device')}"
    ranks = sorted(device.global_rank for server in servers for device in server.devices)
    parts = (("without", set(ranks) - used - set(allotment.spare)), ("spare:", allotment.spare))
    return text + "".join(f", {word} {_names(sorted(devices), servers)}" for word, devices in parts if devices)


def change_text(change: Change) -> str:
    """Describe the layout of an attempt, how its devices changed, and what the restart cost."""
    parts = (("fewer", change.left_out), ("more", change.taken_back))
    changed = "".join(f", {len(devices)} {word}" for word, devices in parts if devices) or ", unchanged"
    text = f"{change.layout} on {counted(change.devices, 'device')}{changed} (previous attempt: {change.cause.value})"
    if change.cost_s is None or change.repeated_steps is None:
        return text
    again = f", {counted(change.repeated_steps, 'step')} repeated" if change.repeated_steps else ""
    return f"{text}: {duration(change.cost_s)} until the next step{again}"


def _names(devices: Sequence[int], servers: Sequence[Server]) -> str:
    return printable(some_of([device_name(device, servers) for device in devices], SHOWN))
