"""An agent's connection to the coordinator of a run over several servers."""

from __future__ import annotations

import time

from launcher.core.channel import Channel, ChannelClosedError
from launcher.core.messages import Done, GivingUp, Message, Ping, Pong, SignalWanted, Told

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
        self._silence_s = silence_s
        self.lost: str | None = None  # why

    def fileno(self) -> int:
        return self._channel.fileno()

    @property
    def wants_write(self) -> bool:
        return self.lost is None and self._channel.wants_write

    @property
    def timeout_s(self) -> float:
        """Until silence becomes a loss; nothing once it is one, so that it is told."""
        if self._channel.has_message or self.lost is not None:
            return 0.0
        return max(0.0, self._channel.heard_at + self._silence_s - time.monotonic())

    def send(self, message: Message) -> None:
        if self.lost is None:
            try:
                self._channel.send(message)
            except ChannelClosedError as error:
                self.lost = str(error)

    def tell(self, line: str) -> None:
        """Hand on an event."""
        self.send(Told(line))

    def take(self) -> list[Message]:
        """What has come. Questions whether we are there are answered here."""
        taken: list[Message] = []
        if self.lost is not None:
            return taken
        try:
            self._channel.flush()
            for message in self._channel.receive():
                if isinstance(message, Ping):
                    self._channel.send(Pong(message.sent_ns, time.time_ns()))
                else:
                    taken.append(message)
        except ChannelClosedError as error:
            self.lost = str(error)
        else:
            if time.monotonic() - self._channel.heard_at >= self._silence_s:
                self.lost = f"nothing was heard for {self._silence_s:g} s"
        return taken

    def want(self, number: int) -> None:
        """Signal `number`, which came to this server, is meant for the whole run."""
        self.send(SignalWanted(number))

    def give_up(self, reason: str) -> None:
        """This server's ranks are ended, whatever others do."""
        self.send(GivingUp(reason))

    def say_farewell(self, unkillable: tuple[int, ...], events_lost: int) -> None:
        """The last word. Waits a little until it has been sent."""
        self.send(Done(unkillable, events_lost))
        if self.lost is None:
            self._channel.drain(time.monotonic() + LAST_WORDS_S)
        self.close()

    def close(self) -> None:
        self._channel.close()
