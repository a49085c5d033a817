"""A registration at a real endpoint, and agents that connect to it."""

import os
import select
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from launcher.cluster.agent_connection import listen
from launcher.cluster.engine_process import EngineProcess
from launcher.cluster.job import Plan
from launcher.cluster.join import AgentInfo, Endpoint, join
from launcher.cluster.registration import Registration
from launcher.control.messages import Challenge, to_line
from launcher.core.records import Cluster, Layout, RankSpec, RunSpec
from launcher.engines.engine_command import EngineCommand
from launcher.supervise.channel import Channel
from launcher.supervise.event_log import EventLog
from tests.conftest import PATIENCE_S
from tests.servers import servers

SERVERS = servers("10.0.0.1", "h2")


@pytest.fixture
def event_log(tmp_path):
    event_log = EventLog(tmp_path / "events.jsonl", 0)
    yield event_log
    event_log.close(None)


@pytest.fixture
def spec(tmp_path):
    """Of a rank on each of two servers."""
    cluster = Cluster(servers("10.0.0.1", "10.0.0.2"))
    ranks = tuple(
        RankSpec(rank, 0, each.server_id, rank, 0, ("true",), {}) for rank, each in enumerate(cluster.servers)
    )
    return RunSpec("a-run", tmp_path, cluster, Layout(dp=2), ranks, tmp_path, "10.0.0.1", 0)


@pytest.fixture
def start_engine(tmp_path, wait_until):
    """Gives a function that starts a shell's script as an engine, and waits until it has ended or has made a file."""
    started = []

    def start(script, *, env=None, files=None, ask=(), name="sh 1.0", environment=None, until=None, waits=True):
        command = EngineCommand(name, ("sh", "-c", script), env or {}, files or {}, ask)
        engine = EngineProcess(command, environment or dict(os.environ), tmp_path, tmp_path / "engine.log")
        started.append(engine)
        if waits:
            wait_until(lambda: (tmp_path / until).exists() if until else engine.ended, "its end")
        return engine

    yield start
    for engine in started:
        engine.signal(signal.SIGKILL)
        wait_until(lambda engine=engine: engine.ended, "its end")


class House:
    """What a coordinator does at its endpoint, until `until` is true."""

    def __init__(self, *, joining=True, listener=None, run_name="a-run", **plan):
        self.listener = listener or listen()
        usual = {
            "token": "token", "shared_token": "shared", "silence_s": 20.0, "join_timeout_s": 60.0, "brings_all": False,
            "engine": EngineCommand("no engine", ("true",), {}, {}), "job": "the job", "agreement": {},
        }  # fmt: skip
        self.plan = Plan(**{"listener": self.listener, **usual, **plan})
        self.registration = Registration(self.plan, SERVERS, run_name)
        self.joining = joining
        self.errors = []  # that concern the run
        self.heard = []  # by peers, beside their first words
        self.dismissed = []

    @property
    def port(self):
        return self.listener.getsockname()[1]

    def attend(self, until):
        deadline = time.monotonic() + PATIENCE_S
        while not (found := until()):
            assert time.monotonic() < deadline, (self.errors, self.heard)
            connections = (*self.registration.unauthenticated, *self.registration.peers.values())
            select.select([self.listener, *connections], [], [], 0.02)
            self._step()
        return found

    def _step(self):
        list(self.registration.accept())
        self.registration.stacks_relay.step()
        for unknown in self.registration.unauthenticated:
            self._note(self.registration.hear(unknown, joining=self.joining))
        for unknown in self.registration.dismiss():
            unknown.close(1.0)
            self.dismissed.append(unknown)
        for peer in self.registration.peers.values():
            if peer.lost is None:
                self._note(self.registration.take_first_words(peer, self.heard.append))

    def _note(self, error):
        if error is not None:
            self.errors.append(error)

    def close(self):
        for peer in (*self.registration.unauthenticated, *self.registration.peers.values()):
            peer.close()
        self.listener.close()


@pytest.fixture
def house():
    opened = []

    def open_house(**options):
        opened.append(House(**options))
        return opened[-1]

    yield open_house
    for each in opened:
        each.close()


@pytest.fixture
def opened(house):
    return house()


class Agents:
    """Agents that join in threads of their own, and bare connections."""

    def __init__(self):
        self._pool = ThreadPoolExecutor(8)
        self._members = []
        self._connections = []

    def join(
        self, house, *, token=None, patience_s=PATIENCE_S, ports=None, on_delay=lambda _why: None, tokens=None, **member
    ):
        who = AgentInfo(**{"host": "h1", "addresses": ("10.0.0.1", "127.0.0.1"), **member})
        token = token or ("token" if who.agreement is None else "shared")
        endpoint = Endpoint(tuple(("127.0.0.1", port) for port in ports or [house.port]), token)
        self._members.append(
            self._pool.submit(join, endpoint, who, time.monotonic() + patience_s, on_delay, tokens=tokens)
        )
        return self._members[-1]

    def join_both(self, house):
        joined = [self.join(house), self.join(house, host="h2", addresses=("10.0.0.2",))]
        house.attend(lambda: all(future.done() for future in joined))
        return [future.result() for future in joined]

    def wait(self, membership, master_port=None, tell=lambda _waiting: None, program=None):
        return self._pool.submit(membership.wait_for_start, master_port, tell, program)

    def push(self, connection, words):
        """A future that is done when these words are sent, or the other end has had enough; without any it leaves."""

        def send():
            with suppress(OSError):
                connection.sendall(words) if words else connection.shutdown(socket.SHUT_WR)

        return self._pool.submit(send)

    def connect(self, house):
        self._connections.append(socket.create_connection(("127.0.0.1", house.port)))
        return self._connections[-1]

    def say(self, house, make):
        """Send what `make` makes of the challenge's nonce, as an agent that knows the protocol; return the channel."""
        channel = Channel(self.connect(house))
        house.attend(lambda: house.registration.unauthenticated)
        (challenge,) = first(channel, 1)
        assert isinstance(challenge, Challenge)
        channel._connection.sendall(to_line(make(challenge.nonce)))
        return channel

    def close(self):
        self._pool.shutdown()
        for each in self._members:
            if each.exception() is None:
                each.result().close()
        for connection in self._connections:
            connection.close()


def first(channel, count):
    heard = []
    for message in channel.wait_for(time.monotonic() + PATIENCE_S):
        heard.append(message)
        if len(heard) == count:
            break
    return heard


@pytest.fixture
def agents():
    made = Agents()
    yield made
    made.close()
