"""Join a run on several servers: connect to the coordinator, authenticate, prepare, and wait for the start."""

from __future__ import annotations

import itertools
import os
import platform
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from launcher import __version__
from launcher.cluster.coordinator_files import ControlEndpoint, remove_endpoint, sees_mark, write_endpoint
from launcher.control import messages
from launcher.control.orders import BeginAttempt, Finish
from launcher.core import atomic
from launcher.core.errors import EXIT_OK, RefusedLayoutError, TlaunchError, UnreadableError
from launcher.core.frozen import frozen
from launcher.core.records import RunSpec
from launcher.core.resources import fingerprint
from launcher.core.run_dir import RunDir, is_run_name
from launcher.runs.owner import check_own_directory
from launcher.runs.record import filling, spec_to_json
from launcher.supervise.channel import CLOSED, Channel, ChannelClosedError, Silence
from launcher.supervise.link import Link

CONNECT_S = 3.0  # for one address to answer
WELCOME_S = 30.0  # for a connected coordinator, since thousands of agents may connect at once
AGAIN_S = 0.5  # between two rounds through all addresses
SAME_VALUE_HINT = (
    "set the same TLAUNCH_COORDINATOR_TOKEN on all servers, or leave it unset if they share --runs-dir or the "
    "home directory"
)
MAX_SHOWN = 80  # characters of an invalid name in a message
Word = TypeVar("Word")


class PassingRefusalError(TlaunchError):
    """The coordinator refuses this machine for now, but the machine may try again."""


class RunOverError(TlaunchError):
    """The run ended after this server had joined but before it ran ranks. `exit_code` is the exit code of the run."""


@frozen
class Endpoint:
    addresses: tuple[tuple[str, int], ...]  # tried in order
    token: str


@frozen
class AgentInfo:
    """The part of a `Hello` message that describes this machine."""

    host: str
    addresses: tuple[str, ...]
    said: str | None = None  # the server id from --server
    index: int | None = None  # the server index by the engine's count, if nothing else identifies it
    agreement: Mapping[str, str] | None = None  # settings of a manually started agent, which must match the run's


class Session:
    """An authenticated connection to the coordinator. Call `close` after use, unless `link` now owns the connection."""

    def __init__(self, channel: Channel, welcome: messages.Welcome, nonce: str = "") -> None:
        self.welcome = welcome
        self.nonce = nonce
        self.address = channel.peer_address  # the coordinator's address
        self.channel = channel
        self._shares_files = True
        self._has_joined = False  # it has joined a run that already runs

    def refuse(self, error: TlaunchError) -> None:
        """Report to the coordinator why this server cannot take part. This ends the run on all servers."""
        with suppress(ChannelClosedError):
            self.channel.send(messages.Refused(error.message, error.hint, error.exit_code))
            self.channel.drain(time.monotonic() + CONNECT_S)

    def compare_files(self, run_dir: RunDir) -> bool:
        """Return True if this server shares the run directory with the coordinator. If not, write the endpoint file."""
        self._shares_files = self.welcome.mark is None or sees_mark(run_dir, self.welcome.mark)
        if not self._shares_files and self.welcome.key:
            write_endpoint(run_dir, ControlEndpoint((self.address,), self.welcome.key))
        return self._shares_files

    def forget_endpoint(self, run_dir: RunDir) -> None:
        """Remove the local copy of the coordinator's endpoint file. The coordinator's own file is kept."""
        if not self._shares_files:
            remove_endpoint(run_dir)

    def wait_for_start(
        self,
        master_port: int | None,
        on_waiting: Callable[[messages.Waiting | messages.JoinAccepted], None],
        program: Mapping[str, str] | None = None,
        meeting: tuple[str, ...] | None = None,
    ) -> BeginAttempt:
        """Report that this server is ready, and wait until ranks can start. Status messages go to `on_waiting`.

        `program` has digests of the program's files, which must be the same on all servers. `meeting` has the
        addresses of MASTER_ADDR on this server.
        Raises TlaunchError if the run cannot start, or the coordinator is lost.
        """
        try:
            self.channel.send(messages.Ready(master_port, self._shares_files, program or {}, meeting))
            silence = Silence(self.channel, self.welcome.silence_s)  # nothing was received during the preparation
            while not silence.is_too_long():
                with suppress(TimeoutError):
                    for message in self.channel.wait_for(time.monotonic() + silence.timeout_s):
                        if (begin := self._on_message(message, on_waiting)) is not None:
                            return begin
                        break  # restart the silence timeout after each message
        except ChannelClosedError as error:
            raise TlaunchError(f"lost the connection to the run's coordinator: {error}") from error
        raise TlaunchError(
            f"lost the connection to the run's coordinator: no message was received for {self.welcome.silence_s:g} s"
        )

    def link(self) -> Link:
        by_hand = self.welcome.job is None
        return Link(self.channel, self.welcome.silence_s, shares_files=self._shares_files, by_hand=by_hand)

    def close(self) -> None:
        self.channel.close()

    def _on_message(
        self, message: messages.Message, on_waiting: Callable[[messages.Waiting | messages.JoinAccepted], None]
    ) -> BeginAttempt | None:
        match message:
            case messages.Ping():
                self.channel.send(messages.Pong(message.sent_ns, time.time_ns()))
            case BeginAttempt():
                return message
            case messages.Waiting() | messages.JoinAccepted():
                self._has_joined = isinstance(message, messages.JoinAccepted)
                on_waiting(message)
            case messages.Refused():
                raise TlaunchError(message.message, hint=message.hint, exit_code=message.exit_code)
            case Finish(exit_code=code) if self._has_joined or code == EXIT_OK:
                why = f": {message.reason}" if message.reason else ""
                raise RunOverError(f"the run ended before ranks started on this server{why}", exit_code=code)
            case Finish(exit_code=code):
                reason = message.reason or "see the launcher's output on the first server"
                why = f"the run ended before ranks started on this server: {reason}"
                raise TlaunchError(why, hint=message.hint, exit_code=code)
        return None


def join(
    endpoint: Endpoint,
    member: AgentInfo,
    until: float,
    on_delay: Callable[[str], None],
    whom: str = "the run's coordinator",
    *,
    tokens: Callable[[], Sequence[str]] | None = None,
) -> Session:
    """Connect to the coordinator, authenticate, and return the session. Block at most until `until` (monotonic).

    `on_delay` is called with the reason of a delay. `whom` names the coordinator in messages. `tokens` returns the
    tokens to try; the default is the endpoint's token.
    Raises TlaunchError if there is no answer in time, or the coordinator refuses this machine.
    """
    reported: set[str] = set()
    former = None
    while True:
        reasons: list[str] = []
        known = (endpoint.token,) if tokens is None else tokens()
        for address, token in itertools.product(endpoint.addresses, known):
            try:
                entered = _enter(address, token, member, until)
            except PassingRefusalError as error:
                if time.monotonic() + AGAIN_S >= until:
                    raise
                reasons.append(error.message)
                break
            if isinstance(entered, Session):
                return entered
            reasons.append(f"{address[0]} port {address[1]}: {entered}")
        why = "; ".join(dict.fromkeys(reasons))
        if time.monotonic() + AGAIN_S >= until:
            raise TlaunchError(
                f"{whom} cannot be reached: {why}",
                hint=f"start the same command on the coordinator's server and open its port to this machine; {SAME_VALUE_HINT}",
            )
        # A different reason is reported once it occurs twice: the first server opens its port before it has a token.
        if not reported or (why == former and why not in reported):
            on_delay(why)
            reported.add(why)
        former = why
        time.sleep(AGAIN_S)


def take_place(spec: RunSpec, server_index: int, files: Mapping[str, str]) -> None:
    """Create the run directory with this server's files. Existing files are kept, since other servers may share them.

    Raises UnreadableError if that fails or the working directory is missing, UsageError if it is another user's.
    """
    if not spec.cwd.is_dir():
        raise UnreadableError(
            f"this server does not have the working directory of the ranks: {spec.cwd}",
            hint="put the program and its directory at the same path on every server",
        )
    run_dir = RunDir(spec.run_dir, server_index)
    with filling(run_dir):
        run_dir.report.parent.mkdir(parents=True, exist_ok=True)
        made = [run_dir.root, run_dir.report.parent]
        for rank in spec.ranks:
            if rank.server_index == server_index:
                run_dir.device(rank.global_rank).mkdir(exist_ok=True)
                made.append(run_dir.device(rank.global_rank))
        for directory in made:
            check_own_directory(directory)
        if not run_dir.run_json.exists():  # with thousands of ranks it takes seconds to write
            with suppress(FileExistsError):
                atomic.write_text(run_dir.run_json, spec_to_json(spec), replace=False)
        for name, text in files.items():
            if not (run_dir.root / name).exists():
                atomic.write_text(run_dir.root / name, text)


def _enter(address: tuple[str, int], token: str, member: AgentInfo, until: float) -> Session | str:
    """Try to join the coordinator at `address` once. Return the session, or the reason for the failure."""
    patience_s = max(0.1, min(CONNECT_S, until - time.monotonic()))
    try:
        channel = Channel(socket.create_connection(address, timeout=patience_s))
    except (OSError, UnicodeError) as error:  # UnicodeError: an invalid name
        return getattr(error, "strerror", None) or str(error) or "no answer"
    try:
        return _introduce(channel, token, member)
    except (ChannelClosedError, TimeoutError) as error:
        channel.close()
        return str(error) or "no answer"
    except BaseException:
        channel.close()
        raise


def _introduce(channel: Channel, token: str, member: AgentInfo) -> Session:
    nonce = os.urandom(16).hex()
    challenge = _first_message(channel, messages.Challenge)
    channel.send(
        messages.Hello(
            proof=messages.proof_of(token, challenge.nonce, nonce),
            nonce=nonce,
            version=__version__,
            code=fingerprint(),
            python=platform.python_version(),
            **vars(member),
        )
    )
    if challenge.protocol != messages.PROTOCOL:
        with suppress(ChannelClosedError, TimeoutError):  # wait until it has read this version
            _first_message(channel, messages.Welcome)
        raise RefusedLayoutError(
            "the coordinator uses a different version of tlaunch", hint="install the same version on every server"
        )
    try:
        welcome = _first_message(channel, messages.Welcome, WELCOME_S)
    except ChannelClosedError as error:
        if str(error) != CLOSED:
            raise
        # A coordinator does not answer a wrong proof, so that unauthenticated connections learn nothing.
        raise ChannelClosedError(
            "connection closed by a process that belongs to another run or has a different token"
        ) from error
    if not messages.is_proof(welcome.proof, token, nonce, challenge.nonce):
        raise ChannelClosedError("authentication failed: the process at this address does not have this run's token")
    if not is_run_name(welcome.run_name):
        raise ChannelClosedError(
            f"the coordinator's run name {welcome.run_name[:MAX_SHOWN]!r} is not a valid directory name"
        )
    return Session(channel, welcome, nonce)


def _first_message(channel: Channel, kind: type[Word], patience_s: float = CONNECT_S) -> Word:
    """Return the next message if it is of type `kind`. Raise TlaunchError if the coordinator refuses this server."""
    for message in channel.wait_for(time.monotonic() + patience_s):
        if isinstance(message, kind):
            return message
        if isinstance(message, messages.Refused) and message.passing:
            raise PassingRefusalError(message.message, hint="use a longer --join-timeout")
        if isinstance(message, messages.Refused):
            raise TlaunchError(message.message, hint=message.hint, exit_code=message.exit_code)
        raise ChannelClosedError("the process at this address is not a coordinator")
    raise TimeoutError
