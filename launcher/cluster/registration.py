"""Registration of agents: authentication of new connections, and their assignment to servers or refusal."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from launcher import __version__
from launcher.cluster.agent_connection import (
    UNAUTHENTICATED_S,
    AgentConnection,
    addresses_to_try,
    described,
    differences,
    server_of,
)
from launcher.cluster.job import Plan
from launcher.cluster.lost_agents import LostAgents, longest_s
from launcher.cluster.meeting_check import unresolved
from launcher.cluster.program_check import odd_programs
from launcher.cluster.stack_requests import StacksRelay
from launcher.control import messages
from launcher.core.errors import RefusedError, RefusedLayoutError, TlaunchError, UsageError
from launcher.core.machine.interfaces import addresses_of
from launcher.core.records import Server
from launcher.core.resources import fingerprint
from launcher.engines.host_match import ServerIndex

MAX_MISTAKEN = 8
MAX_UNAUTHENTICATED = 128  # connections, beyond one for each server


class DuplicateServerError(RefusedLayoutError):
    """An agent claims to be a server that has already joined."""


class NotYetError(RefusedLayoutError):
    """An agent claims to be a server whose previous agent is still active. The new agent may try again."""


class Registration:
    """Authenticates connections and registers agents. An agent that does not fit is refused with a reason."""

    def __init__(self, plan: Plan, servers: Sequence[Server], run_name: str, mark: str | None = None) -> None:
        self.refused: list[tuple[messages.Hello, TlaunchError]] = []
        self._plan = plan
        self.mark = mark
        self._servers = servers
        self._run_name = run_name
        self._code = fingerprint()
        self._resolved = dict(plan.resolved)
        resolved = ((name, addresses_of(found)) for name, found in plan.resolved)
        self._register = ServerIndex(servers, resolved)
        self.refusal: TlaunchError | None = None  # why the run cannot start, for agents that join later
        self.takes_back = False  # lost servers may join this elastic run again
        self.has_begun = False  # an attempt has started
        self.noticed: set[AgentConnection] = set()  # connections that are lost or have unsent data
        self.unauthenticated: list[AgentConnection] = []
        self.mistaken: set[str] = set()  # addresses of manually started servers with a wrong token
        # By server_index. Whoever detects that an agent is lost removes it.
        self.peers: dict[int, AgentConnection] = {}
        self.unheard = LostAgents()
        self.stacks_relay = StacksRelay(plan.key, servers, self.peers)

    @property
    def complete(self) -> bool:
        return len(self.peers) == len(self._servers) and all(peer.ready for peer in self.peers.values())

    @property
    def has_agents_left(self) -> bool:
        """True until all agents have sent their last message. Servers that join after the start do not count."""
        return any(not peer.done and (peer.has_begun or not self.has_begun) for peer in self.peers.values())

    def unlike(self) -> TlaunchError | None:
        """Return an error if the servers have different programs, else None. Call it when all servers are ready."""
        if not self._plan.same_program:
            return None
        odd = odd_programs({index: ready.program for index, ready in self._ready.items()}, self._servers)
        return None if odd is None else RefusedLayoutError(odd.message, hint=odd.hint)

    def unresolved(self, first: int) -> TlaunchError | None:
        """Return an error if some servers cannot resolve the name of `first`, the server of rank 0, else None."""
        found = {index: ready.meeting for index, ready in self._ready.items() if ready.meeting is not None}
        hosts = {index: peer.hello.host for index, peer in self.peers.items() if peer.hello is not None}
        return unresolved(self._servers[first].server_id, found, hosts, first, [one.server_id for one in self._servers])

    def unshared(self) -> TlaunchError | None:
        """Return an error if a server does not share the run directory, else None. Elastic runs require a shared directory."""
        for index, ready in self._ready.items():
            if not ready.shares_files:
                return UsageError(
                    f"server {self._servers[index].server_id} does not see the run directory of {self._run_name}, "
                    "which elastic runs must share",
                    hint="set --runs-dir to a directory that all servers share",
                )
        return None

    @property
    def held_ports(self) -> dict[int, int]:
        return {index: ready.master_port for index, ready in self._ready.items() if ready.master_port is not None}

    @property
    def _ready(self) -> dict[int, messages.Ready]:
        return {index: peer.ready for index, peer in self.peers.items() if peer.ready is not None}

    def addresses_of(self, server_index: int) -> tuple[str, ...]:
        return addresses_to_try(self._servers[server_index], self.peers.get(server_index), self._resolved)

    def is_ready(self, server_index: int) -> bool:
        return server_index in self.peers and self.peers[server_index].ready is not None

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(server.server_id for index, server in enumerate(self._servers) if not self.is_ready(index))

    def hears_others(self, silence_s: float) -> bool:
        """Return True if another machine was heard recently, which shows that this machine's network works."""
        return any(
            one.lost is None and not one.channel.is_local and one.silent_s < silence_s / 2
            for one in self.peers.values()
        )

    def quiet(self, limit_s: float) -> set[int]:
        return {index for index, peer in self.peers.items() if peer.silent_s > limit_s}

    def accept(self) -> Iterator[AgentConnection]:
        with suppress(OSError):  # no connection is waiting, or no descriptors are left
            while True:
                connection, _ = self._plan.listener.accept()
                peer = AgentConnection(connection, self.noticed)
                self.unauthenticated.append(peer)
                yield peer
        silent = [peer for peer in self.unauthenticated if peer.server_index is None]
        for peer in silent[: max(0, len(silent) - len(self._servers) - MAX_UNAUTHENTICATED)]:
            peer.lose("too many unauthenticated connections")  # the oldest, since agents authenticate at once

    def hear(self, peer: AgentConnection, *, joining: bool) -> TlaunchError | None:
        """Process the messages of an unauthenticated connection. Return the error if its agent is refused."""
        for message in peer.take():
            if peer.lost is not None and isinstance(message, messages.Hello):
                continue  # the agent connects again
            if isinstance(message, messages.AskStacks) and self.stacks_relay.begin(message, peer, running=not joining):
                continue
            if isinstance(message, messages.Freed) and self.unheard.hear(message, self._plan.token, peer.nonce):
                continue
            # If the engine starts all agents, manually started ones are refused: `shared_token` is no protection then.
            if (
                not isinstance(message, messages.Hello)
                or (message.agreement is not None and self._plan.brings_all)
                or not messages.is_proof(message.proof, self._token_of(message), peer.nonce, message.nonce)
            ):
                if (
                    isinstance(message, messages.Hello)
                    and message.agreement is not None
                    and len(self.mistaken) < MAX_MISTAKEN
                ):
                    self.mistaken.add(peer.channel.peer_address[0])
                peer.lose("it did not authenticate")
                continue
            try:
                self._take_in(message, peer, joining=joining)
            except TlaunchError as error:
                passing = isinstance(error, NotYetError)
                peer.send(messages.Refused(error.message, error.hint, error.exit_code, passing))
                peer.lose("refused")
                if passing:
                    continue
                self.refused.append((message, error))
                return error
        return None

    def take_first_words(
        self, peer: AgentConnection, pass_on: Callable[[messages.Message], object]
    ) -> TlaunchError | None:
        """Process the first message of a new agent, and return its error or None. Pass other messages to `pass_on`."""
        assert peer.server_index is not None, "it has been welcomed"
        for message in peer.take():
            if isinstance(message, messages.Ready):
                peer.ready = message
            elif isinstance(message, messages.Refused):
                kind = RefusedError if message.exit_code == RefusedError.exit_code else TlaunchError
                server_id = self._servers[peer.server_index].server_id
                where = peer.hello.host if peer.hello else peer.address
                why = f"server {server_id} ({where}): {message.message}"
                return kind(why, hint=message.hint, exit_code=message.exit_code)
            else:
                pass_on(message)
        return None

    def note_begin(self) -> None:
        """Record that an attempt starts on all ready servers."""
        self.has_begun = True
        for peer in self.peers.values():
            peer.over, peer.has_begun = False, peer.ready is not None

    def take_back(self, peer: AgentConnection) -> TlaunchError | None:
        error = self.take_first_words(peer, lambda _message: None)
        if error is None and peer.ready is not None:
            error = self.unlike() or self.unshared()
            if error is not None:
                peer.send(messages.Refused(error.message, error.hint, error.exit_code))
                peer.ready = None  # it has not joined, and cannot be lost
        return error

    def place_of(self, hello: messages.Hello) -> int:
        """Return the index of the server that sent `hello`. Raises the same errors as `server_of`."""
        return server_of(hello, self._register)

    def note_lost(self, lost: AgentConnection, grace_s: float) -> None:
        """Record that an agent was lost. The agent's ranks may keep running until their grace period is over."""
        if not lost.over:
            self.unheard.note(lost.hello.nonce if lost.hello else "", longest_s(self._plan.silence_s, grace_s))

    def dismiss(self) -> Iterator[AgentConnection]:
        """Remove and yield unauthenticated connections that are lost or timed out."""
        now = time.monotonic()
        unknown = [peer for peer in self.unauthenticated if peer.server_index is None]
        self.unauthenticated = [one for one in unknown if one.lost is None and now - one.since <= UNAUTHENTICATED_S]
        staying = set(self.unauthenticated)
        yield from (peer for peer in unknown if peer not in staying)

    def _token_of(self, hello: messages.Hello) -> str:
        """Return the shared token for a manually started agent, or the run's token for other agents."""
        return self._plan.token if hello.agreement is None else self._plan.shared_token

    def _take_in(self, hello: messages.Hello, peer: AgentConnection, *, joining: bool) -> None:
        if self.refusal is not None:
            raise self.refusal
        _check_version(hello, self._code)
        index = self.place_of(hello)
        server_id = self._servers[index].server_id
        if (error := differences(hello, self._plan.agreement, server_id)) is not None:
            raise error
        former = self.peers.get(index)
        if former is not None and self.takes_back and former.given_up:
            raise NotYetError(f"the previous ranks of server {server_id} are still ending")
        if former is not None and self.takes_back and former.ready is None:
            raise NotYetError(f"another agent of server {server_id} is still preparing")
        if former is not None and (former.lost is None or self.takes_back):  # its loss has not been reported yet
            first = described(former.hello) if former.hello else former.address
            raise DuplicateServerError(
                f"two agents joined as server {server_id} of the rank table: {first} and {described(hello)}",
                hint="start the command once on each machine; to join two machines, set different --server values; "
                "to replace a lost agent, first wait for --lost-after seconds",
            )
        if not joining and not self.takes_back:
            raise UsageError(
                f"{described(hello)} comes too late: run {self._run_name} has already started without server "
                f"{server_id}",
                hint="wait until the run is over, then start the command on every server",
            )
        peer.hello, peer.server_index = hello, index
        peer.channel.longest_line_bytes = messages.MAX_LINE_BYTES
        self.peers[index] = peer
        proof = messages.proof_of(self._token_of(hello), hello.nonce, peer.nonce)
        job = None if hello.agreement is not None else self._plan.job
        peer.send(messages.Welcome(proof, index, self._run_name, self._plan.silence_s, job, self.mark, self._plan.key))
        peer.ask()


def _check_version(hello: messages.Hello, code: str) -> None:
    python = platform.python_version()
    if hello.version != __version__:
        found = f"has tlaunch {hello.version}, and this machine has {__version__}"
        hint = "install the same version on every server"
    elif hello.code != code:
        found = f"has different code of tlaunch {__version__} than this machine"
        hint = "install the same build on every server, or check out the same commit"
    elif hello.python.split(".")[:2] != python.split(".")[:2]:
        found = f"runs tlaunch with Python {hello.python}, and this machine with {python}"
        hint = "use the same Python version on every server"
    else:
        return
    raise RefusedLayoutError(f"{described(hello)} {found}", hint=hint)
