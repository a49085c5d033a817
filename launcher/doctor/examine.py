"""The launcher's part of an examination: it requests facts from servers, and lets them test their connections."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from launcher.core.codec import decode, encode
from launcher.core.frozen import frozen
from launcher.core.machine.interfaces import names_of
from launcher.core.records import Cluster
from launcher.doctor.facts import Facts, Request
from launcher.doctor.links import Links
from launcher.doctor.network_facts import INTERFACE_VARIABLES
from launcher.doctor.reach import Attempt

T = TypeVar("T")
REACH_TIMEOUT_S = 5.0
MAX_LARGE = 4  # targets of each server for large packets: covers all pairs of 9 servers, but is bounded for many

Messages = Mapping[int, Mapping[str, Any]]  # by the index of the server
Reach = Mapping[int, tuple[Attempt, ...]]  # each server's attempts to reach the others, and finally itself


class Transport(Protocol):
    """A channel that carries messages to a `ProbeHandler` on every server, and returns the answers."""

    def ask(self, messages: Messages) -> Messages:
        """Send all messages at once, and return the answers that arrive before a timeout."""

    def offsets_s(self) -> Mapping[int, float]:
        """Return the measured clock offset of each server. It is positive if the server is ahead of the launcher."""


@frozen
class ExaminationRequest:
    """The settings of a planned run that servers can check before the run starts."""

    cwd: Path
    runs_dir: Path
    table: Path | None = None
    ports: tuple[int, ...] = ()  # ports of rank 0
    reach_timeout_s: float = REACH_TIMEOUT_S
    variables: tuple[tuple[str, str], ...] = ()  # environment variables of every rank


@frozen
class Examination:
    """The results of examining all servers. A server that did not answer is missing in `facts`."""

    cluster: Cluster
    facts: Mapping[int, Facts]
    reach: Reach
    troubles: Mapping[int, str]
    links: Links | None = None  # None if not measured

    @property
    def offsets_s(self) -> Mapping[int, float]:
        return {index: facts.clock_offset_s for index, facts in self.facts.items() if facts.clock_offset_s is not None}


def examine(cluster: Cluster, wish: ExaminationRequest, transport: Transport) -> Examination:
    """Collect facts from every server, and let the servers test their connections to each other."""
    troubles: dict[int, str] = {}
    names = tuple(dict.fromkeys(name for server in cluster.servers for name in names_of(server)))
    request = Request(
        names=names,
        table=None if wish.table is None else str(wish.table),
        cwd=str(wish.cwd),
        runs_dir=str(wish.runs_dir),
        # Only variables that rules check: others may be secrets, and every agent that joins receives these.
        variables=tuple(pair for pair in wish.variables if pair[0] in INTERFACE_VARIABLES),
    )
    requests = {
        index: replace(
            request,
            called=names_of(server) if len(cluster.servers) > 1 else (),
            ports=wish.ports if index == cluster.first_server else (),
        )
        for index, server in enumerate(cluster.servers)
    }
    answers = transport.ask({index: {"do": "collect", "request": encode(one)} for index, one in requests.items()})
    facts = _read(answers, "facts", troubles, lambda written: decode(Facts, written))
    reach = _reach(cluster, tuple(sorted(facts)), wish, transport, troubles)
    offsets_s = transport.offsets_s()
    facts = {index: replace(one, clock_offset_s=offsets_s.get(index)) for index, one in facts.items()}
    return Examination(cluster, facts, reach, troubles)


def _reach(
    cluster: Cluster,
    answering: tuple[int, ...],
    wish: ExaminationRequest,
    transport: Transport,
    troubles: dict[int, str],
) -> Reach:
    """Let the servers that answered test their connections to each other and to themselves."""
    if len(answering) < 2:
        return {}
    secret = secrets.token_hex(16)
    listening = transport.ask({index: {"do": "listen", "server": index, "secret": secret} for index in answering})
    ports = _read(listening, "port", troubles, int, answering)
    common = {"do": "reach", "secret": secret, "timeout_s": wish.reach_timeout_s}
    targets = {
        index: {"server": index, "host": cluster.servers[index].server_id, "port": ports[index]} for index in ports
    }
    messages = {}
    for own in ports:
        # The next server first, so that loads differ, and this one last.
        others = [targets[index] for index in sorted(targets, key=lambda index: (index < own, index)) if index != own]
        large = [{**one, "gets_large": True} for one in others[:MAX_LARGE]]
        messages[own] = {**common, "targets": [*large, *others[MAX_LARGE:], targets[own]]}
    return _read(
        transport.ask(messages), "attempts", troubles,
        lambda written: tuple(decode(Attempt, one) for one in written), messages,
    )  # fmt: skip


def _read(
    answers: Messages, name: str, troubles: dict[int, str], read: Callable[[Any], T], asked: Iterable[int] = ()
) -> dict[int, T]:
    """Return the field `name` of each answer, converted by `read`. If this fails, record the reason in `troubles`.

    A server in `asked` that did not answer is recorded, too.
    """
    for index in asked:
        if index not in answers:
            troubles.setdefault(index, "it stopped answering")
    found = {}
    for index, answer in answers.items():
        if name not in answer:
            troubles.setdefault(index, str(answer.get("trouble", f"its answer has no {name}")))
            continue
        try:
            found[index] = read(answer[name])
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            troubles[index] = f"its answer cannot be read: {error}"
    return found
