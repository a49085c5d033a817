"""How somebody on a run's servers asks its coordinator while it goes on: by a file in the run directory with the key.

The file is there on the machine that coordinates, and where a server has a run directory of its own, there too. Only
its owner may read it. The key lets nobody into the run, and tells nobody what agents are told: it is good for asking
where ranks are.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from typing import Any, TypeVar

from launcher.core import atomic
from launcher.core.channel import Channel, ChannelClosedError
from launcher.core.errors import TlaunchError
from launcher.core.frozen import frozen
from launcher.core.json_text import json_text
from launcher.core.messages import PROTOCOL, AllStacks, AskStacks, Challenge, Message, is_proof, proof_of
from launcher.core.run_dir import RunDir
from launcher.engines.cluster.surveys import PURPOSE, SURVEY_S
from launcher.supervise.survey import Part, part_from

CONNECT_S = 2.0  # for one address to answer
ANSWER_S = SURVEY_S + 2.0
Word = TypeVar("Word")


class CoordinatorSilentError(TlaunchError):
    """Nobody can be asked who knows of all servers."""


@frozen
class AskersDoor:
    addresses: tuple[tuple[str, int], ...]  # the first that answers as it should is taken
    key: str


def leave_door(run_dir: RunDir, door: AskersDoor) -> None:
    """Without it, as on a full disk, a run goes on as well."""
    fields = {"addresses": [list(address) for address in door.addresses], "key": door.key}
    with suppress(OSError):
        atomic.write_text(run_dir.door, json_text(fields), mode=0o600)


def read_door(run_dir: RunDir) -> AskersDoor | None:
    """None for a run on one server, one that is over, and one of somebody else."""
    try:
        fields: Any = json.loads(run_dir.door.read_text(encoding="utf-8"))
        addresses = tuple((str(host), int(port)) for host, port in fields["addresses"])
        return AskersDoor(addresses, str(fields["key"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def remove_door(run_dir: RunDir) -> None:
    with suppress(OSError):
        run_dir.door.unlink()


def ask_stacks(door: AskersDoor, ranks: tuple[tuple[int, int], ...] | None) -> tuple[Sequence[Part], Mapping[str, str]]:
    """What every server tells of its ranks, and why, by its id, of each server that does not.

    Blocks, for `CONNECT_S` seconds for each address and `ANSWER_S` for the answer at most.

    Raises:
        CoordinatorSilentError: it cannot be reached, or does not answer.
    """
    reasons = []
    for host, port in door.addresses:
        found = _ask_at(host, port, door.key, ranks)
        if not isinstance(found, str):
            return found
        reasons.append(f"{host} port {port}: {found}")
    raise CoordinatorSilentError(f"the run's coordinator cannot be asked: {'; '.join(reasons)}")


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
