"""The coordinator's connections in its event loop: reading, pings, and the detection of lost agents.

While the loop is blocked by a stalled disk, a thread sends the pings, so that agents do not consider the
coordinator lost.
"""

from __future__ import annotations

import selectors
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from launcher.cluster.agent_connection import AgentConnection
from launcher.cluster.registration import Registration
from launcher.control.messages import Message, to_line
from launcher.supervise.disk import start_thread

BEATS = 5  # pings within the silence after which a server is lost
GETTING_READY_S = 60.0  # additional silence for an agent that is still preparing, since disks may be slow


class Connections:
    """The coordinator's connections in its event loop. `on_words` is called when a connection has data to read."""

    def __init__(
        self,
        registration: Registration,
        selector: selectors.BaseSelector,
        silence_s: float,
        *,
        on_words: Callable[[AgentConnection], None],
        on_loss: Callable[[int, AgentConnection], None],
    ) -> None:
        self._registration = registration
        self._selector = selector
        self._silence_s = silence_s
        self._on_words = on_words
        self._on_loss = on_loss
        self.next_beat = 0.0  # monotonic
        self.disk_stalls = False  # a server's disk or the coordinator's does not answer
        self._pause_s = silence_s / BEATS
        self._turned_s = time.monotonic()  # when the thread last ran
        self._still = (0.0, 0.0)  # duration and end of the last suspension of this process
        self._closed = threading.Event()
        self._stand_in: threading.Thread | None = None

    def begin(self) -> None:
        self._stand_in = start_thread(self._ask_instead, "pings")

    def close(self) -> None:
        self._closed.set()
        if self._stand_in is not None:
            self._stand_in.join()

    def on_connect(self) -> None:
        for connection in self._registration.accept():
            self._hear(connection)

    def beat(self) -> None:
        """Ping every server if the next ping is due, and mark silent servers as lost."""
        now = time.monotonic()
        if now - self.next_beat > self._pause_s:  # this process was suspended or blocked, or has just started
            for peer in self._registration.peers.values():
                peer.channel.heard_at = now
        if now < self.next_beat:
            return
        self.next_beat = now + self._pause_s
        for peer in self._registration.peers.values():
            peer.ask(disk_stalls=self.disk_stalls)
            allowed_s = self._silence_s + (0.0 if peer.ready else GETTING_READY_S)
            if now - peer.channel.heard_at > allowed_s:
                peer.lose(f"nothing was heard from it for {allowed_s:g} s")

    def stood_still_s(self, peer: AgentConnection) -> float:
        """Return how many seconds this process was suspended, or 0 if the loss of `peer` has another cause."""
        still_s, until_s = self._last_still()
        has_answered_since = (peer.pings.answered_ns or 0) >= until_s * 1e9
        return 0.0 if has_answered_since or still_s < self._silence_s - self._pause_s else still_s

    def _last_still(self) -> tuple[float, float]:
        now_s = time.monotonic()
        still_s = now_s - self._turned_s
        return (still_s, now_s) if still_s > 2 * self._pause_s else self._still

    def _ask_instead(self) -> None:
        while not self._closed.wait(self._pause_s / 2):
            self._still = self._last_still()
            self._turned_s = time.monotonic()
            if time.monotonic() - self.next_beat > self._pause_s / 2:
                for peer in list(self._registration.peers.values()):
                    peer.ask(disk_stalls=True)

    def look(self) -> None:
        """Handle the connections that are lost or have unsent data."""
        self._registration.stacks_relay.step()
        for connection in self._registration.dismiss():
            self.forget(connection)
        for peer in list(self._registration.noticed):
            if peer.mute is not None and peer.lost is None:
                self._on_words(peer)  # its last messages
            if peer.lost is None:
                self._hear(peer)
            if peer.lost is not None or not peer.channel.wants_write:
                self._registration.noticed.discard(peer)
            if peer.lost is not None and (index := peer.server_index) is not None:
                self.forget(peer)
                if self._registration.peers.get(index) is peer:
                    del self._registration.peers[index]
                    self._on_loss(index, peer)

    def send_all(self, message: Message, *, ready: bool = False) -> None:
        line = to_line(message)
        for peer in self._registration.peers.values():
            if peer.ready is not None or not ready:
                peer.send_line(line)

    def forget(self, peer: AgentConnection) -> None:
        with suppress(KeyError, ValueError):
            self._selector.unregister(peer)
        self._registration.noticed.discard(peer)
        peer.close()

    def forget_all(self) -> None:
        for peer in list(self._registration.peers.values()):
            self.forget(peer)
        self._registration.peers.clear()

    def _hear(self, peer: AgentConnection) -> None:
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.channel.wants_write else 0)
        try:
            if self._selector.get_key(peer).events != wanted:
                self._selector.modify(peer, wanted, lambda: self._on_words(peer))
        except KeyError:
            self._selector.register(peer, wanted, lambda: self._on_words(peer))
