"""The open connection to the other ranks: one process group per axis, and what all of them exchange."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from launcher.core import env
from launcher.core.errors import RefusedLayoutError, TlaunchError, UnreadableError, UsageError
from launcher.core.frozen import frozen
from launcher.mesh.coordinates import AXES, group_of
from launcher.trainer.parallel.collectives import ALONE, Group, all_reduce
from launcher.trainer.parallel.one_host import NotSharedError, share_memory
from launcher.trainer.parallel.pipeline import Link, Links, meet
from launcher.trainer.parallel.place import Place
from launcher.trainer.telemetry.heartbeat import wait_for_long

GROUP_TIMEOUT = timedelta(minutes=10)
ROUND_S = 30.0  # after which ranks meet that wait for others' work
DONE, BUSY, FAILED = range(3)  # the rank is added to the last

Key = TypeVar("Key")
Transport = Literal["auto", "backend", "shared_memory"]
_HINT_TRANSPORT = "parallel.transport = auto takes shared memory only where all ranks of a group have it"


@frozen
class World:
    """An open connection to the other ranks."""

    place: Place
    device: torch.device
    dp: Group
    mp: Group
    pp: Group
    links: Links

    @property
    def is_first(self) -> bool:
        """True for the one rank that prints and writes for all."""
        return self.place.global_rank == 0

    def sum_over_all(self, tensor: Tensor) -> Tensor:
        """Reduce `tensor` to the sum over every rank, in place, axis by axis: small groups are faster than one large group."""
        for group in (self.mp, self.dp, self.pp):
            all_reduce(tensor, group)
        return tensor

    def from_rank_0(self, make: Callable[[], bytes]) -> bytes:
        """Return on every rank what `make` returns on rank 0. All must call it.

        Raises:
            TlaunchError: on every rank alike, when it is raised on rank 0 (or an OSError is, as UnreadableError). So
                no rank is left waiting, and every rank ends with the same message and exit code.
        """
        payload, failure = b"", None
        if self.place.global_rank == 0:
            try:
                payload = make()
            except (TlaunchError, OSError) as error:
                failure = _as_told(error)
        if self.place.world_size > 1:
            payload = self._shared(payload)
            failure = self._shared_failure(failure)
        if failure is not None:
            raise failure
        return payload

    def while_others_wait(self, work: Callable[[], object] | None) -> None:
        """Call `work` on the ranks that have some, while all others wait, however long that takes. All must call it.

        Ranks meet from time to time, since a collective that takes longer than `GROUP_TIMEOUT` fails; that is why
        `work` runs in a thread. It says itself that it is getting on.

        Raises:
            TlaunchError: on every rank alike, when it is raised on any: as `from_rank_0`.
        """
        if self.place.world_size == 1:
            try:
                if work is not None:
                    work()
            except OSError as error:
                raise _as_told(error) from error
            return
        at_work = _Background(work) if work else None
        while True:
            state = at_work.state_within(ROUND_S) if at_work else DONE
            if at_work and at_work.failure:
                state = FAILED + self.place.global_rank
            states = torch.tensor([float(state)], device=self.device)  # a type that every backend compares
            wait_for_long(dist.all_reduce(states, dist.ReduceOp.MAX, async_op=True))
            if (highest := int(states)) != BUSY:
                break
        if highest >= FAILED:
            failure = self._shared_failure(at_work.failure if at_work else None, highest - FAILED)
            assert failure is not None, "that rank has said so"
            raise failure

    def check_equal(
        self, content: bytes | None, what: str, *, hint: str = "copy the same files to every server"
    ) -> bytes:
        """Every rank that brings a `content` must bring the same as rank 0. Return it on all ranks; all must call it.

        Raises:
            UsageError: on every rank alike, when some rank's differs.
        """
        expected = self.from_rank_0(lambda: content or b"")
        differs = float(content is not None and content != expected)
        count = int(self.sum_over_all(torch.full((1,), differs, device=self.device)))
        if count:
            raise UsageError(
                f"{what} of {count} of {self.place.world_size} ranks differs from that of rank 0", hint=hint
            )
        return expected

    def _shared_failure(self, failure: TlaunchError | None, src: int = 0) -> TlaunchError | None:
        """Rank `src`'s `failure` on every rank."""
        fields = None if failure is None else [type(failure).__name__, failure.message, failure.hint]
        return _failure_of(self._shared(json.dumps(fields).encode(), src))

    def _shared(self, payload: bytes, src: int = 0) -> bytes:
        """Rank `src`'s `payload` on every rank."""
        size = torch.tensor([len(payload)], device=self.device)
        wait_for_long(dist.broadcast(size, src=src, async_op=True))  # that rank first makes what it sends
        content = torch.zeros(int(size) + 1, dtype=torch.uint8, device=self.device)  # never empty
        if self.place.global_rank == src:
            payload += b"\0"
            content.copy_(torch.frombuffer(bytearray(payload), dtype=torch.uint8))
        dist.broadcast(content, src=src)
        return content.cpu().numpy().tobytes()[:-1]


@contextmanager
def open_world(place: Place, device: torch.device, transport: Transport = "backend") -> Iterator[World]:
    """Join the other ranks; leave them in order at the end. Blocks until all have come.

    `transport` says what carries the collectives of a group: the backend, memory that its ranks share, or ("auto") the
    latter where all of them are on the CPU of one host.

    After an error nothing is closed here: peers would see it, and could end before this rank has said what happened.

    Raises:
        UsageError: on all ranks alike, if `transport` is "shared_memory" and the ranks of some group cannot share any.
    """
    if transport == "shared_memory" and device.type != "cpu":
        raise UsageError(f"parallel.transport is shared_memory, but the device is {device}", hint=_HINT_TRANSPORT)
    if place.world_size == 1:
        yield World(place, device, dp=ALONE, mp=ALONE, pp=ALONE, links=Links())
        return
    dist.init_process_group(
        dist.get_default_backend_for_device(device),
        store=_store_of_opening(place),
        rank=place.global_rank,
        world_size=place.world_size,
        timeout=GROUP_TIMEOUT,
        device_id=None if device.type == "cpu" else device,
    )
    groups = {axis: open_group(group_of(place.global_rank, axis, place.layout), place.global_rank) for axis in AXES}
    if device.type == "cpu" and transport != "backend":
        groups = with_shared_memory(groups, required=transport == "shared_memory")
    links, pp = Links(), groups["pp"]
    if pp.size > 1:
        groups_of_link = _new_process_group(pp.ranks), _new_process_group(pp.ranks)
        links = Links(
            previous=Link(pp.ranks[pp.index - 1], *groups_of_link) if pp.index > 0 else None,
            following=Link(pp.ranks[pp.index + 1], *groups_of_link) if pp.index < pp.size - 1 else None,
        )
    links.shake_hands(device)
    yield World(place, device, **groups, links=links)
    # Nobody closes connections that a slower rank still reads from, and rank 0 may still save the model.
    wait_for_long(dist.barrier(async_op=True))
    for group in groups.values():
        if group.shared_memory is not None:
            group.shared_memory.close()
    dist.destroy_process_group()


_openings = count()
_stores: dict[tuple[str, ...], Any] = {}  # torch's, whose type it does not export


def _store_of_opening(place: Place) -> Any:
    """Return what ranks find each other by, with keys of this opening alone.

    The store is that of the whole life of this process: a rank that opens its next world while rank 0 still closes the last one
    would else find that one's addresses on the same port. All ranks open their worlds in the same order.
    """
    where = tuple(os.environ.get(name, "") for name in (env.MASTER_ADDR, env.MASTER_PORT, env.RANK, env.WORLD_SIZE))
    if where not in _stores:
        _stores[where], _, _ = next(rendezvous("env://", place.global_rank, place.world_size, timeout=GROUP_TIMEOUT))
    return dist.PrefixStore(  # type: ignore[attr-defined]  # the same
        f"world {next(_openings)}", _stores[where]
    )


def open_group(ranks: tuple[int, ...], global_rank: int) -> Group:
    """Open a process group of some ranks, of which this is one. All ranks have to open theirs in the same order."""
    handle = _new_process_group(ranks) if len(ranks) > 1 else None
    return Group(ranks=ranks, index=ranks.index(global_rank), handle=handle)


def linked_around(world: World, chunks: int) -> Links:
    """Return the links of a pipeline whose stages hold so many chunks of layers. All ranks must call it.

    With several, the last stage has a link to the first one, too, with process groups of its own: where there are two stages,
    messages of both links are on their way between the same two ranks.
    """
    pp = world.pp
    if chunks == 1 or pp.size == 1:
        return world.links
    groups_of_link = _new_process_group(pp.ranks), _new_process_group(pp.ranks)
    is_last = pp.index == pp.size - 1
    around = Link(pp.ranks[0 if is_last else -1], *groups_of_link) if is_last or pp.index == 0 else None
    if around is not None:
        meet(around, torch.zeros(1, device=world.device), speaks=is_last)
    return replace(world.links, chunks=chunks, around=around)


def with_shared_memory(groups: Mapping[Key, Group], *, required: bool) -> dict[Key, Group]:
    """Return the groups with shared memory wherever it can be had; a group without it says why in one line.

    All ranks must call it, with groups under the same keys.

    Raises:
        UsageError: on all ranks alike, if it is `required` and the ranks of some group cannot share any.
    """
    opened, reasons = {}, []
    for key, group in groups.items():
        opened[key] = group
        if group.handle is None:
            continue
        try:
            memory = share_memory(group.ranks, group.index, group.handle, GROUP_TIMEOUT)
            opened[key] = replace(group, shared_memory=memory)
        except NotSharedError as error:
            reasons.append(f"ranks {', '.join(map(str, group.ranks))} share no memory: {error}")
            if group.index == 0 and not required:
                print(f"{reasons[-1]}; {dist.get_backend(group.handle)} serves", flush=True)
    if required:
        refused = torch.tensor(len(reasons))
        dist.all_reduce(refused)
        if refused:
            reason = reasons[0] if reasons else "other ranks share no memory"
            raise UsageError(f"parallel.transport is shared_memory, but {reason}", hint=_HINT_TRANSPORT)
    return opened


def _new_process_group(ranks: tuple[int, ...]) -> dist.ProcessGroup:
    # Only the members create the group. That is safe, also where groups are split off a parent communicator, since
    # every rank is in exactly one group per axis and all create theirs in the same order of axes.
    group = dist.new_group(list(ranks), timeout=GROUP_TIMEOUT, use_local_synchronization=True)
    assert isinstance(group, dist.ProcessGroup), "only members ask for a group"
    return group


class _Background:
    """Work in a thread that ends with this process at the latest."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            self._error = error

    def state_within(self, seconds: float) -> int:
        """Wait for the end at most that long; return BUSY or DONE.

        Raises:
            Exception: whatever `work` has raised that no person can mend.
        """
        self._thread.join(seconds)
        state = BUSY if self._thread.is_alive() else DONE
        if self._error is not None and self.failure is None:
            raise self._error
        return state

    @property
    def failure(self) -> TlaunchError | None:
        """The error that `work` has raised, if a person can mend it."""
        return _as_told(self._error) if isinstance(self._error, TlaunchError | OSError) else None


def _as_told(error: TlaunchError | OSError) -> TlaunchError:
    if isinstance(error, TlaunchError):
        return error
    return UnreadableError(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def _failure_of(sent: bytes) -> TlaunchError | None:
    fields = json.loads(sent)
    if fields is None:
        return None
    name, message, hint = fields
    kinds = {kind.__name__: kind for kind in (UsageError, UnreadableError, RefusedLayoutError)}
    return kinds.get(name, TlaunchError)(message, hint=hint)
