"""Error patterns that distinguish a rank's own failure from the consequence of another rank's exit or absence.

Communication libraries report consequences by specific messages. The tables below list them with the library. General
errors of sockets and pipes are doubtful, because a rank also communicates with file servers and trackers. There, the
location of the exception decides. An error without a pattern is the rank's own fault.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum

from launcher.core.frozen import frozen
from launcher.logs.tracebacks import frames_in

SHOWN_CHARS = 200
LAST_WORDS_CHARS = 8192  # searched at the end of a log, or at the start of a message; bounds the time of many ranks
INNERMOST_FRAMES = 4  # there may be wrappers for logging and retries between the caller and the error


class Kind(str, Enum):
    """The kind of a failure. Each value completes a sentence such as "rank 3 failed by itself"."""

    OWN_FAULT = "failed by itself"
    PEER_CLOSED = "lost the connection to another rank"  # a peer is dead
    TIMEOUT = "timed out waiting for the others"  # a living peer does not take part, or the network is down
    RENDEZVOUS = "timed out waiting for the others to join"
    STORE_LOST = "lost the connection to the store on rank 0"
    WATCHDOG = "was ended by its collective watchdog"
    INTERRUPTED = "was interrupted by the signal that asks for stacks"  # very likely tlaunch's own signal
    PEER_FAILED = "was notified of another rank's failure"


@frozen
class Symptom:
    kind: Kind
    evidence: str = ""  # the matching text
    certain: bool = True  # False: own fault and consequence are equally possible
    named: tuple[int, ...] = ()  # global ranks that the message blames

    @property
    def consequence(self) -> bool:
        return self.kind is not Kind.OWN_FAULT


# Rows of the tables: kind, regular expression, and False if the kind is not certain. The group `named` captures the
# blamed ranks, and `shown` the text to quote. Gaps are bounded, since a line of megabytes would otherwise take minutes.
# `re` compiles and caches an expression at its first use, after a failure, instead of at every start.
_Pattern = tuple[Kind, str] | tuple[Kind, str, bool]

# A rank's own faults that communication libraries report. They are searched first.
_OWN = (
    (Kind.OWN_FAULT, r"CUDA error: |CUDA out of memory|[Uu]nhandled cuda error"),  # torch, NCCL
    (Kind.OWN_FAULT, r"NPU out of memory|\bEI0004: |\bEI0014: "),  # torch_npu; HCCL: an invalid rank table
    (Kind.OWN_FAULT, r"EADDRINUSE|[Aa]ddress already in use|failed to (?:bind|listen)"),  # torch's TCPStore, any server
    (Kind.OWN_FAULT, r"ncclInvalid(?:Argument|Usage)"),  # NCCL: a wrong call
)

# Messages with rank numbers: of ranks missing in a collective, or of the caller of MPI_Abort.
_NAMING = (
    (Kind.TIMEOUT, r"shared memory: timed out after \S+ s waiting for rank (?P<named>\d+)"),  # launcher/trainer
    (Kind.TIMEOUT, r"Ranks? (?P<named>\d+(?:, ?\d+)*) failed to pass monitoredBarrier"),  # torch, ProcessGroupGloo
    (Kind.PEER_FAILED, r"MPI_ABORT was invoked on rank (?P<named>\d+)"),  # Open MPI
    (Kind.PEER_FAILED, r"(?:application called MPI_Abort|Abort)\(.{0,300}\) (?:-|on node) .{0,300}?(?:process|rank in comm world) (?P<named>\d+)"),  # MPICH
    (Kind.PEER_FAILED, r"The node: (?P<named>\d+) is timed out\. It may exit with exception"),  # MindSpore's scheduler
    (Kind.PEER_FAILED, r"Timed out node list is: \[const vector\]\{(?P<named>\d+(?:, ?\d+)*)\}"),  # the same, raising
    (Kind.PEER_FAILED, r"Time out nodes are \[(?P<named>'?\d+'?(?:, ?'?\d+'?)*)\]"),  # msrun
    (Kind.TIMEOUT, r"has not received the Notify record from remote rank \[(?P<named>\d+)\]"),  # HCCL EI0002
)  # fmt: skip

# Of transport/tcp and unbound_buffer.cc; the third after a network failure.
_GLOO = (
    (Kind.PEER_CLOSED, r"gloo/.{0,300}(?P<shown>Connection closed by peer|Connection reset by peer|Broken pipe)"),
    (Kind.TIMEOUT, r"gloo/.{0,300}(?P<shown>Timed out waiting \d+ ?ms for (?:send|recv) operation)"),
    (Kind.TIMEOUT, r"gloo/.{0,300}(?P<shown>Connection timed out|No route to host|Network is unreachable)"),
    (Kind.RENDEZVOUS, r"[Gg]loo connectFullMesh failed|gloo/.{0,300}(?:[Cc]onnect timeout|Timed out.{0,300}connect)"),
    (Kind.PEER_CLOSED, r"received errors while waiting for send/recv from rank \d+"),  # ProcessGroupGloo
)

_C10D_STORE = (
    (Kind.RENDEZVOUS, r"Timed out after \d+ seconds waiting for clients\. \d+/\d+ clients joined"),  # TCPStore, rank 0
    (Kind.RENDEZVOUS, r"wait timeout after \d+ ?ms, keys:"),  # TCPStore: a rank has not stored its address
    (Kind.RENDEZVOUS, r"The client socket has (?:timed out|failed to connect)"),  # TCPStore: rank 0 does not listen
    (Kind.STORE_LOST, r"Connection was likely closed\. Did the remote server shutdown or crash"),  # torch's sockets
    (Kind.STORE_LOST, r"(?:recvValue|sendBytes|recvBytes) failed"),  # TCPStore's wrapper
    (Kind.STORE_LOST, r"DistNetworkError:? ?.{0,300}(?:Broken pipe|Connection reset|Connection closed|recv, got 0 bytes)"),
    (Kind.INTERRUPTED, r"Interrupted system call"),  # torch's sockets do not retry like Python's
    (Kind.RENDEZVOUS, r"store->get\(.{0,300}\) got error|DistStoreError:? ?.{0,300}(?:[Tt]imed? ?out|Socket Timeout)"),
)  # fmt: skip

_NCCL = (
    (Kind.TIMEOUT, r"Watchdog caught collective operation timeout"),  # ProcessGroupNCCL, and HCCL's twin in torch_npu
    (Kind.PEER_CLOSED, r"ncclRemoteError|remote process exited or there was a network error"),  # NCCL
    (Kind.PEER_CLOSED, r"Connection closed by remote peer|socketProgress.{0,300}[Cc]onnection (?:closed|reset)"),  # NCCL
    (Kind.PEER_FAILED, r"(?:Received|Observed flight recorder) a? ?(?:timeout|dump) signal"),  # ProcessGroupNCCL
    (Kind.PEER_FAILED, r"NCCL communicator was aborted"),  # ProcessGroupNCCL
    (Kind.RENDEZVOUS, r"setting up NCCL communicator and retrieving ncclUniqueId"),  # ProcessGroupNCCL; "is setting up"
    (Kind.WATCHDOG, r"[Hh]eartbeat monitor timed out|watchdog got stuck for \d+ seconds", False),  # ProcessGroupNCCL
    (Kind.WATCHDOG, r"watchdog thread terminated with exception", False),  # ProcessGroupNCCL: any error
    (Kind.WATCHDOG, r"Some (?:NCCL|HCCL) operations have failed or timed out"),  # ProcessGroupNCCL, torch_npu
    (Kind.PEER_CLOSED, r"unhandled system error|ncclSystemError", False),  # NCCL: mostly a broken link, perhaps of this rank
)  # fmt: skip

_HCCL = (
    (Kind.RENDEZVOUS, r"\bEI0006: |Getting socket times out"),  # HCCL: another rank did not connect
    (Kind.TIMEOUT, r"\bEI0002: |wait execution of the Notify register times out"),  # HCCL: another rank did not reach the operator
    (Kind.TIMEOUT, r"error code is 507048|The execution of the internal task times out"),  # torch_npu's name of EI0002
    (Kind.PEER_FAILED, r"[Rr]emote [Rr]ank did not send the data in time"),  # HCCL
)  # fmt: skip

_OTHERS = (
    (Kind.PEER_CLOSED, r"shared memory: connection closed by rank \d+"),  # launcher/trainer/parallel
    (Kind.PEER_FAILED, r"total number of timed out node is \d+"),  # MindSpore's scheduler
    (
        Kind.TIMEOUT,
        r"Launch kernel failed(?:, name)?: ?(?:\S{0,300}/)?(?:AllReduce|AllGather|AlltoAll|Broadcast|ReduceScatter|Reduce|Barrier|Collective(?:Gather|Scatter)|Send|Receive)-op",
    ),  # MindSpore on CPU
    (Kind.PEER_FAILED, r"There's worker exits with exception, kill all other workers"),  # msrun
    (Kind.PEER_FAILED, r"MPI_ERR_PROC_FAILED|MPI_ERR_REVOKED"),  # MPI with fault tolerance
    (Kind.PEER_FAILED, r"HorovodInternalError"),  # Horovod
)

# Messages of Python and the operating system about a lost or silent peer, which need not be a rank.
_GENERAL = (
    (Kind.PEER_CLOSED, r"^(?:ConnectionResetError|BrokenPipeError|ConnectionAbortedError|EOFError|IncompleteReadError)\b", False),
    (Kind.PEER_CLOSED, r"Connection reset by peer|Connection closed by peer|Broken pipe|Connection aborted", False),
    (Kind.STORE_LOST, r"^ConnectionRefusedError\b|Connection refused", False),
    (Kind.TIMEOUT, r"^\w*[Tt]ime(?:d)?[Oo]ut|[Tt]imed out", False),
)  # fmt: skip

# Log lines of a rank that retries to connect, from the operating system and torch's TCPStore.
_UNCONNECTED = re.compile(
    r"(?P<tried_long>TCP client failed to connect/validate to host \S{1,300})"
    r"|network addresses of \(.{1,300}?\) cannot be retrieved \(gai error: .{1,100}?\)"
    r"|The client socket has (?:failed to connect|timed out.{0,60}connect).{0,300}"
    r"|gaierror: .{1,200}|Temporary failure in name resolution|Name or service not known"
    r"|Connection refused|No route to host|Network is unreachable"
)
MIN_RETRIES = 3  # a few lines are normal at start, before rank 0 listens or if its name has no IPv6 address

_FRAMEWORKS = (*_NAMING, *_GLOO, *_C10D_STORE, *_NCCL, *_HCCL, *_OTHERS)
# Paths of communication libraries. A general error raised in them concerns another rank.
_COMMUNICATION = re.compile(
    r"torch/distributed/|torch_npu/distributed/|mpi4py|mindspore/(?:communication|parallel|mint/distributed)"
    r"|horovod/|deepspeed/comm/|multiprocessing/(?:connection|managers)\.py|paddle/distributed/"
)
_DISTRIBUTED_TYPES = ("DistNetworkError", "DistStoreError", "DistBackendError")
_RANK = re.compile(r"(?<!\d)\d{1,9}(?!\d)")


def of_exception(type_name: str, message: str, traceback: str = "") -> Symptom:
    """Classify an exception. If its message is ambiguous, the innermost frames of `traceback` decide."""
    text = f"{type_name.rpartition('.')[2]}: {message}"[:LAST_WORDS_CHARS]
    if found := _first((*_OWN, *_FRAMEWORKS), text):
        return found
    doubtful = _first(_GENERAL, text)
    if doubtful is None:
        return Symptom(Kind.OWN_FAULT, text[:SHOWN_CHARS].strip())
    innermost = [file.replace("\\", "/") for file, _ in frames_in(traceback)[-INNERMOST_FRAMES:]]
    certain = type_name.endswith(_DISTRIBUTED_TYPES) or any(map(_COMMUNICATION.search, innermost))
    return Symptom(doubtful.kind, doubtful.evidence) if certain else doubtful


def of_log(tail: str) -> Symptom:
    """Classify a failure without an exception by the end of the log.

    Only known messages of libraries count, because any log may contain general messages such as "Broken pipe".
    """
    return _first((*_OWN, *_FRAMEWORKS), tail[-LAST_WORDS_CHARS:]) or Symptom(Kind.OWN_FAULT)


def unconnected(tail: str) -> str:
    """Return the last message about a failed connection in a log, or "" if only a few short attempts failed."""
    found = [match for line in tail.splitlines() if (match := _UNCONNECTED.search(line))]
    enough = len(found) >= MIN_RETRIES or any(match["tried_long"] for match in found)
    return found[-1][0][:SHOWN_CHARS].strip() if enough else ""


def _first(patterns: Iterable[_Pattern], text: str) -> Symptom | None:
    for kind, expression, *certain in patterns:
        if found := re.search(expression, text):
            groups = found.groupdict()
            ranks = tuple(int(number) for number in _RANK.findall(groups.get("named", "")))
            return Symptom(kind, groups.get("shown", found[0])[:SHOWN_CHARS].strip(), all(certain), ranks)
    return None
