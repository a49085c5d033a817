"""Opens shared memory between ranks on one host: a UNIX socket between every two ranks, and memory mapped by all.

Host names do not prove that ranks are on one host, since containers may share a name. So the ranks try to connect. Each
rank listens at an abstract socket name with a random token, which the first rank broadcasts over the backend. Each rank
connects to all lower ranks; success proves that both run on the same kernel. The first rank creates the memory, an
anonymous file (memfd), and sends its descriptor to the others. So nothing is left in the file system if a rank crashes.

All ranks take each step together. If a step fails on one rank, it fails on all, and everything is closed again.
"""

from __future__ import annotations

import errno
import io
import os
import secrets
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from launcher.trainer.parallel.shared_memory import BYTES_EACH, SharedMemory

STEP_TIMEOUT_S = 60.0  # for a step that another rank has started
TOKEN_BYTES = 16
_INDEX = struct.Struct("!I")
_CREDENTIALS = struct.Struct("3i")  # struct ucred of unix(7): process, user, group

Result = TypeVar("Result")
Peers = dict[int, socket.socket]  # by index in the group


class NotSharedError(Exception):
    """Raised on all ranks of a group, with the same message, if they cannot share memory."""


def share_memory(ranks: Sequence[int], index: int, handle: dist.ProcessGroup, timeout: timedelta) -> SharedMemory:
    """Open shared memory for the process group `handle`. Blocks until all ranks of the group have called it.

    `ranks` are the group's global ranks, and `index` is the position of this rank among them.
    `timeout` applies to later collectives.

    Raises:
        NotSharedError: on all ranks, if they are not on one host or cannot allocate the memory.
    """

    def together(what: str, step: Callable[[], Result]) -> Result:
        """Run `step` on all ranks, and return this rank's result. If any rank fails, all raise NotSharedError."""
        results, reason = [], 0
        try:
            results.append(step())
        except OSError as error:
            reason = error.errno or errno.ETIMEDOUT
        # The maximum belongs to the lowest rank that failed.
        failure = torch.tensor((len(ranks) - index) << 16 | reason if reason else 0)
        dist.all_reduce(failure, op=dist.ReduceOp.MAX, group=handle)
        if failure:
            first = ranks[len(ranks) - (int(failure) >> 16)]
            raise NotSharedError(f"rank {first} cannot {what}: {os.strerror(int(failure) & 0xFFFF)}")
        return results[0]

    token = torch.tensor(list(secrets.token_bytes(TOKEN_BYTES)), dtype=torch.uint8)
    dist.broadcast(token, src=ranks[0], group=handle)
    name = b"\0tlaunch-%s-%%d" % bytes(token.tolist()).hex().encode()
    peers: Peers = {}
    with ExitStack() as own, ExitStack() as undo:
        undo.callback(_close, peers)
        listener = together("listen at a UNIX socket", lambda: own.enter_context(_listener(name % index)))
        together("connect to the lower ranks by a UNIX socket", lambda: _connect(peers, name, index))
        size = len(ranks) * BYTES_EACH
        file = together(f"share {size >> 20} MiB", lambda: undo.enter_context(_memory(peers, listener, index, size)))
        memory = together(
            "map the shared memory",
            lambda: SharedMemory({ranks[other]: peer for other, peer in peers.items()}, index, file, timeout),
        )
        undo.pop_all()
    return memory


def _listener(name: bytes) -> socket.socket:
    if not hasattr(os, "memfd_create"):  # only Linux has memfd and abstract socket names
        raise OSError(errno.ENOSYS, "no anonymous files")
    listener = socket.socket(socket.AF_UNIX)
    listener.settimeout(STEP_TIMEOUT_S)
    try:
        listener.bind(name)
        listener.listen(socket.SOMAXCONN)
    except OSError:
        listener.close()
        raise
    return listener


def _connect(peers: Peers, name: bytes, index: int) -> None:
    for other in range(index):
        peers[other] = peer = socket.socket(socket.AF_UNIX)
        peer.settimeout(STEP_TIMEOUT_S)
        peer.connect(name % other)
        if not _is_of_this_user(peer):
            raise PermissionError(errno.EACCES, "another user listens")
        peer.sendall(_INDEX.pack(index))


def _memory(peers: Peers, listener: socket.socket, index: int, size: int) -> io.FileIO:
    """Accept connections from all higher ranks. Then the first rank creates the memory, and the others receive it."""
    with ExitStack() as undo:
        undo.callback(_close, peers)  # ends the wait of peers that expect the memory
        while len(peers) < size // BYTES_EACH - 1:
            peer, _ = listener.accept()
            if not _is_of_this_user(peer):  # other users can see the name in /proc/net/unix
                peer.close()
                continue
            peer.settimeout(STEP_TIMEOUT_S)
            other = peer.recv(_INDEX.size, socket.MSG_WAITALL)
            if len(other) < _INDEX.size:
                peer.close()
                raise ConnectionResetError(errno.ECONNRESET, "the peer closed the connection")
            peers[_INDEX.unpack(other)[0]] = peer
        if index == 0:
            file = undo.enter_context(io.FileIO(os.memfd_create("tlaunch"), "r+"))
            file.truncate(size)
            for peer in peers.values():
                socket.send_fds(peer, [b"\0"], [file.fileno()])
        else:
            _, descriptors, _, _ = socket.recv_fds(peers[0], 1, 1)
            if not descriptors:
                raise OSError(errno.EMFILE, "the descriptor has not arrived")
            file = undo.enter_context(io.FileIO(descriptors[0], "r+"))
        # Each rank allocates its pages now. A write to a page that cannot be allocated later would raise SIGBUS.
        os.posix_fallocate(file.fileno(), index * BYTES_EACH, BYTES_EACH)
        undo.pop_all()
    return file


def _close(peers: Peers) -> None:
    for peer in peers.values():
        peer.close()


def _is_of_this_user(peer: socket.socket) -> bool:
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(credentials)[1] == os.geteuid())
