"""The messages between the coordinator of a run over several servers and the agent of each server, one JSON line each.

    agent                                  coordinator
                     <───────────  Challenge        a nonce, which the agent's proof has to contain
    Hello            ───────────>                   the agent's host; proves that it knows the run's token
                     <───────────  Welcome          which server it is, and what to start there; or Refused
    Ready            ───────────>                   everything is in place on this server; or Refused
                     <───────────  BeginAttempt     all servers are ready: start the ranks of attempt 0
    EventReport ...  ───────────>                   events, as they are written to the server's own events.jsonl
    EvidenceReport   ───────────>                   a rank failed or hangs here, with what is known of all ranks
                     <───────────  CollectEvidence  ... to all other servers, which answer with their EvidenceReport
                     <───────────  ProbeReach       if no rank failed by itself: which servers reach which?
    ProbeResult      ───────────>                   the servers that this one does not reach
                     <───────────  EndRanks         with the root cause; ranks are perhaps started again
    AttemptEnded     ───────────>                   no process of the ranks is left on this server
                     <───────────  BeginAttempt     the next attempt, once all servers have sent AttemptEnded; or Finish
    Done             ───────────>                   the agent closes the connection

What the run controller takes and orders travels as it is: its events (launcher/control/events.py) from an agent, which
speaks for its own server alone, and its orders (launcher/control/orders.py) from the coordinator. Both sides keep the
sequence, so an order concerns the attempt that the agent was told to begin last.

An agent that does not see the coordinator's run directory sends it what ranks write, and waits for each answer:
    FileChunk        ───────────>                   new bytes of a file that grows
    FileSnapshot     ───────────>                   a file that is rewritten as a whole
                     <───────────  ChunkAck         how much of it has been written

An agent that has lost the coordinator connects once more when its ranks have ended, and sends only `Freed`.

The coordinator sends `Ping` at intervals, which the agent answers with `Pong`, and may send `EndRanks` without a verdict and
`ForwardSignal`. An agent whose launcher got a signal for all servers sends `SignalReceived`; one that has lost its launcher sends `GivingUp`.

A client that has the key of an active run (launcher/cluster/stack_requests.py) may ask for the stacks of its ranks:
    client                         coordinator                    agents
    AskStacks        ───────────>               TakeStacks ───────────>
                     <───────────  AllStacks               <───────────  Stacks

An agent that takes part in an examination by the doctor gets `ProbeQuestion` messages instead, answers each with `ProbeAnswer`, and
ends at `Finish`.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import field
from typing import Any, get_args

from launcher.control.events import AttemptEnded, EvidenceReport, ProbeResult, SignalReceived
from launcher.control.orders import BeginAttempt, CollectEvidence, EndRanks, Finish, ForwardSignal, ProbeReach
from launcher.core.codec import decode, encode
from launcher.core.frozen import frozen

PROTOCOL = 6  # another number: the two sides do not understand each other
MAX_LINE_BYTES = 256 << 20
MAX_FIRST_LINE_BYTES = 1 << 20  # before the sender has proved that it knows the token


@frozen
class Challenge:
    """The coordinator's first message: the agent's answer proves that it knows the run's token, which itself is never sent."""

    protocol: int
    nonce: str


@frozen
class Hello:
    proof: str  # see `proof_of`
    nonce: str  # the agent's own: the coordinator proves itself too
    version: str  # of tlaunch
    code: str  # see launcher.core.resources
    python: str  # "3.11.2"
    host: str  # its name
    addresses: tuple[str, ...]  # of its interfaces
    said: str | None = None  # the id of the server that this machine is, whatever it looks like
    index: int | None = None  # which of the engine's processes this is
    agreement: Mapping[str, str] | None = None  # what it was started with; None: it follows the coordinator


@frozen
class Welcome:
    proof: str
    server_index: int
    run_name: str
    silence_s: float  # of silence after which the other side is lost
    job: str | None = None  # see launcher.cluster.job; None for an agent that knows by itself what to do
    mark: str | None = None  # a file's name: who finds it in the run directory shares that with the coordinator
    key: str = ""  # of clients that ask where ranks are; empty where none may


@frozen
class Refused:
    """A refusal to take part: an error of tlaunch, with its exit code."""

    message: str
    hint: str | None = None
    exit_code: int = 1
    passing: bool = False  # the reason passes: the machine is to try again


@frozen
class Ready:
    master_port: int | None = None  # held for rank 0, on its server
    shares_files: bool = True  # what is in the run directory here is in the coordinator's
    program: Mapping[str, str] = field(default_factory=dict)  # digests of its files: see launcher.program.digests
    meeting: tuple[str, ...] | None = None  # addresses of MASTER_ADDR here: see launcher.cluster.meeting_check


@frozen
class Waiting:
    """A notice that not all servers have joined yet."""

    missing: tuple[str, ...]  # server ids
    limit_s: float | None = None  # of waiting in all


@frozen
class JoinAccepted:
    """A notice that the server has joined an elastic run, which goes on without it until it has use for its devices."""


@frozen
class EventReport:
    line: str  # as in launcher.core.events


@frozen
class FileChunk:
    """New bytes of a file that grows."""

    kind: str  # see launcher.supervise.file_upload
    global_rank: int
    offset: int
    end: int  # where the next piece begins
    data: str  # base64
    anew: bool = False  # the file was emptied or made again: what was sent before is no part of it
    stays: bool = False  # although it is anew: a server has lost its disk, and what it sent before is nowhere else


@frozen
class FileSnapshot:
    """The present contents of a file that is rewritten."""

    kind: str  # as above
    global_rank: int
    data: str | None  # base64; None: it has been removed
    written_ns: int  # by the agent's wall clock


@frozen
class ChunkAck:
    """The answer to a FileChunk or a FileSnapshot. The agent sends nothing more of that file before it."""

    kind: str
    global_rank: int
    end: int  # of a file that grows: where the next piece has to begin
    trouble: bool = False  # what was sent could not be written
    shares: bool = False  # nothing was written: the file there is the one that the agent reads


@frozen
class AgentFailed:
    """A notice that this server's part of the run cannot continue; its ranks are being ended."""

    reason: str


@frozen
class Freed:
    """A notice from an agent that had lost its coordinator: its ranks have ended (launcher/cluster/lost_agents.py)."""

    proof: str  # that it knows the run's token
    agent: str  # the nonce of its Hello


@frozen
class Ping:
    sent_ns: int  # by the coordinator's monotonic clock
    disk_stalls: bool = False  # a server's disk does not answer, so that ranks everywhere may wait


@frozen
class Pong:
    sent_ns: int  # as asked
    here_ns: int  # the agent's wall clock when it answered
    disk_silent_s: float = 0.0  # how long the agent's disk with the run directory has not answered


@frozen
class ProbeQuestion:
    """A question for a server's probe handler: see launcher/doctor/probe_handler.py."""

    number: int  # its answer has the same
    content: Any


@frozen
class ProbeAnswer:
    number: int
    content: Any


@frozen
class AskStacks:
    proof: str  # that its sender knows the run's key
    nonce: str
    ranks: tuple[tuple[int, int], ...] | None = None  # first and last of each range; None: all


@frozen
class TakeStacks:
    number: int
    ranks: tuple[tuple[int, int], ...] | None = None  # as above


@frozen
class Stacks:
    number: int
    content: Any  # see launcher.supervise.stack_collection


@frozen
class AllStacks:
    proof: str  # that its sender knows the key too
    content: tuple[Any, ...]  # the servers' answers
    silent: Mapping[str, str]  # why, by the id of each server that has not


@frozen
class Done:
    unkillable: tuple[int, ...] = ()
    events_lost: int = 0


AgentEvent = AttemptEnded | EvidenceReport | ProbeResult | SignalReceived  # each says of which server
Message = (
    Challenge | Hello | Welcome | Refused | Ready | Waiting | JoinAccepted | BeginAttempt | EventReport | CollectEvidence | ProbeReach | EndRanks
    | AgentEvent | ForwardSignal | AgentFailed | Ping | Pong | ProbeQuestion | ProbeAnswer | Finish | Done | FileChunk | FileSnapshot | ChunkAck
    | AskStacks | TakeStacks | Stacks | AllStacks | Freed
)  # fmt: skip
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Message)}


def to_line(message: Message) -> bytes:
    return json.dumps([type(message).__name__, encode(message)]).encode() + b"\n"


def from_line(line: bytes) -> Message:
    """Return the message of a line that `to_line` wrote.

    Raises:
        ValueError: the line is no message of this version.
    """
    try:
        name, value = json.loads(line)
        kind = _KINDS[name]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"not a valid message: {line[:80]!r}") from error
    message: Message = decode(kind, value)
    return message


def proof_of(token: str, *nonces: str) -> str:
    """Return the proof that its sender knows `token`: an HMAC of the random nonces of both sides."""
    secret, drawn = (
        text.encode(errors="surrogatepass") for text in (token, ":".join(nonces))
    )  # an unauthenticated sender's nonce
    return hmac.new(secret, drawn, hashlib.sha256).hexdigest()


def is_proof(proof: str, token: str, *nonces: str) -> bool:
    return hmac.compare_digest(proof.encode(errors="replace"), proof_of(token, *nonces).encode())
