"""The server's side of an examination by `tlaunch doctor`: an agent that answers the coordinator's questions.

A question may hang forever, for example on the file system of a dead server. It is answered in a thread, and the
connection is served meanwhile.
"""

from __future__ import annotations

import os
import queue
import select
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from launcher.cluster import program_check
from launcher.cluster.join import Session
from launcher.control.messages import Ping, Pong, ProbeAnswer, ProbeQuestion
from launcher.control.orders import Finish
from launcher.core.errors import TlaunchError
from launcher.doctor.probe_handler import ProbeHandler
from launcher.supervise.channel import ChannelClosedError, Silence

# Takes a question, and a function that returns True if the next one is waiting. None: the ProbeHandler must answer.
Answering = Callable[[Mapping[str, Any], Callable[[], bool]], Mapping[str, Any] | None]


def serve_probes(membership: Session, also: Answering = lambda _message, _is_over: None) -> Finish:
    """Answer questions until the coordinator sends `Finish`. Raise TlaunchError if the coordinator is lost."""
    server = _ProbeServer(membership, also)
    try:
        return server.run()
    except ChannelClosedError as error:
        raise TlaunchError(f"the examination's coordinator is lost: {error}") from error
    finally:
        server.close()


class _ProbeServer:
    def __init__(self, membership: Session, also: Answering) -> None:
        self._channel = membership.channel
        self._silence = Silence(self._channel, membership.welcome.silence_s)
        self._also = also
        self._handler = ProbeHandler()
        self._waiting: list[ProbeQuestion] = []
        self._answers: queue.SimpleQueue[ProbeAnswer] = queue.SimpleQueue()
        self._wakes, self._waker = os.pipe()
        self._is_answering = False

    def run(self) -> Finish:
        while True:
            self._wait()
            self._channel.flush()
            for message in self._channel.receive():
                if isinstance(message, Finish):
                    return message
                if isinstance(message, Ping):
                    self._channel.send(Pong(message.sent_ns, time.time_ns()))
                elif isinstance(message, ProbeQuestion):
                    self._waiting.append(message)
            self._answer()
            if self._silence.is_too_long():
                raise ChannelClosedError(f"nothing was heard for {self._silence.limit_s:g} s")

    def close(self) -> None:
        """Close the connection. The pipe stays open if a hanging thread may still write to it."""
        self._channel.close()
        if not self._is_answering:
            self._handler.close()
            os.close(self._wakes)
            os.close(self._waker)

    def _wait(self) -> None:
        """Wait for an event. Let the probe handler serve connections, unless a thread is using the handler."""
        poll = select.poll()
        poll.register(self._channel, select.POLLIN | (select.POLLOUT if self._channel.wants_write else 0))
        poll.register(self._wakes, select.POLLIN)
        listener = -1 if self._is_answering else self._handler.fileno()
        if listener >= 0:
            poll.register(listener, select.POLLIN)
        ready = () if self._channel.has_message else poll.poll(self._silence.timeout_s * 1000)
        if any(descriptor == listener for descriptor, _ in ready):
            self._handler.serve()

    def _answer(self) -> None:
        """Send the answers that are ready. If no thread is running, start one for the next question."""
        while not self._answers.empty():
            os.read(self._wakes, 1)
            self._is_answering = False
            self._channel.send(self._answers.get())
        if self._waiting and not self._is_answering:
            self._is_answering = True
            threading.Thread(target=self._find_out, args=(self._waiting.pop(0),), daemon=True).start()

    def _find_out(self, ask: ProbeQuestion) -> None:
        try:
            found = self._also(ask.content, lambda: bool(self._waiting))
            if found is None and ask.content.get("do") == program_check.QUESTION:
                found = program_check.answer_to(ask.content)
            content = self._handler.answer(ask.content) if found is None else found
        except Exception as error:  # noqa: BLE001 - without an answer this server would be silent
            content = {"trouble": f"{type(error).__name__}: {error}"}
        self._answers.put(ProbeAnswer(ask.number, content))
        os.write(self._waker, b".")
