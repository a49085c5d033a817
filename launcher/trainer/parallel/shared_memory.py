"""Collectives of CPU tensors among ranks of one host, through memory that they share. The backend, gloo, would use TCP.

The memory holds two slots for each rank:

    rank 0           rank 1           ...
    slot 0  slot 1   slot 0  slot 1

A collective is a sequence of rounds. In each round every rank copies a chunk into its slot, meets the others, and reads
their slots. Rounds take the two slots in turn, and so one meeting a round is enough: before a rank fills a slot again,
it has met the others in the round between, to which they came after they had read that slot.

Tensors that are made here in the first place need no copies: each rank reads the others' parts where they are.

To meet, each rank sends a byte to each other by a socket, and sleeps until theirs have come. The locks in the kernel
order what was written to the memory before a byte is sent and what is read after it came, on processors of any kind.
Nobody spins: where ranks or other processes share a core, that would take it from the rank that is waited for.

Sums are made in the order of the ranks, so that they are the same bits on all ranks and in every repetition.

Shapes: R ranks of the group, N items of a chunk, M columns of a shared tensor.
"""

from __future__ import annotations

import io
import mmap
import os
import socket
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Literal

import torch
from torch import Tensor

SLOT_BYTES = 1 << 20  # a chunk of this size stays in a core's cache; any item's size divides it
BYTES_EACH = 2 * SLOT_BYTES  # of each rank
# Up to so many bytes in all slots of a round, every rank adds them all up; beyond, a share of them, and they meet twice.
WHOLE_BYTES = 1 << 20

_COMBINE: dict[str, Callable[..., Tensor]] = {"sum": torch.add, "max": torch.maximum}


class PeerLostError(RuntimeError):
    """Another rank of the group has ended, or has not come in time. supervise/diagnosis knows the messages."""


class SharedMemory:
    """The collectives of one group, which all its ranks must call in the same order, with tensors of the same size.

    `peers` are sockets to the other ranks by global rank, `file` is the memory, with `BYTES_EACH` bytes of each rank, and
    this rank is number `index` of the group. A collective blocks until all ranks take part in it, or `timeout` is over.

    Raises (each collective):
        PeerLostError: a rank has closed its connections, or has not come in time. The memory is of no use any more.
    """

    def __init__(self, peers: Mapping[int, socket.socket], index: int, file: io.FileIO, timeout: timedelta) -> None:
        """Take over `peers` and `file`.

        Raises:
            OSError: the memory cannot be mapped.
        """
        self._peers = dict(sorted(peers.items()))
        self._index, self._size = index, len(peers) + 1
        self._timeout_s = timeout.total_seconds()
        for peer in self._peers.values():
            peer.settimeout(None)  # by the kernel instead, which takes one system call less
            seconds, rest = divmod(timeout, timedelta(seconds=1))
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, rest.microseconds))
        self._file, self._end = file, self._size * BYTES_EACH
        memory = mmap.mmap(file.fileno(), self._end)
        self._bytes = torch.frombuffer(memory, dtype=torch.uint8).view(self._size, 2, SLOT_BYTES)
        self._slots: dict[torch.dtype, tuple[Tensor, Tensor]] = {}  # the same memory; of each turn, a row for each rank
        self._rounds = 0

    def all_reduce(self, tensor: Tensor, operation: Literal["sum", "max"]) -> Tensor:
        """Reduce a contiguous `tensor` to the sum or maximum over the ranks, in place, and return it."""
        combine, flat = _COMBINE[operation], tensor.detach().view(-1)
        for chunk_N in flat.split(SLOT_BYTES // flat.itemsize):
            slots_RN = self._next_slots(flat.dtype)[:, : len(chunk_N)]
            slots_RN[self._index].copy_(chunk_N)
            self._meet()
            if slots_RN.nbytes <= WHOLE_BYTES:
                _reduce(combine, slots_RN, chunk_N)
                continue
            bounds = [len(chunk_N) * index // self._size for index in range(self._size + 1)]
            shares = list(map(slice, bounds, bounds[1:]))
            own = shares[self._index]
            _reduce(combine, slots_RN[:, own], chunk_N[own])
            slots_RN[self._index, own].copy_(chunk_N[own])  # nobody else reads this share of this slot before
            self._meet()
            for index, share in enumerate(shares):
                if index != self._index:
                    chunk_N[share].copy_(slots_RN[index, share])
        return tensor

    def tensor(self, rows: int, columns: int, dtype: torch.dtype) -> Tensor | None:
        """Return zeros of that shape that all ranks see and change, or None on all ranks if there is no memory left.

        All must call it with the same arguments. The memory is kept until all ranks have let go of the tensor.
        """
        share = -(-rows * columns * dtype.itemsize // self._size)
        share += -share % mmap.ALLOCATIONGRANULARITY
        failed, memory = torch.zeros(1), None
        try:
            # Each rank takes some pages now. Without any left it would be killed (SIGBUS) when it writes.
            os.posix_fallocate(self._file.fileno(), self._end + self._index * share, share)
        except OSError:
            failed += 1
        if not self.all_reduce(failed, "max"):
            try:
                memory = mmap.mmap(self._file.fileno(), self._size * share, offset=self._end)
            except OSError:
                failed += 1
        if self.all_reduce(failed, "max"):
            self._file.truncate(self._end)
            self.barrier()
            return None
        self._end += self._size * share
        assert memory is not None, "nothing has failed"
        return torch.frombuffer(memory, dtype=dtype, count=rows * columns).view(rows, columns)

    def barrier(self) -> None:
        """Wait until all ranks are here: what they have written to a `tensor` can be read then."""
        self._meet()

    def reduce_scatter(self, output_N: Tensor, shared_RM: Tensor, columns: slice) -> None:
        """Set `output_N` to the sum of some columns of a `tensor` that has a row of each rank.

        Every rank may take others. A row may be changed again after all ranks have taken what they need and have met (`barrier`).
        """
        self._meet()
        step = SLOT_BYTES // output_N.itemsize
        for chunk_N, chunk_RN in zip(output_N.split(step), shared_RM[:, columns].split(step, dim=1), strict=True):
            _reduce(torch.add, chunk_RN, chunk_N)

    def all_gather(self, output: Tensor, part: Tensor) -> None:
        """Set `output` to the ranks' parts, one after another; both are contiguous."""
        own = part.detach().view(-1)
        parts_RN = output.detach().view(self._size, len(own))
        step = SLOT_BYTES // own.itemsize
        for chunk_N, chunks_RN in zip(own.split(step), parts_RN.split(step, dim=1), strict=True):
            slots_RN = self._next_slots(own.dtype)[:, : len(chunk_N)]
            slots_RN[self._index].copy_(chunk_N)
            self._meet()
            chunks_RN.copy_(slots_RN)

    def all_to_all(self, output: Tensor, tensor: Tensor) -> None:
        """Set `output` to this rank's part of every rank's `tensor`, one after another; both are contiguous."""
        sent_RN, received_RN = (each.detach().view(self._size, -1) for each in (tensor, output))
        step = SLOT_BYTES // sent_RN.itemsize // self._size
        for sent, received in zip(sent_RN.split(step, dim=1), received_RN.split(step, dim=1), strict=True):
            slots_RN = self._next_slots(sent.dtype)[:, : sent.numel()]
            slots_RN[self._index].view(sent.shape).copy_(sent)
            self._meet()
            received.copy_(slots_RN.view(self._size, *sent.shape)[:, self._index])

    def close(self) -> None:
        """Give connections and memory back. Ranks that still wait in a collective would fail."""
        for peer in self._peers.values():
            peer.close()
        self._file.close()
        self._slots.clear()
        del self._bytes

    def _next_slots(self, dtype: torch.dtype) -> Tensor:
        """Return the slots of the next round, a row for each rank."""
        if dtype not in self._slots:
            even, odd = self._bytes.view(dtype).unbind(1)
            self._slots[dtype] = even, odd
        self._rounds += 1
        return self._slots[dtype][self._rounds % 2]

    def _meet(self) -> None:
        """Wait until all ranks are here; what they had written before can be read then."""
        for peer in self._peers.values():
            with suppress(ConnectionError):  # told below, unless it ended after this meeting, of which it left its byte
                peer.send(b"\0", socket.MSG_NOSIGNAL)
        for global_rank, peer in self._peers.items():
            try:
                came = peer.recv(1)
            except BlockingIOError:
                waited = f"waited {self._timeout_s:g} s in vain for rank {global_rank}"
                raise PeerLostError(f"shared memory: {waited}") from None
            except ConnectionError:
                came = b""
            if not came:
                # Those before it have come, also if they have given up by now because of the one that is missing.
                others = [rank for rank, peer in self._peers.items() if rank > global_rank and _is_closed(peer)]
                gone = ", ".join(map(str, [global_rank, *others]))
                raise PeerLostError(f"shared memory: connection closed by rank {gone}")


def _reduce(combine: Callable[..., Tensor], parts_RN: Tensor, output_N: Tensor) -> None:
    first_N, second_N, *others = parts_RN.unbind()
    combine(first_N, second_N, out=output_N)
    for part_N in others:
        combine(output_N, part_N, out=output_N)


def _is_closed(peer: socket.socket) -> bool:
    try:
        return not peer.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
