"""Collectives of CPU tensors between ranks on one host, through shared memory instead of gloo's TCP connections.

The memory holds two slots for each rank:

    rank 0           rank 1           ...
    slot 0  slot 1   slot 0  slot 1

A collective is a sequence of rounds. In each round every rank copies a chunk into its slot, waits at a barrier, and
reads the other slots. Rounds alternate between the two slots, so one barrier per round is enough: before a rank fills a
slot again, it passes the barrier of the next round, which other ranks reach only after reading that slot.

Tensors allocated in the shared memory need no copies: each rank reads the other ranks' parts directly.

In a barrier each rank sends a byte to every other rank by a socket, and sleeps until their bytes arrive. The kernel's
locks order writes before the send and reads after the receive on every kind of processor. There is no spinning, since
it could take the core from the rank that the others wait for.

Sums are computed in rank order, so they are bitwise the same on all ranks and in every repetition.

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

SLOT_BYTES = 1 << 20  # fits a core's cache; a multiple of every item size
BYTES_EACH = 2 * SLOT_BYTES  # per rank
# If the slots of a round have at most this size in total, every rank reduces them completely. Otherwise each rank
# reduces its share, and a second barrier follows.
WHOLE_BYTES = 1 << 20

_COMBINE: dict[str, Callable[..., Tensor]] = {"sum": torch.add, "max": torch.maximum}


class PeerLostError(RuntimeError):
    """Raised if another rank of the group has exited or timed out."""


class SharedMemory:
    """Memory that the ranks of a group share, with collectives that transfer CPU tensors through it.

    All ranks must call the collectives in the same order, with tensors of the same size. `peers` maps global ranks to
    connected sockets. `file` is the memory, with `BYTES_EACH` bytes per rank. `index` is this rank's index in the
    group. A collective blocks until all ranks have called it, or until `timeout`.

    Raises (each collective):
        PeerLostError: a rank has closed its connections or timed out. The memory cannot be used afterwards. The
            diagnosis of failed runs (supervise/diagnosis) parses its message.
    """

    def __init__(self, peers: Mapping[int, socket.socket], index: int, file: io.FileIO, timeout: timedelta) -> None:
        """Map the memory, and take ownership of `peers` and `file`. Raise OSError if the memory cannot be mapped."""
        self._peers = dict(sorted(peers.items()))
        self._index, self._size = index, len(peers) + 1
        self._timeout_s = timeout.total_seconds()
        for peer in self._peers.values():
            peer.settimeout(None)  # SO_RCVTIMEO instead saves a system call per receive
            seconds, rest = divmod(timeout, timedelta(seconds=1))
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, rest.microseconds))
        self._file, self._end = file, self._size * BYTES_EACH
        memory = mmap.mmap(file.fileno(), self._end)
        self._bytes = torch.frombuffer(memory, dtype=torch.uint8).view(self._size, 2, SLOT_BYTES)
        self._slots: dict[torch.dtype, tuple[Tensor, Tensor]] = {}  # views of even and odd slots, with a row per rank
        self._rounds = 0

    def all_reduce(self, tensor: Tensor, operation: Literal["sum", "max"]) -> Tensor:
        """Replace a contiguous `tensor` by its sum or maximum over the ranks, and return it."""
        combine, flat = _COMBINE[operation], tensor.detach().view(-1)
        for chunk_N in flat.split(SLOT_BYTES // flat.itemsize):
            slots_RN = self._next_slots(flat.dtype)[:, : len(chunk_N)]
            slots_RN[self._index].copy_(chunk_N)
            self.barrier()
            if slots_RN.nbytes <= WHOLE_BYTES:
                _reduce(combine, slots_RN, chunk_N)
                continue
            bounds = [len(chunk_N) * index // self._size for index in range(self._size + 1)]
            shares = list(map(slice, bounds, bounds[1:]))
            own = shares[self._index]
            _reduce(combine, slots_RN[:, own], chunk_N[own])
            slots_RN[self._index, own].copy_(chunk_N[own])  # other ranks read it only after the barrier
            self.barrier()
            for index, share in enumerate(shares):
                if index != self._index:
                    chunk_N[share].copy_(slots_RN[index, share])
        return tensor

    def tensor(self, rows: int, columns: int, dtype: torch.dtype) -> Tensor | None:
        """Return a tensor of zeros that all ranks share. If there is not enough memory, return None on all ranks.

        All ranks must call it with the same arguments. The memory is freed once all ranks have released the tensor.
        """
        share = -(-rows * columns * dtype.itemsize // self._size)
        share += -share % mmap.ALLOCATIONGRANULARITY
        failed, memory = torch.zeros(1), None
        try:
            # Each rank allocates its pages now. A write to a page that cannot be allocated later would raise SIGBUS.
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

    def reduce_scatter(self, output_N: Tensor, shared_RM: Tensor, columns: slice) -> None:
        """Wait for all ranks. Then sum the given columns of `shared_RM` over all rows into `output_N`.

        Row r is rank r's. Ranks may pass different columns. Do not change a row before the next `barrier`.
        """
        self.barrier()
        step = SLOT_BYTES // output_N.itemsize
        for chunk_N, chunk_RN in zip(output_N.split(step), shared_RM[:, columns].split(step, dim=1), strict=True):
            _reduce(torch.add, chunk_RN, chunk_N)

    def all_gather(self, output: Tensor, part: Tensor) -> None:
        """Gather `part` from every rank into `output`, in rank order. Both tensors are contiguous."""
        own = part.detach().view(-1)
        parts_RN = output.detach().view(self._size, len(own))
        step = SLOT_BYTES // own.itemsize
        for chunk_N, chunks_RN in zip(own.split(step), parts_RN.split(step, dim=1), strict=True):
            slots_RN = self._next_slots(own.dtype)[:, : len(chunk_N)]
            slots_RN[self._index].copy_(chunk_N)
            self.barrier()
            chunks_RN.copy_(slots_RN)

    def all_to_all(self, output: Tensor, tensor: Tensor) -> None:
        """Gather this rank's slice of every rank's `tensor` into `output`. Both tensors are contiguous."""
        sent_RN, received_RN = (each.detach().view(self._size, -1) for each in (tensor, output))
        step = SLOT_BYTES // sent_RN.itemsize // self._size
        for sent, received in zip(sent_RN.split(step, dim=1), received_RN.split(step, dim=1), strict=True):
            slots_RN = self._next_slots(sent.dtype)[:, : sent.numel()]
            slots_RN[self._index].view(sent.shape).copy_(sent)
            self.barrier()
            received.copy_(slots_RN.view(self._size, *sent.shape)[:, self._index])

    def close(self) -> None:
        """Close the connections and release the memory. Ranks still inside a collective fail with PeerLostError."""
        for peer in self._peers.values():
            peer.close()
        self._file.close()
        self._slots.clear()
        del self._bytes

    def _next_slots(self, dtype: torch.dtype) -> Tensor:
        """Return the slots of all ranks for the next round as a tensor of `dtype` with one row per rank."""
        if dtype not in self._slots:
            even, odd = self._bytes.view(dtype).unbind(1)
            self._slots[dtype] = even, odd
        self._rounds += 1
        return self._slots[dtype][self._rounds % 2]

    def barrier(self) -> None:
        """Wait until all ranks have called this. Afterwards each rank sees what the others wrote to the memory."""
        for peer in self._peers.values():
            with suppress(ConnectionError):  # reported below, unless the peer has already sent its byte
                peer.send(b"\0", socket.MSG_NOSIGNAL)
        for global_rank, peer in self._peers.items():
            try:
                came = peer.recv(1)
            except BlockingIOError:
                raise PeerLostError(
                    f"shared memory: timed out after {self._timeout_s:g} s waiting for rank {global_rank}"
                ) from None
            except ConnectionError:
                came = b""
            if not came:
                # Lower ranks have arrived, even if they have exited since because of the missing rank.
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
