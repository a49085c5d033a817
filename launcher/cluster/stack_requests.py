"""Requests of `tlaunch stacks` to a run on several servers: the client, and the coordinator's relay to all agents."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, TypeVar

from launcher.cluster.agent_connection import AgentConnection
from launcher.cluster.coordinator_files import ControlEndpoint
from launcher.control import messages
from launcher.core.codec import decode
from launcher.core.errors import TlaunchError
from launcher.core.records import Server
from launcher.supervise.channel import Channel, ChannelClosedError
from launcher.supervise.stack_collection import SurveyAnswer

ANSWER_LIMIT_S = 4.0  # for all servers to answer; each takes less than two seconds
PURPOSE = "stacks"  # binds a proof to this message


@dataclass
class _Request:
    client: AgentConnection
    nonce: str
    deadline: float  # monotonic
    awaited: set[int]  # server indices
    content: list[Any] = field(default_factory=list)
    silent: dict[str, str] = field(default_factory=dict)


class StacksRelay:
    """Relays requests for stack traces from authenticated clients to all agents. Never blocks."""

    def __init__(self, key: str, servers: Sequence[Server], peers: Mapping[int, AgentConnection]) -> None:
        """Relay requests to the agents in `peers` (keys: server indices). If `key` is empty, refuse all requests."""
        self._key = key
        self._servers = servers
        self._peers = peers
        self._open: dict[int, _Request] = {}
        self._number = 0

    def begin(self, asked: messages.AskStacks, client: AgentConnection, *, running: bool) -> bool:
        """Ask all servers for the stacks of running ranks. Return False if the client's proof is invalid."""
        if not self._key or not messages.is_proof(asked.proof, self._key, PURPOSE, client.nonce, asked.nonce):
            return False
        self._number += 1
        request = _Request(client, asked.nonce, time.monotonic() + ANSWER_LIMIT_S, set())
        for index, server in enumerate(self._servers):
            if not running:
                break
            if index in self._peers and self._peers[index].has_begun:
                request.awaited.add(index)
                self._peers[index].send(messages.TakeStacks(self._number, asked.ranks))
            elif index in self._peers:
                request.silent[server.server_id] = "it has joined, but has no ranks yet"
            else:
                request.silent[server.server_id] = "it is lost or has ended"
        self._open[self._number] = request
        self.step()
        return True

    def take(self, server_index: int, found: messages.Stacks) -> None:
        request = self._open.get(found.number)
        if request is not None and server_index in request.awaited:
            request.awaited.discard(server_index)
            request.content.append(found.content)
            self.step()

    def step(self) -> None:
        now = time.monotonic()
        for number, request in list(self._open.items()):
            for index in request.awaited - self._peers.keys():
                self._miss(request, index, "it was lost during the request")
            if request.awaited and now < request.deadline:
                continue
            for index in sorted(request.awaited):
                self._miss(request, index, f"it did not answer within {ANSWER_LIMIT_S:g} s")
            proof = messages.proof_of(self._key, PURPOSE, request.nonce, request.client.nonce)
            request.client.send(messages.AllStacks(proof, tuple(request.content), request.silent))
            del self._open[number]

    def _miss(self, request: _Request, index: int, why: str) -> None:
        request.awaited.discard(index)
        request.silent[self._servers[index].server_id] = why


CONNECT_S = 2.0  # for one address to answer
ANSWER_S = ANSWER_LIMIT_S + 2.0
Word = TypeVar("Word")


class CoordinatorUnreachableError(TlaunchError):
    """The run's coordinator cannot be reached or does not answer."""


def ask_stacks(
    endpoint: ControlEndpoint, ranks: tuple[tuple[int, int], ...] | None
) -> tuple[Sequence[SurveyAnswer], Mapping[str, str]]:
    """Return the stacks of all ranks, and a mapping from each server without an answer to the reason.

    Blocks for up to `CONNECT_S` seconds per address and `ANSWER_S` per answer. Raises CoordinatorUnreachableError.
    """
    reasons = []
    for host, port in endpoint.addresses:
        try:
            with closing(Channel(socket.create_connection((host, port), timeout=CONNECT_S))) as channel:
                answer = _ask(channel, endpoint.key, ranks)
            return tuple(decode(SurveyAnswer, content) for content in answer.content), answer.silent
        except (OSError, UnicodeError, ValueError, ChannelClosedError) as error:  # noqa: PERF203 - few addresses; a timeout is an OSError
            reasons.append(f"{host} port {port}: {getattr(error, 'strerror', None) or str(error) or 'no answer'}")
    raise CoordinatorUnreachableError(f"the run's coordinator cannot be reached: {'; '.join(reasons)}")


def _ask(channel: Channel, key: str, ranks: tuple[tuple[int, int], ...] | None) -> messages.AllStacks:
    challenge = _word(channel, messages.Challenge, CONNECT_S)
    if challenge.protocol != messages.PROTOCOL:
        raise ChannelClosedError("the coordinator uses a different version of tlaunch")
    nonce = os.urandom(16).hex()
    channel.send(messages.AskStacks(messages.proof_of(key, PURPOSE, challenge.nonce, nonce), nonce, ranks))
    answer = _word(channel, messages.AllStacks, ANSWER_S)
    if not messages.is_proof(answer.proof, key, PURPOSE, nonce, challenge.nonce):
        raise ChannelClosedError("authentication failed: the process at this address does not have the key of this run")
    return answer


def _word(channel: Channel, kind: type[Word], patience_s: float) -> Word:
    for message in channel.wait_for(time.monotonic() + patience_s):
        if isinstance(message, kind):
            return message
        raise ChannelClosedError("the process at this address is not this run's coordinator")
    raise TimeoutError
