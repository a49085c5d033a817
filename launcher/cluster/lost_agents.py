"""Agents that are lost: their ranks may live on for a while, where no other may start.

That a connection was closed or reset does not prove that its other end has gone: a firewall that has lost its state, or
a machine that translates addresses, resets connections of two that live.

An agent that loses its coordinator ends its ranks by itself: it notices within the time after which a server is lost
(--lost-after), and then its ranks have their grace. So after both, and some more, none of them lives, whatever the
network does. If it can before, the agent connects once more when nothing of its ranks is left, and says so, or the
process that attended it, where the agent itself was killed; then the wait is over. That is proved by the
run's token, and names the one agent that is meant.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import closing

from launcher.control.messages import PROTOCOL, Challenge, Freed, is_proof, proof_of
from launcher.supervise.channel import Channel, ChannelClosedError

MARGIN_S = 5.0  # for an agent to find out that it has lost us, beyond what it may take
CONNECT_S = 1.0
AGAIN_S = 0.5
MAX_INHERITED = 1024  # descriptors
_PURPOSE = "freed"  # a proof of this is good for nothing else


def longest_s(silence_s: float, grace_s: float) -> float:
    """After a loss: until nothing of the ranks of that server can be left."""
    return silence_s + grace_s + MARGIN_S


class LostAgents:
    """The coordinator's account of agents that are lost and may have ranks yet."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}  # monotonic, by what the agent goes by: the nonce of its Hello
        self._freed: set[str] = set()  # that have reported it, perhaps before their loss was noticed here

    @property
    def until(self) -> float:
        """The monotonic time before which ranks of one of them may live; 0 without any."""
        return max(self._until.values(), default=0.0)

    def note(self, agent: str, seconds: float) -> None:
        """Note that an agent is lost, whose ranks end within `seconds`."""
        if agent not in self._freed:
            self._until[agent] = time.monotonic() + seconds

    def hear(self, freed: Freed, token: str, drawn: str) -> bool:
        """Return whether one of them reports it, with proof; `drawn`: our own nonce."""
        known = is_proof(freed.proof, token, _PURPOSE, drawn, freed.agent)
        if known:
            self._freed.add(freed.agent)
            self._until.pop(freed.agent, None)
        return known

    def forget(self) -> None:
        self._until.clear()


def report_freed(address: tuple[str, int], token: str, agent: str, seconds: float) -> bool:
    """Report to the coordinator that nothing of this server's ranks is left; return whether it got that.

    Blocks until it can be reached, `seconds` at most.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            with closing(Channel(socket.create_connection(address, timeout=CONNECT_S))) as channel:
                message = next(iter(channel.wait_for(time.monotonic() + CONNECT_S)), None)
                if not isinstance(message, Challenge) or message.protocol != PROTOCOL:
                    return False  # another program has the port by now
                channel.send(Freed(proof_of(token, _PURPOSE, message.nonce, agent), agent))
                channel.drain(time.monotonic() + CONNECT_S)
                return True
        except ConnectionRefusedError:  # the machine is there, and the coordinator has ended
            return False
        except (OSError, ChannelClosedError):
            pass
        if time.monotonic() + AGAIN_S >= deadline:
            return False
        time.sleep(AGAIN_S)


def report_freed_in_background(address: tuple[str, int], token: str, agent: str, seconds: float) -> None:
    """Do as `tell_freed`, in a process of its own; returns at once.

    What is left of an engine whose run has lost this server ends the agents here as soon as the network is back. So it
    must not know of that process, nor wait for what holds its outputs. Call it as the last act, where no thread exists.
    """
    if os.fork():
        return
    try:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nowhere, standard)
        os.closerange(3, MAX_INHERITED)
        report_freed(address, token, agent, seconds)
    finally:
        os._exit(0)
