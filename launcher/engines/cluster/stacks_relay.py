"""The coordinator's part in `tlaunch stacks`: hands the question to all agents, and what they find to who has asked."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from launcher.core.messages import AllStacks, AskStacks, Stacks, TakeStacks, is_proof, proof_of
from launcher.core.records import Server
from launcher.engines.cluster.peers import Peer

SURVEY_S = 4.0  # for all servers to answer; each asks its ranks for less than two seconds
PURPOSE = "stacks"  # a proof of this is good for nothing else


@dataclass
class _Survey:
    asker: Peer
    nonce: str
    deadline: float  # monotonic
    awaited: set[int]  # server indices
    content: list[Any] = field(default_factory=list)
    silent: dict[str, str] = field(default_factory=dict)


class StacksRelay:
    """Of those who know the run's key. Nothing here waits."""

    def __init__(self, key: str, servers: Sequence[Server], peers: Mapping[int, Peer]) -> None:
        """`key`: empty where nobody may ask. `peers`: those that are there, by server index; changes meanwhile."""
        self._key = key
        self._servers = servers
        self._peers = peers
        self._open: dict[int, _Survey] = {}
        self._number = 0

    def begin(self, asked: AskStacks, asker: Peer, *, running: bool) -> bool:
        """Ask all servers, if `asker` may; whether he may. `running`: agents have been told to start ranks."""
        if not self._key or not is_proof(asked.proof, self._key, PURPOSE, asker.nonce, asked.nonce):
            return False
        self._number += 1
        survey = _Survey(asker, asked.nonce, time.monotonic() + SURVEY_S, set())
        for index, server in enumerate(self._servers):
            if not running:
                break
            if index in self._peers:
                survey.awaited.add(index)
                self._peers[index].send(TakeStacks(self._number, asked.ranks))
            else:
                survey.silent[server.server_id] = "it is lost, or has ended"
        self._open[self._number] = survey
        self.step()
        return True

    def take(self, server_index: int, told: Stacks) -> None:
        """What a server has found. Of a question that is over, nobody wants to hear."""
        survey = self._open.get(told.number)
        if survey is not None and server_index in survey.awaited:
            survey.awaited.discard(server_index)
            survey.content.append(told.content)
            self.step()

    def step(self) -> None:
        """Answer whoever has waited long enough, or for all."""
        now = time.monotonic()
        for number, survey in list(self._open.items()):
            for index in survey.awaited - self._peers.keys():
                self._miss(survey, index, "it was lost while it was asked")
            if survey.awaited and now < survey.deadline:
                continue
            for index in sorted(survey.awaited):
                self._miss(survey, index, f"it gave no answer within {SURVEY_S:g} s")
            proof = proof_of(self._key, PURPOSE, survey.nonce, survey.asker.nonce)
            survey.asker.send(AllStacks(proof, tuple(survey.content), survey.silent))
            del self._open[number]

    def _miss(self, survey: _Survey, index: int, why: str) -> None:
        survey.awaited.discard(index)
        survey.silent[self._servers[index].server_id] = why
