"""Opens the process groups of a rank, one per axis of the layout, and exchanges data with all ranks."""

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
ROUND_S = 30.0  # time between two collectives of ranks that wait for other ranks' work
DONE, BUSY, FAILED = range(3)  # the rank is added to FAILED

Key = TypeVar("Key")
Transport = Literal["auto", "backend", "shared_memory"]
_HINT_TRANSPORT = "set `parallel.transport = auto` to use shared memory only if it is available"


@frozen
class World:
    place: Place
    device: torch.device
    dp: Group
    mp: Group
    pp: Group
    links: Links

    @property
    def is_first(self) -> bool:
        """True on rank 0, which prints and writes for all ranks."""
        return self.place.global_rank == 0

    def sum_over_all(self, tensor: Tensor) -> Tensor:
        """Sum `tensor` over all ranks in place, one layout axis at a time because that is faster, and return it."""
        for group in (self.mp, self.dp, self.pp):
            all_reduce(tensor, group)
        return tensor

    def from_rank_0(self, make: Callable[[], bytes]) -> bytes:
        """Call `make` on rank 0, and return its result on every rank. All ranks must call it.

        Raises:
            TlaunchError: on every rank, if `make` raises it on rank 0 (or an OSError, which becomes UnreadableError).
                So no rank is left waiting, and every rank ends with the same message and exit code.
        """
        payload, failure = b"", None
        if self.place.global_rank == 0:
            try:
                payload = make()
            except (TlaunchError, OSError) as error:
                failure = _as_tlaunch_error(error)
        if self.place.world_size > 1:
            payload = self._shared(payload)
            failure = self._shared_failure(failure)
        if failure is not None:
            raise failure
        return payload

    def while_others_wait(self, work: Callable[[], object] | None) -> None:
        """Run `work` on each rank where it is not None, while the other ranks wait without a time limit.

        All ranks must call it; None only waits.

        `work` runs in a thread, and must send its own heartbeats. Meanwhile the ranks run short collectives, since
        one long collective would fail after `GROUP_TIMEOUT`.

        Raises:
            TlaunchError: on every rank, if it is raised on any rank. See `from_rank_0`.
        """
        if self.place.world_size == 1:
            try:
                if work is not None:
                    work()
            except OSError as error:
                raise _as_tlaunch_error(error) from error
            return
        errors: list[BaseException] = []

        def run() -> None:
            try:
                if work is not None:
                    work()
            except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
                errors.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        failure, highest = None, BUSY
        while highest == BUSY:
            thread.join(ROUND_S)
            state = BUSY if thread.is_alive() else DONE
            if errors:
                failure, state = _as_tlaunch_error(errors[0]), FAILED + self.place.global_rank
            states = torch.tensor([float(state)], device=self.device)  # every backend supports MAX for this type
            wait_for_long(dist.all_reduce(states, dist.ReduceOp.MAX, async_op=True))
            highest = int(states)
        if highest >= FAILED:
            failure = self._shared_failure(failure, highest - FAILED)
            assert failure is not None, "that rank has reported a failure"
            raise failure

    def check_equal(
        self, content: bytes | None, what: str, *, hint: str = "copy the same files to every server"
    ) -> bytes:
        """Check that every rank has the same `content` as rank 0, and return that content. All ranks must call it.

        A rank that passes None is not checked. `what` names the content in the message.

        Raises:
            UsageError: on every rank, if any rank's content differs.
        """
        expected = self.from_rank_0(lambda: content or b"")
        differs = float(content is not None and content != expected)
        count = int(self.sum_over_all(torch.full((1,), differs, device=self.device)))
        if count:
            raise UsageError(f"{what} of {count} of {self.place.world_size} ranks differs from rank 0's", hint=hint)
        return expected

    def _shared_failure(self, failure: TlaunchError | None, src: int = 0) -> TlaunchError | None:
        fields = None if failure is None else [type(failure).__name__, failure.message, failure.hint]
        shared = json.loads(self._shared(json.dumps(fields).encode(), src))
        if shared is None:
            return None
        name, message, hint = shared
        kinds = {kind.__name__: kind for kind in (UsageError, UnreadableError, RefusedLayoutError)}
        return kinds.get(name, TlaunchError)(message, hint=hint)

    def _shared(self, payload: bytes, src: int = 0) -> bytes:
        """Broadcast `payload` from rank `src`, and return it on every rank."""
        size = torch.tensor([len(payload)], device=self.device)
        wait_for_long(dist.broadcast(size, src=src, async_op=True))  # rank `src` may still be computing the payload
        content = torch.zeros(int(size) + 1, dtype=torch.uint8, device=self.device)  # never empty
        if self.place.global_rank == src:
            payload += b"\0"
            content.copy_(torch.frombuffer(bytearray(payload), dtype=torch.uint8))
        dist.broadcast(content, src=src)
        return content.cpu().numpy().tobytes()[:-1]


@contextmanager
def open_world(place: Place, device: torch.device, transport: Transport = "backend") -> Iterator[World]:
    """Open this rank's process groups, and close them on exit. Blocks until all ranks have joined.

    `transport` carries the collectives of a group: "backend", "shared_memory", or "auto", which uses shared memory if
    all ranks of the group are on the CPU of one host.

    After an error nothing is closed, because peers could then fail and exit before this rank reports its error.

    Raises:
        UsageError: on all ranks, if `transport` is "shared_memory" and the ranks of a group cannot share memory.
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
    world = opened_groups(place, device, transport)
    yield world
    # A slower rank may still read from the connections, and rank 0 may still save the model.
    wait_for_long(dist.barrier(async_op=True))
    for group in (world.dp, world.mp, world.pp):
        if group.shared_memory is not None:
            group.shared_memory.close()
    dist.destroy_process_group()


def opened_groups(place: Place, device: torch.device, transport: Transport) -> World:
    """Open a group for each axis, and the pipeline's connections. torch.distributed must be initialized."""
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
    return World(place, device, **groups, links=links)


_openings = count()
_stores: dict[tuple[str, ...], Any] = {}  # torch does not export the type of its stores


def _store_of_opening(place: Place) -> Any:
    """Return a view of the rendezvous store. Each call of `open_world` uses a view with a different key prefix.

    All calls use one store. Otherwise a rank could open its next world while rank 0 still closes the last one, and read
    the old addresses on the same port. All ranks must open worlds in the same order.
    """
    where = tuple(os.environ.get(name, "") for name in (env.MASTER_ADDR, env.MASTER_PORT, env.RANK, env.WORLD_SIZE))
    if where not in _stores:
        _stores[where], _, _ = next(rendezvous("env://", place.global_rank, place.world_size, timeout=GROUP_TIMEOUT))
    return dist.PrefixStore(  # type: ignore[attr-defined]  # torch does not export it either
        f"world {next(_openings)}", _stores[where]
    )


def open_group(ranks: tuple[int, ...], global_rank: int) -> Group:
    """Open a process group of `ranks`, including this rank. All ranks must open their groups in the same order."""
    handle = _new_process_group(ranks) if len(ranks) > 1 else None
    return Group(ranks=ranks, index=ranks.index(global_rank), handle=handle)


def linked_around(world: World, chunks: int) -> Links:
    """Return this stage's pipeline links, given `chunks` chunks of layers per stage. All ranks must call it.

    With several chunks, the last and the first stage are also linked. That link has separate process groups, because
    with two stages both links connect the same two ranks.
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
    """Open shared memory for each group whose ranks can share memory. Return all groups, also the unchanged ones.

    The first rank of an unchanged group prints the reason. All ranks must call it, with groups under the same keys.

    Raises:
        UsageError: on all ranks, if shared memory is `required` and the ranks of a group cannot share memory.
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
            reasons.append(f"ranks {', '.join(map(str, group.ranks))} cannot share memory: {error}")
            if group.index == 0 and not required:
                print(f"{reasons[-1]}; using {dist.get_backend(group.handle)}", flush=True)
    if required:
        refused = torch.tensor(len(reasons))
        dist.all_reduce(refused)
        if refused:
            reason = reasons[0] if reasons else "other ranks cannot share memory"
            raise UsageError(f"parallel.transport is shared_memory, but {reason}", hint=_HINT_TRANSPORT)
    return opened


def _new_process_group(ranks: tuple[int, ...]) -> dist.ProcessGroup:
    # Only members create the group. This is safe even if groups are split off a parent communicator: every rank is in
    # exactly one group per axis, and all ranks create their groups in the same order of axes.
    group = dist.new_group(list(ranks), timeout=GROUP_TIMEOUT, use_local_synchronization=True)
    assert isinstance(group, dist.ProcessGroup), "only members ask for a group"
    return group


def _as_tlaunch_error(error: BaseException) -> TlaunchError:
    """Convert an OSError to a TlaunchError. Return a TlaunchError unchanged, and raise any other error."""
    if isinstance(error, TlaunchError):
        return error
    if not isinstance(error, OSError):
        raise error
    return UnreadableError(f"{error.filename}: {error.strerror}" if error.filename else str(error))
