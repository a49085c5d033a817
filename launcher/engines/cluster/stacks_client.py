"""How somebody on a run's servers asks its coordinator while it goes on, by what the file `door` tells."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TypeVar

from launcher.core.channel import Channel, ChannelClosedError
from launcher.core.errors import TlaunchError
from launcher.core.messages import PROTOCOL, AllStacks, AskStacks, Challenge, Message, is_proof, proof_of
from launcher.engines.cluster.door import AskersDoor
from launcher.engines.cluster.stacks_relay import PURPOSE, SURVEY_S
from launcher.supervise.survey import Part, part_from

CONNECT_S = 2.0  # for one address to answer
ANSWER_S = SURVEY_S + 2.0
Word = TypeVar("Word")


class CoordinatorUnreachableError(TlaunchError):
    """Nobody can be asked who knows of all servers."""


def ask_stacks(door: AskersDoor, ranks: tuple[tuple[int, int], ...] | None) -> tuple[Sequence[Part], Mapping[str, str]]:
    """What every server tells of its ranks, and why, by its id, of each server that does not.

    Blocks, for `CONNECT_S` seconds for each address and `ANSWER_S` for the answer at most.

    Raises:
        CoordinatorUnreachableError: it cannot be reached, or does not answer.
    """
    reasons = []
    for host, port in door.addresses:
        found = _ask_at(host, port, door.key, ranks)
        if not isinstance(found, str):
            return found
        reasons.append(f"{host} port {port}: {found}")
    raise CoordinatorUnreachableError(f"the run's coordinator cannot be asked: {'; '.join(reasons)}")


def _ask_at(
    host: str, port: int, key: str, ranks: tuple[tuple[int, int], ...] | None
) -> tuple[Sequence[Part], Mapping[str, str]] | str:
    """Why not, if nobody answers there as the coordinator would."""
    try:
        with closing(Channel(socket.create_connection((host, port), timeout=CONNECT_S))) as channel:
            answer = _ask(channel, key, ranks)
        return tuple(map(part_from, answer.content)), answer.silent
    except (OSError, UnicodeError, ValueError, ChannelClosedError) as error:  # a timeout is an OSError
        return getattr(error, "strerror", None) or str(error) or "no answer"


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
