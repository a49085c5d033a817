"""The settings of a run's coordinator, beside the run itself."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from launcher.core.frozen import frozen
from launcher.engines.command import EngineCommand

COMMAND = "command"  # in what servers must have alike


@frozen
class Plan:
    listener: socket.socket
    token: str  # of agents that the engine starts: they are told everything, values of --env too
    shared_token: str  # of agents that are started by hand; empty where nobody has chosen one
    silence_s: float  # a server that is not heard for so long is lost
    join_timeout_s: float  # all servers have to come within so long
    engine: EngineCommand  # starts an agent on every server, or the one of this server where others are started by hand
    brings_all: bool  # whether that engine starts all agents
    job: str  # for agents that have none of their own (launcher/cluster/job.py)
    agreement: Mapping[str, str]  # what agents that have one of their own must have alike
    engine_anew: bool = False  # whether an attempt needs the engine's processes anew, and not just its ranks
    resolved: tuple[tuple[str, frozenset[str]], ...] = ()  # what names of servers mean here
    same_program: bool = True  # whether all servers must have it
    key: str = ""  # of those who ask where ranks are (launcher/cluster/asker_endpoint.py)
