"""The head's side: what is asked of which server, in which order, whatever carries the messages."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from launcher.core.frozen import frozen
from launcher.core.interfaces import names_of
from launcher.core.records import Cluster
from launcher.doctor.facts import Facts, facts_from_json
from launcher.doctor.links import Links
from launcher.doctor.network import INTERFACE_VARIABLES
from launcher.doctor.reach import Attempt, attempt_from_json

T = TypeVar("T")
REACH_TIMEOUT_S = 5.0
GET_LARGE = 4  # targets of each server get large packets: all pairs of 9 servers, and of more not their square

Messages = Mapping[int, Mapping[str, Any]]  # by the index of the server
Reach = Mapping[int, tuple[Attempt, ...]]  # what each server found when it tried the others, and last itself


class Transport(Protocol):
    """Whatever carries messages to an `Examinee` on every server, and its answers back."""

    def ask(self, messages: Messages) -> Messages:
        """Hand out all messages at once; the answers of the servers that answered in time. Blocks until then."""

    def offsets_s(self) -> Mapping[int, float]:
        """How far the clock of each server is ahead of the head's, as far as that was measured."""


@frozen
class Wish:
    """What the run would be, as far as servers can be asked about it."""

    cwd: Path
    runs_dir: Path
    table: Path | None = None
    ports: tuple[int, ...] = ()  # that rank 0 would listen on
    reach_timeout_s: float = REACH_TIMEOUT_S
    variables: tuple[tuple[str, str], ...] = ()  # for every rank


@frozen
class Examination:
    """All that was found. A server that did not answer has no facts, and its trouble if it said one."""

    cluster: Cluster
    facts: Mapping[int, Facts]
    reach: Reach
    troubles: Mapping[int, str]
    links: Links | None = None  # where they were measured

    @property
    def offsets_s(self) -> Mapping[int, float]:
        return {index: facts.clock_offset_s for index, facts in self.facts.items() if facts.clock_offset_s is not None}


def examine(cluster: Cluster, wish: Wish, transport: Transport) -> Examination:
    """Ask every server of `cluster` what it is like and whom it reaches. Blocks as long as `transport` lets servers."""
    troubles: dict[int, str] = {}
    collected = _sound(transport.ask(_collect_messages(cluster, wish)), "facts", troubles)
    understood = {index: _understood(written, index, troubles, facts_from_json) for index, written in collected.items()}
    facts = {index: one for index, one in understood.items() if one is not None}
    reach = _reach(cluster, tuple(sorted(facts)), wish, transport, troubles)
    return Examination(cluster, _with_offsets(facts, transport.offsets_s()), reach, troubles)


def _collect_messages(cluster: Cluster, wish: Wish) -> Messages:
    names = tuple(dict.fromkeys(name for server in cluster.servers for name in names_of(server)))
    first = cluster.first_server
    return {
        index: {
            "do": "collect",
            "request": {
                "names": list(names),
                "called": list(names_of(server)) if len(cluster.servers) > 1 else [],
                "ports": list(wish.ports) if index == first else [],
                "table": None if wish.table is None else str(wish.table),
                "cwd": str(wish.cwd),
                "runs_dir": str(wish.runs_dir),
                # No others are looked at, and some are secrets: whoever joins is told what stands here.
                "variables": [list(pair) for pair in wish.variables if pair[0] in INTERFACE_VARIABLES],
            },
        }
        for index, server in enumerate(cluster.servers)
    }


def _reach(
    cluster: Cluster, answering: tuple[int, ...], wish: Wish, transport: Transport, troubles: dict[int, str]
) -> Reach:
    """Every ordered pair of those that answer, and each of them by itself."""
    if len(answering) < 2:
        return {}
    secret = secrets.token_hex(16)
    listening = transport.ask({index: {"do": "listen", "server": index, "secret": secret} for index in answering})
    ports = _sound(listening, "port", troubles, answering)
    told = {"do": "reach", "secret": secret, "timeout_s": wish.reach_timeout_s}
    targets = {
        index: {"server": index, "host": cluster.servers[index].server_id, "port": ports[index]} for index in ports
    }
    messages = {index: {**told, "targets": _from(index, targets)} for index in ports}
    found = _sound(transport.ask(messages), "attempts", troubles, messages)
    reach = {index: _understood(attempts, index, troubles, _attempts) for index, attempts in found.items()}
    return {index: attempts for index, attempts in reach.items() if attempts is not None}


def _from(own: int, targets: Mapping[int, Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Each server begins with the next one, so that not all call the first at the same time, and ends with itself."""
    others = [targets[index] for index in sorted(targets, key=lambda index: (index < own, index)) if index != own]
    return [*({**one, "gets_large": True} for one in others[:GET_LARGE]), *others[GET_LARGE:], targets[own]]


def _attempts(written: Any) -> tuple[Attempt, ...]:
    return tuple(map(attempt_from_json, written))


def _sound(answers: Messages, name: str, troubles: dict[int, str], asked: Iterable[int] = ()) -> dict[int, Any]:
    """What each answer has by that name; troubles are kept aside. `asked`: who has answered before, and is to again."""
    for index in asked:
        if index not in answers:
            troubles.setdefault(index, "it answered at first, and then no more")
    for index, answer in answers.items():
        if name not in answer:
            troubles.setdefault(index, str(answer.get("trouble", "it gave an answer without a sense")))
    return {index: answer[name] for index, answer in answers.items() if name in answer}


def _understood(written: Any, index: int, troubles: dict[int, str], read: Callable[[Any], T]) -> T | None:
    try:
        return read(written)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        troubles[index] = f"its answer cannot be read: {error}"
        return None


def _with_offsets(facts: Mapping[int, Facts], offsets_s: Mapping[int, float]) -> Mapping[int, Facts]:
    return {index: replace(one, clock_offset_s=offsets_s.get(index)) for index, one in facts.items()}
