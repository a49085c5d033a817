"""The messages between the coordinator of a run on several servers and each server's agent, one JSON line each.

    agent                                  coordinator
                     <───────────  Challenge        a nonce that the agent's proof must include
    Hello            ───────────>                   the agent's host, with a proof that it knows the run's token
                     <───────────  Welcome          the agent's server and what to start there; or Refused
    Ready            ───────────>                   this server is ready; or Refused
                     <───────────  BeginAttempt     all servers are ready: start the ranks of attempt 0
    EventReport ...  ───────────>                   events, as written to the server's own events.jsonl
    EvidenceReport   ───────────>                   a rank failed or hangs on this server; evidence about all its ranks
                     <───────────  CollectEvidence  ... to all other servers, which respond with EvidenceReport
                     <───────────  ProbeReach       if no rank failed by itself: check connections between servers
    ProbeResult      ───────────>                   the servers that this one cannot reach
                     <───────────  EndRanks         with the root cause; ranks may be restarted
    AttemptEnded     ───────────>                   no process of the ranks is left on this server
                     <───────────  BeginAttempt     the next attempt, once all servers have sent AttemptEnded; or Finish
    Done             ───────────>                   the agent closes the connection

Events of the run controller (launcher/control/events.py) travel unchanged from an agent, which reports only on its own
server. Orders (launcher/control/orders.py) travel unchanged from the coordinator. Messages arrive in the order in which
they were sent, so an order refers to the last attempt that the agent was ordered to start.

If the agent cannot see the coordinator's run directory, it sends files of ranks and waits for each acknowledgement:
    FileChunk        ───────────>                   new bytes of a growing file
    FileSnapshot     ───────────>                   the full content of a file that is rewritten
                     <───────────  ChunkAck         the position up to which the file is written

An agent that has lost the coordinator reconnects once after its ranks have ended, and sends only `Freed`.

The coordinator sends `Ping` at intervals, and the agent responds with `Pong`. The coordinator may also send
`EndRanks` without a verdict, and `ForwardSignal`. An agent sends `SignalReceived` if its launcher got a signal for
all servers, and `AgentFailed` if it cannot continue.

A client with the key of an active run (launcher/cluster/stack_requests.py) can request the stacks of its ranks:
    client                         coordinator                    agents
    AskStacks        ───────────>               TakeStacks ───────────>
                     <───────────  AllStacks               <───────────  Stacks

For the doctor, an agent gets `ProbeQuestion` messages instead, responds to each with `ProbeAnswer`, and ends at
`Finish`.
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

PROTOCOL = 7  # both sides must have the same number
MAX_LINE_BYTES = 256 << 20
MAX_FIRST_LINE_BYTES = 1 << 20  # until the sender has proved that it knows the token


@frozen
class Challenge:
    protocol: int
    nonce: str


@frozen
class Hello:
    proof: str  # see `proof_of`
    nonce: str  # the agent's nonce, for the coordinator's proof
    version: str  # of tlaunch
    code: str  # see launcher.core.resources
    python: str  # "3.11.2"
    host: str  # its name
    addresses: tuple[str, ...]  # of its network interfaces
    said: str | None = None  # the server id that the user gave to this machine, which overrides detection
    index: int | None = None  # index of this process among the engine's processes
    agreement: Mapping[str, str] | None = None  # the options it was started with; None: it follows the coordinator


@frozen
class Welcome:
    proof: str
    server_index: int
    run_name: str
    silence_s: float  # the connection counts as lost after this time without a message
    job: str | None = None  # see launcher.cluster.job; None if the agent already has its job
    mark: str | None = None  # file name: an agent that finds it in the run directory shares the coordinator's disk
    key: str = ""  # for clients that request stacks; empty if they are not allowed


@frozen
class Refused:
    """An agent cannot take part in a run, or the coordinator rejects the agent."""

    message: str
    hint: str | None = None
    exit_code: int = 1
    passing: bool = False  # True if the reason is temporary and the machine should try again


@frozen
class Ready:
    master_port: int | None = None  # reserved for rank 0, on its server
    shares_files: bool = True  # True if the run directory is the coordinator's, on a shared disk
    program: Mapping[str, str] = field(default_factory=dict)  # digests of program files: see launcher.program.digests
    meeting: tuple[str, ...] | None = None  # addresses of MASTER_ADDR on this server (launcher.cluster.meeting_check)


@frozen
class Waiting:
    missing: tuple[str, ...]  # server ids
    limit_s: float | None = None  # total waiting time allowed


@frozen
class JoinAccepted:
    """Tells a server that it has joined an elastic run. The run continues without it until its devices can be used."""


@frozen
class EventReport:
    line: str  # as in launcher.core.events


@frozen
class FileChunk:
    kind: str  # see launcher.supervise.file_upload
    global_rank: int
    offset: int
    end: int  # the offset of the next chunk
    data: str  # base64
    anew: bool = False  # True if the file was truncated or replaced, so earlier chunks are not part of it
    stays: bool = False  # True to keep the earlier chunks: the server's disk was lost, and no other copy exists


@frozen
class FileSnapshot:
    kind: str  # as above
    global_rank: int
    data: str | None  # base64; None: the file was removed
    written_ns: int  # by the agent's wall clock


@frozen
class ChunkAck:
    """The acknowledgement of a FileChunk or FileSnapshot. The agent waits for it before it sends more of that file."""

    kind: str
    global_rank: int
    end: int  # for a growing file: the expected offset of the next chunk
    trouble: bool = False  # True if the data could not be written
    shares: bool = False  # True if nothing was written because both sides see the same file


@frozen
class AgentFailed:
    reason: str


@frozen
class Freed:
    """An agent lost the coordinator, and its ranks have now ended (see launcher/cluster/lost_agents.py)."""

    proof: str  # proves that the agent knows the run's token
    agent: str  # the nonce of its Hello


@frozen
class Ping:
    sent_ns: int  # by the coordinator's monotonic clock
    disk_stalls: bool = False  # True if a server's disk does not respond, so ranks on all servers may wait


@frozen
class Pong:
    sent_ns: int  # copied from the Ping
    here_ns: int  # the agent's wall clock when it responded
    disk_silent_s: float = 0.0  # how long the agent's disk with the run directory has not responded


@frozen
class ProbeQuestion:
    """A question for the probe handler of a server (see launcher/doctor/probe_handler.py)."""

    number: int  # repeated in the answer
    content: Any


@frozen
class ProbeAnswer:
    number: int
    content: Any


@frozen
class AskStacks:
    proof: str  # proves that the sender knows the run's key
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
    proof: str  # proves that the sender knows the key too
    content: tuple[Any, ...]  # the servers' answers
    silent: Mapping[str, str]  # the reason for each server without an answer, by server id


@frozen
class Done:
    unkillable: tuple[int, ...] = ()
    events_lost: int = 0


AgentEvent = AttemptEnded | EvidenceReport | ProbeResult | SignalReceived  # each has the index of its server
Message = (
    Challenge | Hello | Welcome | Refused | Ready | Waiting | JoinAccepted | BeginAttempt | EventReport | CollectEvidence | ProbeReach | EndRanks
    | AgentEvent | ForwardSignal | AgentFailed | Ping | Pong | ProbeQuestion | ProbeAnswer | Finish | Done | FileChunk | FileSnapshot | ChunkAck
    | AskStacks | TakeStacks | Stacks | AllStacks | Freed
)  # fmt: skip
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Message)}


def to_line(message: Message) -> bytes:
    return json.dumps([type(message).__name__, encode(message)]).encode() + b"\n"


def from_line(line: bytes) -> Message:
    """Parse a line that `to_line` wrote. Raise ValueError if the line is not a valid message."""
    try:
        name, value = json.loads(line)
        kind = _KINDS[name]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"not a valid message: {line[:80]!r}") from error
    message: Message = decode(kind, value)
    return message


def proof_of(token: str, *nonces: str) -> str:
    """Return an HMAC of the nonces, which proves that the sender knows the token."""
    # A nonce from an unauthenticated sender may hold surrogates.
    secret, drawn = (text.encode(errors="surrogatepass") for text in (token, ":".join(nonces)))
    return hmac.new(secret, drawn, hashlib.sha256).hexdigest()


def is_proof(proof: str, token: str, *nonces: str) -> bool:
    return hmac.compare_digest(proof.encode(errors="replace"), proof_of(token, *nonces).encode())
