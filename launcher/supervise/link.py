"""An agent's connection to the coordinator of a run over several servers."""

from __future__ import annotations

import time

from launcher.core.channel import Channel, ChannelClosedError, Silence
from launcher.core.messages import Done, EventReport, GivingUp, Message, Ping, Pong, SignalWanted

LAST_WORDS_S = 5.0  # the coordinator gets so long to take them


class Link:
    """Never raises: a coordinator that is gone, or silent for too long, is told once by `lost`."""

    def __init__(self, channel: Channel, silence_s: float, *, shares_files: bool = True, by_hand: bool = False) -> None:
        """`silence_s`: a coordinator that is not heard for so long is lost. `shares_files`: it sees what is written here.

        `by_hand`: a person has this server's launcher before him, and what signals it gets is meant for all servers.
        An engine hands its own to the agents of all servers.
        """
        self.shares_files = shares_files
        self.by_hand = by_hand
        self._channel = channel
        self._silence = Silence(channel, silence_s)
        self._mute: str | None = None  # why nothing can be sent any more; last words may have come
        self.lost: str | None = None  # why

    def fileno(self) -> int:
        return self._channel.fileno()

    @property
    def wants_write(self) -> bool:
        return self.lost is None and self._mute is None and self._channel.wants_write

    @property
    def timeout_s(self) -> float:
        """Seconds until silence may have become a loss; 0 once the connection is lost."""
        if self._channel.has_message or self._mute is not None or self.lost is not None:
            return 0.0
        return self._silence.timeout_s

    def send(self, message: Message) -> None:
        if self.lost is None and self._mute is None:
            try:
                self._channel.send(message)
            except ChannelClosedError as error:
                self._mute = str(error)

    def tell(self, line: str) -> None:
        """Hand on an event."""
        self.send(EventReport(line))

    def take(self) -> list[Message]:
        """Return the messages that have come. Pings are answered here."""
        taken: list[Message] = []
        if self.lost is not None:
            return taken
        try:
            for message in self._channel.receive():
                if isinstance(message, Ping):
                    self.send(Pong(message.sent_ns, time.time_ns()))
                else:
                    taken.append(message)
            if self._mute is None:
                self._channel.flush()
        except ChannelClosedError as error:
            self.lost = str(error)
        if self.lost is None:
            self.lost = self._mute
        if self.lost is None and self._silence.is_too_long():
            self.lost = f"nothing was heard for {self._silence.limit_s:g} s"
        return taken

    def want(self, number: int) -> None:
        """Signal `number`, which came to this server, is meant for the whole run."""
        self.send(SignalWanted(number))

    def give_up(self, reason: str) -> None:
        """Tell the coordinator that this server's ranks are being ended, whatever others do."""
        self.send(GivingUp(reason))

    def say_farewell(self, unkillable: tuple[int, ...], events_lost: int) -> None:
        """Send the last message. Blocks for a moment until it has been sent."""
        self.send(Done(unkillable, events_lost))
        if self.lost is None and self._mute is None:
            self._channel.drain(time.monotonic() + LAST_WORDS_S)
        self.close()

    def close(self) -> None:
        self._channel.close()
