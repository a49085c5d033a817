"""Ask a running run's coordinator for stacks, from any of its servers, by the address and key in `endpoint.json`."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TypeVar

from launcher.cluster.asker_endpoint import AskerEndpoint
from launcher.cluster.stacks_relay import ANSWER_LIMIT_S, PURPOSE
from launcher.core.channel import Channel, ChannelClosedError
from launcher.core.errors import TlaunchError
from launcher.core.messages import PROTOCOL, AllStacks, AskStacks, Challenge, Message, is_proof, proof_of
from launcher.supervise.survey import Part, part_from

CONNECT_S = 2.0  # for one address to answer
ANSWER_S = ANSWER_LIMIT_S + 2.0
Word = TypeVar("Word")


class CoordinatorUnreachableError(TlaunchError):
    """The coordinator, which knows of all servers, cannot be asked."""


def ask_stacks(
    endpoint: AskerEndpoint, ranks: tuple[tuple[int, int], ...] | None
) -> tuple[Sequence[Part], Mapping[str, str]]:
    """Return what every server reports of its ranks, and by its id why a server does not.

    Blocks, for `CONNECT_S` seconds for each address and `ANSWER_S` for the answer at most.

    Raises:
        CoordinatorUnreachableError: it cannot be reached, or does not answer.
    """
    reasons = []
    for host, port in endpoint.addresses:
        try:
            with closing(Channel(socket.create_connection((host, port), timeout=CONNECT_S))) as channel:
                answer = _ask(channel, endpoint.key, ranks)
            return tuple(map(part_from, answer.content)), answer.silent
        except (OSError, UnicodeError, ValueError, ChannelClosedError) as error:  # noqa: PERF203 - few addresses; a timeout is an OSError
            reasons.append(f"{host} port {port}: {getattr(error, 'strerror', None) or str(error) or 'no answer'}")
    raise CoordinatorUnreachableError(f"the run's coordinator cannot be asked: {'; '.join(reasons)}")


def _ask(channel: Channel, key: str, ranks: tuple[tuple[int, int], ...] | None) -> AllStacks:
    challenge = _word(channel, Challenge, CONNECT_S)
    if challenge.protocol != PROTOCOL:
        raise ChannelClosedError("it is of another version of tlaunch")
    nonce = os.urandom(16).hex()
    channel.send(AskStacks(proof_of(key, PURPOSE, challenge.nonce, nonce), nonce, ranks))
    answer = _word(channel, AllStacks, ANSWER_S)
    if not is_proof(answer.proof, key, PURPOSE, nonce, challenge.nonce):
        raise ChannelClosedError("what answers there does not know this run")
    return answer


def _word(channel: Channel, kind: type[Word], patience_s: float) -> Word:
    message: Message
    for message in channel.wait_for(time.monotonic() + patience_s):
        if isinstance(message, kind):
            return message
        raise ChannelClosedError("what answers there is no coordinator of this run")
    raise TimeoutError
