"""Simulate all agents of a run in one process, with the protocol of launcher/control/messages.py, without ranks.

A coordinator starts this program in place of an engine. Each agent has a separate connection. It registers, reports
that it is ready and that its ranks have started, stays for `--stay` seconds, reports that they have ended, and says
farewell. The results go to `--notes` as JSON: the time (monotonic) and the coordinator's CPU time at which the last
agent reached each stage, and the bytes in both directions.

One agent can fail: `--vanishing I` closes its connection right after the start, `--leaving I` after the welcome. The
other agents then send their evidence, end their ranks and leave.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import selectors
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launcher import __version__
from launcher.control.messages import (
    AttemptEnded,
    Done,
    EventReport,
    EvidenceReport,
    Hello,
    Message,
    Pong,
    Ready,
    proof_of,
    to_line,
)
from launcher.core.events import (
    AgentEnded,
    AgentStarted,
    AttemptStarted,
    Cause,
    Event,
    RankEnded,
    RankStarted,
    TimestampedEvent,
)
from launcher.core.events import to_line as event_line
from launcher.core.machine.proc import ProcessId
from launcher.core.resources import fingerprint

CHUNK_BYTES = 1 << 20
PATIENCE_S = 600.0
SETTLE = 0.4  # of the time that ranks stay: for the coordinator to read what it was told of their start
AT_ONCE = 256  # connections that are not answered yet
PORT = 29500  # that the server of rank 0 would hold

CODE = fingerprint()


class Notes:
    """Of stages that all agents go through: when the last one came there, and what the coordinator had taken by then."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._come: dict[str, int] = {}
        self._coordinator = os.getppid()
        self.stages: dict[str, tuple[float, float]] = {}
        self.stage("started")

    def arrive(self, stage: str) -> bool:
        """One more agent has come there; whether it was the last."""
        self._come[stage] = self._come.get(stage, 0) + 1
        if self._come[stage] == self._count:
            self.stage(stage)
            return True
        return False

    def stage(self, name: str) -> None:
        self.stages[name] = (time.monotonic(), cpu_s_of(self._coordinator))


class FakeAgent:
    """One agent without ranks."""

    def __init__(self, simulation: Simulation, index: int) -> None:
        self._simulation = simulation
        self._index = index
        self._partial = b""
        self.sent_bytes = self.received_bytes = 0
        self.begun = False
        self._attempt = 0
        self.connection = socket.create_connection(simulation.endpoint)
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def hear(self) -> bool:
        """What has come; whether this goes on."""
        try:
            chunk = self.connection.recv(CHUNK_BYTES)
        except ConnectionError:
            return False
        self.received_bytes += len(chunk)
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        going_on = [self._on_line(line) for line in lines]
        return bool(chunk) and all(going_on)

    def _on_line(self, line: bytes) -> bool:
        name = line[2 : line.index(b'"', 2)].decode()
        heard: Callable[[Any], bool] | None = getattr(self, f"_on_{name.lower()}", None)
        if name == "Welcome":  # with the whole job, which no agent here reads
            return self._on_welcome()
        return True if heard is None else heard(json.loads(line)[1])

    def _say(self, *messages: Message) -> None:
        data = b"".join(map(to_line, messages))
        self.sent_bytes += len(data)
        self.connection.sendall(data)

    def _tell(self, *events: Event) -> None:
        now_ns = time.time_ns()
        self._say(*(EventReport(event_line(TimestampedEvent(now_ns, self._index, event))) for event in events))

    @property
    def _ranks(self) -> range:
        return range(self._index * self._simulation.ranks, (self._index + 1) * self._simulation.ranks)

    # --- what the coordinator says ---

    def _on_challenge(self, fields: dict[str, Any]) -> bool:
        nonce = os.urandom(16).hex()
        self._say(
            Hello(
                proof=proof_of(self._simulation.token, fields["nonce"], nonce),
                nonce=nonce,
                version=__version__,
                code=CODE,
                python=platform.python_version(),
                host=f"node{self._index}",
                addresses=("127.0.0.1", self._simulation.servers[self._index]),
                index=self._index,
            )
        )
        return True

    def _on_welcome(self) -> bool:
        self._simulation.notes.arrive("welcomed")
        if self._index == self._simulation.leaving:
            return False
        self._say(Ready(PORT if self._index == 0 else None))
        return True

    def _on_ping(self, fields: dict[str, Any]) -> bool:
        self._say(Pong(fields["sent_ns"], time.time_ns()))
        return True

    def _on_beginattempt(self, fields: dict[str, Any]) -> bool:
        self._attempt = fields["number"]
        self._simulation.notes.arrive("begun")
        if self._index == self._simulation.vanishing:
            return False
        own = ProcessId(os.getpid(), 1, f"node{self._index}", "boot")
        starts = (RankStarted(rank, 1000 + rank, 12345) for rank in self._ranks)
        self._tell(AgentStarted(own, own, self._simulation.ranks), AttemptStarted(self._attempt, PORT), *starts)
        self.begun = True
        if self._simulation.notes.arrive("ranks told"):
            self._simulation.quiet_since = time.monotonic()
        return True

    def end_ranks(self, status: int = 0) -> None:
        if self.begun:
            self.begun = False
            self._tell(*(RankEnded(rank, 1000 + rank, status) for rank in self._ranks))
            self._say(AttemptEnded(self._index, self._attempt))

    def _on_collectevidence(self, _fields: dict[str, Any]) -> bool:
        self._say(EvidenceReport(self._index, self._attempt, {"ranks": []}))
        return True

    def _on_endranks(self, _fields: dict[str, Any]) -> bool:
        self.end_ranks(-15)
        return True

    def _on_finish(self, fields: dict[str, Any]) -> bool:
        self._simulation.notes.arrive("finish")
        self._tell(AgentEnded(Cause(fields["cause"]), fields["exit_code"]))
        self._say(Done())
        return False


class Simulation:
    """All of them, in one loop."""

    def __init__(self, options: argparse.Namespace) -> None:
        host, _, port = os.environ["TLAUNCH_COORDINATOR"].split(",")[-1].rpartition(":")
        self.endpoint = (host, int(port))
        self.token = os.environ["TLAUNCH_COORDINATOR_TOKEN"]
        self.servers: list[str] = options.servers.read_text(encoding="ascii").split()
        self.ranks: int = options.ranks
        self.vanishing: int | None = options.vanishing
        self.leaving: int | None = options.leaving
        self.notes = Notes(len(self.servers))
        self.quiet_since: float | None = None  # all have told of their ranks' start
        self._stay_s: float = options.stay
        self._agents: list[FakeAgent] = []
        self._selector = selectors.DefaultSelector()

    def run(self) -> dict[str, Any]:
        """Until all have gone; what was noted."""
        ends = time.monotonic() + PATIENCE_S
        while len(self._agents) < len(self.servers) or self._selector.get_map():
            assert time.monotonic() < ends, "it never ends"
            self._come()
            for key, _ in self._selector.select(self._timeout_s()):
                if not key.data.hear():
                    self._selector.unregister(key.fileobj)
                    key.data.connection.close()
            self._end_ranks()
        self.notes.stage("gone")
        sent, received = (sum(getattr(one, name) for one in self._agents) for name in ("sent_bytes", "received_bytes"))
        return {
            "stages": self.notes.stages,
            "agents_sent_bytes": sent,
            "agents_received_bytes": received,
            "peak_bytes": peak_bytes_of(os.getppid()),
            "own_cpu_s": time.process_time(),
        }

    def _come(self) -> None:
        for index in range(len(self._agents), min(len(self._agents) + AT_ONCE, len(self.servers))):
            agent = FakeAgent(self, index)
            self._agents.append(agent)
            self._selector.register(agent.connection, selectors.EVENT_READ, agent)

    def _timeout_s(self) -> float:
        if len(self._agents) < len(self.servers):
            return 0.0
        if self.quiet_since is None:
            return 1.0
        due_s = self._stay_s * (1.0 if "settled" in self.notes.stages else SETTLE)
        return max(0.0, self.quiet_since + due_s - time.monotonic())

    def _end_ranks(self) -> None:
        if self.quiet_since is None:
            return
        quiet_s = time.monotonic() - self.quiet_since
        if quiet_s >= SETTLE * self._stay_s and "settled" not in self.notes.stages:
            self.notes.stage("settled")
        if quiet_s >= self._stay_s:
            self.quiet_since = None
            self.notes.stage("quiet")
            for agent in self._agents:
                agent.end_ranks()


def cpu_s_of(pid: int) -> float:
    """What a process has taken so far: its clock as the kernel numbers it."""
    return time.clock_gettime(~pid << 3 | 2)


def peak_bytes_of(pid: int) -> int:
    """The most memory that it ever had."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", type=Path, required=True, help="a file with an address for each")
    parser.add_argument("--ranks", type=int, default=8, help="of each")
    parser.add_argument("--stay", type=float, default=0.0, metavar="SECONDS", help="until ranks end")
    parser.add_argument("--notes", type=Path, help="where to write what was seen")
    parser.add_argument("--vanishing", type=int, metavar="I")
    parser.add_argument("--leaving", type=int, metavar="I")
    options = parser.parse_args()
    found, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    noted = {**Simulation(options).run(), "limit_found": found}
    if options.notes:
        aside = options.notes.with_suffix(".partial")  # the simulation may be ended at any moment
        aside.write_text(json.dumps(noted), encoding="ascii")
        aside.rename(options.notes)


if __name__ == "__main__":
    main()
