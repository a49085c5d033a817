"""Run a real coordinator with N simulated agents without ranks, to measure the cost of the protocol."""

from __future__ import annotations

import json
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.checks import Bound, Checks
from common.processes import PROGRAMS

from launcher.cluster.agent_connection import listen
from launcher.cluster.coordinator import Coordinator
from launcher.cluster.job import Job, Plan, from_text, to_text
from launcher.core import env
from launcher.core.records import Cluster, Device, Layout, RunSpec, Server, Supervision
from launcher.core.run_dir import RunDir
from launcher.engines.assemble import OWN_TABLE, Request, assemble
from launcher.engines.engine_command import EngineCommand
from launcher.engines.local import signals_held_back, start_child
from launcher.engines.placement import read_machine
from launcher.rank_table import render_table
from launcher.runs.record import spec_to_json
from many_servers.fits import exponent

DEVICES = 8
CPU_BOUND = Bound(20.0, 5.0)  # of 2,000 servers
BEAT_BOUND = Bound(0.1, 0.03)
SIZES = (10, 100, 500, 1000, 2000)
LOST_AFTER_S = 15.0  # the default of --lost-after: every server is asked each 3 s
BEATS_SEEN = 4
JOIN_S = 300.0
SETTLE = 0.4  # as programs/simulated_agents.py has it


@dataclass(frozen=True)
class Cost:
    """Of one run. Seconds; CPU is the coordinator's."""

    servers: int
    welcomed_s: float  # from the engine's start
    begun_s: float
    ended_s: float  # from the end of the ranks until the last agent has left
    gather_cpu_s: float
    tell_cpu_s: float  # to take in that ranks have started, and heartbeats meanwhile
    beat_share: float  # of one core, when nothing happens
    end_cpu_s: float
    peak_bytes: int
    to_agent_bytes: float
    from_agent_bytes: float
    job_bytes: int
    head_cpu_s: float


@dataclass(frozen=True)
class AgentCost:
    """CPU seconds that every agent of a run pays for itself."""

    job_s: float
    assemble_s: float
    record_s: float  # run.json, where no other server has left it in a directory that both see


def measure(sizes: Sequence[int], checks: Checks) -> None:
    print("simulated agents without ranks, in one process beside a real coordinator on the same cores:")
    costs = [simulate(size) for size in sizes]
    for cost in costs:
        _tell(cost)
    if len(costs) > 1:
        _tell_growth(costs)
    last = costs[-1]
    checks.tell("coordinator's CPU seconds", last.gather_cpu_s + last.tell_cpu_s + last.end_cpu_s, CPU_BOUND)
    checks.tell("heartbeats, share of a core", last.beat_share, BEAT_BOUND)
    for size in sizes[-2:]:
        own = agent_cost(size)
        print(
            f"  each of {size} agents: job {own.job_s:.2f} s, its ranks {own.assemble_s:.2f} s, "
            f"run.json {own.record_s:.2f} s of CPU"
        )


def _tell(cost: Cost) -> None:
    print(
        f" {cost.servers} servers x {DEVICES}: all welcomed after {cost.welcomed_s:.2f} s, begun {cost.begun_s:.2f} s; "
        f"over {cost.ended_s:.2f} s after the ranks\n"
        f"  coordinator's CPU: until begin {cost.gather_cpu_s:.2f} s, starts told {cost.tell_cpu_s:.2f} s, "
        f"end {cost.end_cpu_s:.2f} s; heartbeats {cost.beat_share:.2%} of a core; head {cost.head_cpu_s:.2f} s\n"
        f"  to each agent {cost.to_agent_bytes / 1024:.1f} KiB (job {cost.job_bytes / 1024:.1f}), "
        f"from it {cost.from_agent_bytes / 1024:.1f} KiB; coordinator's peak {cost.peak_bytes / 2**20:.0f} MiB",
        flush=True,
    )


def _tell_growth(costs: Sequence[Cost]) -> None:
    """1: in proportion to the servers; 2: with their square."""
    large = [cost for cost in costs if cost.servers >= 100]
    if len(large) < 2:
        return
    names = ("gather_cpu_s", "tell_cpu_s", "end_cpu_s", "beat_share", "to_agent_bytes", "peak_bytes")
    sizes = [cost.servers for cost in large]
    found = (f"{name} {exponent(sizes, [getattr(cost, name) for cost in large]):.2f}" for name in names)
    print(f"  grows with the servers to the power of: {', '.join(found)}")


# --- one run ---


def simulate(size: int, stay_s: float | None = None) -> Cost:
    """Blocks until it is over."""
    stay_s = stay_s or BEATS_SEEN * LOST_AFTER_S / 5 / (1 - SETTLE)
    with tempfile.TemporaryDirectory() as folder:
        request = request_of(size, Path(folder))
        spec = assemble(request, name="simulated", master_port=0)
        spec.run_dir.mkdir()
        notes = Path(folder, "notes.json")
        job = job_of(request)
        before_s = time.process_time()
        exit_code = coordinate(spec, job, Path(folder), ("--stay", str(stay_s), "--notes", str(notes)))
        head_cpu_s = time.process_time() - before_s
        assert exit_code == 0, Path(spec.run_dir, "engine.log").read_text()
        return _cost(size, json.loads(notes.read_text(encoding="ascii")), len(job), head_cpu_s)


def coordinate(spec: RunSpec, job: str, folder: Path, options: Sequence[str]) -> int:
    """A coordinator as `tlaunch run` starts it, whose engine is the simulation; its exit code."""
    servers = folder / "servers"
    servers.write_text("\n".join(server.server_id for server in spec.cluster.servers), encoding="ascii")
    token = secrets.token_hex(16)
    with signals_held_back(), listen() as listener:
        endpoint = {
            env.TLAUNCH_COORDINATOR: f"127.0.0.1:{listener.getsockname()[1]}",
            env.TLAUNCH_COORDINATOR_TOKEN: token,
        }
        argv = (sys.executable, str(PROGRAMS / "simulated_agents.py"), "--servers", str(servers), *options)
        plan = Plan(
            listener=listener,
            token=token,
            shared_token="",
            silence_s=LOST_AFTER_S,
            join_timeout_s=JOIN_S,
            engine=EngineCommand("simulated agents", argv, endpoint, {}),
            brings_all=True,
            job=job,
            agreement={},
        )
        child = start_child(lambda head: Coordinator(spec, plan, head).run(), RunDir(spec.run_dir))
    while child.read() is not None:
        pass
    return child.wait()


def request_of(size: int, folder: Path) -> Request:
    """As for a table whose devices have addresses."""
    servers = tuple(
        Server(
            address_of(index),
            tuple(
                Device(device, index * DEVICES + device, f"192.{index // 250}.{index % 250}.{device + 1}")
                for device in range(DEVICES)
            ),
        )
        for index in range(size)
    )
    return Request(
        cluster=Cluster(servers, folder / "rank_table.json"),
        layout=Layout(dp=size * DEVICES),
        argv=("python", "train.py"),
        cwd=folder,
        runs_dir=folder,
        supervision=Supervision(),
        user_env={},
        inherited_env=dict(os.environ),
        machine=read_machine(),
    )


def job_of(request: Request) -> str:
    """With the table's text twice: as it was read, and as ranks read it."""
    table = render_table(request.cluster)
    return to_text(Job(request, {OWN_TABLE: table}, table, None))


def address_of(index: int) -> str:
    return f"10.0.{index // 250}.{index % 250 + 1}"


def _cost(size: int, noted: dict[str, Any], job_bytes: int, head_cpu_s: float) -> Cost:
    at = {name: moment for name, (moment, _) in noted["stages"].items()}
    cpu = {name: taken for name, (_, taken) in noted["stages"].items()}
    settled, quiet = noted["stages"]["settled"], noted["stages"]["quiet"]
    return Cost(
        servers=size,
        welcomed_s=at["welcomed"] - at["started"],
        begun_s=at["begun"] - at["started"],
        ended_s=at["gone"] - at["quiet"],
        gather_cpu_s=cpu["begun"],
        tell_cpu_s=settled[1] - cpu["begun"],
        beat_share=(quiet[1] - settled[1]) / (quiet[0] - settled[0]),
        end_cpu_s=cpu["gone"] - cpu["quiet"],
        peak_bytes=noted["peak_bytes"],
        to_agent_bytes=noted["agents_received_bytes"] / size,
        from_agent_bytes=noted["agents_sent_bytes"] / size,
        job_bytes=job_bytes,
        head_cpu_s=head_cpu_s,
    )


# --- what each agent does ---


def agent_cost(size: int) -> AgentCost:
    with tempfile.TemporaryDirectory() as folder:
        text = job_of(request_of(size, Path(folder)))
        started_s = time.process_time()
        job = from_text(text, dict(os.environ), read_machine())
        told_s = time.process_time()
        spec = assemble(replace(job.request, here=size // 2), name="simulated", master_port=0)
        assembled_s = time.process_time()
        spec_to_json(spec)
        return AgentCost(told_s - started_s, assembled_s - told_s, time.process_time() - assembled_s)
