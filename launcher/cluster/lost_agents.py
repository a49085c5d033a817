"""Lost agents: their ranks may keep running for a while, and a restart must wait until they have ended.

A closed or reset connection does not prove that the other end is gone: firewalls and NAT gateways that lose their
state reset connections between two live ends.

An agent that loses its coordinator ends its ranks. It notices the loss within --lost-after, and its ranks then have
their grace period. After both times and a margin, none of its ranks is left. If possible, the agent (or its parent, if
the agent was killed) connects again earlier and reports that its ranks have ended, which ends the wait. The report
names the agent, and is authenticated by the run's token.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import closing

from launcher.control.messages import PROTOCOL, Challenge, Freed, is_proof, proof_of
from launcher.supervise.channel import Channel, ChannelClosedError

MARGIN_S = 5.0  # added to the time in which an agent detects that it has lost the coordinator
CONNECT_S = 1.0
AGAIN_S = 0.5
MAX_INHERITED = 1024  # descriptors
_PURPOSE = "freed"  # binds a proof to this message


def longest_s(silence_s: float, grace_s: float) -> float:
    """Return the longest time in seconds for which the ranks of a lost server may keep running."""
    return silence_s + grace_s + MARGIN_S


class LostAgents:
    def __init__(self) -> None:
        self._until: dict[str, float] = {}  # monotonic time, by agent: the nonce of its Hello
        self._freed: set[str] = set()  # agents that reported the end of their ranks

    @property
    def until(self) -> float:
        """The monotonic time until which ranks of lost agents may keep running, or 0 if there are no lost agents."""
        return max(self._until.values(), default=0.0)

    def note(self, agent: str, seconds: float) -> None:
        if agent not in self._freed:
            self._until[agent] = time.monotonic() + seconds

    def hear(self, freed: Freed, token: str, drawn: str) -> bool:
        """Verify an agent's proof that its ranks have ended, and record it. Return False if the proof is invalid."""
        known = is_proof(freed.proof, token, _PURPOSE, drawn, freed.agent)
        if known:
            self._freed.add(freed.agent)
            self._until.pop(freed.agent, None)
        return known

    def forget(self) -> None:
        self._until.clear()


def report_freed(address: tuple[str, int], token: str, agent: str, seconds: float) -> bool:
    """Report to the coordinator that this server's ranks have ended. Retry for `seconds`. Return True on success."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            with closing(Channel(socket.create_connection(address, timeout=CONNECT_S))) as channel:
                message = next(iter(channel.wait_for(time.monotonic() + CONNECT_S)), None)
                if not isinstance(message, Challenge) or message.protocol != PROTOCOL:
                    return False  # another program has the port
                channel.send(Freed(proof_of(token, _PURPOSE, message.nonce, agent), agent))
                channel.drain(time.monotonic() + CONNECT_S)
                return True
        except ConnectionRefusedError:  # the coordinator has ended
            return False
        except (OSError, ChannelClosedError):
            pass
        if time.monotonic() + AGAIN_S >= deadline:
            return False
        time.sleep(AGAIN_S)


def report_freed_in_background(address: tuple[str, int], token: str, agent: str, seconds: float) -> None:
    """Run `report_freed` in a separate process, without waiting for it.

    When the network is back, the engine's daemon on this server kills its processes, or waits for open outputs. So
    the new process leaves the session and closes all descriptors. Call it last, when no threads are running.
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
