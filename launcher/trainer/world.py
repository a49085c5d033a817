"""This process's place among the ranks: device, coordinates, and one process group per axis."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from launcher.core import env
from launcher.core.errors import RefusedLayoutError, UsageError
from launcher.core.records import Layout
from launcher.mesh.coordinates import Axis, Coordinate, coordinate_of, group_of, rank_at
from launcher.trainer.collectives import ALONE, Group, all_reduce
from launcher.trainer.pipeline import Links

GROUP_TIMEOUT = timedelta(minutes=10)


@dataclass(frozen=True)
class Place:
    """Who this process is, as its environment says. One process alone needs no environment."""

    global_rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    device_id: int | None
    layout: Layout

    @property
    def coordinate(self) -> Coordinate:
        return coordinate_of(self.global_rank, self.layout)


def place_from_environment(environment: Mapping[str, str], *, micro_batches: int) -> Place:
    """Read torchrun's variables and tlaunch's layout; without a layout every rank is a data-parallel copy.

    Raises:
        UsageError: a variable is not a whole number.
        RefusedLayoutError: dp * mp * pp is not the number of ranks.
    """

    def whole(name: str, default: int) -> int:
        text = environment.get(name, "")
        try:
            return int(text) if text else default
        except ValueError:
            raise UsageError(f"the environment variable {name} is {text!r}, which is no whole number") from None

    world_size = whole(env.WORLD_SIZE, 1)
    mp, pp = whole(env.TLAUNCH_MP, 1), whole(env.TLAUNCH_PP, 1)
    layout = Layout(
        dp=whole(env.TLAUNCH_DP, max(1, world_size // (mp * pp))),
        mp=mp,
        pp=pp,
        micro_batches=whole(env.TLAUNCH_MICRO_BATCHES, micro_batches),
    )
    if layout.world_size != world_size:
        raise RefusedLayoutError(f"{layout} needs {layout.world_size} ranks, but {env.WORLD_SIZE} is {world_size}")
    return Place(
        global_rank=whole(env.RANK, 0),
        world_size=world_size,
        local_rank=whole(env.LOCAL_RANK, 0),
        local_world_size=whole(env.LOCAL_WORLD_SIZE, world_size),
        device_id=whole(env.DEVICE_ID, 0) if environment.get(env.DEVICE_ID) else None,
        layout=layout,
    )


def choose_device(place: Place, wanted: str) -> torch.device:
    """The accelerator of this rank where every local rank has one of its own, else the CPU.

    DEVICE_ID counts physical devices; where only some are visible it may be too large, and the local rank is right.
    """
    if wanted == "cpu" or not torch.accelerator.is_available():
        return torch.device("cpu")
    visible = torch.accelerator.device_count()
    if visible < place.local_world_size:
        return torch.device("cpu")
    index = place.local_rank if place.device_id is None or place.device_id >= visible else place.device_id
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is not None, "an accelerator is available"
    torch.accelerator.set_device_index(index)
    return torch.device(accelerator.type, index)


@dataclass(frozen=True)
class World:
    """An open connection to the other ranks."""

    place: Place
    device: torch.device
    dp: Group
    mp: Group
    pp: Group
    links: Links

    @property
    def reporter(self) -> int:
        """The rank that knows the loss and writes it down: the first of the last pipeline stage."""
        layout = self.place.layout
        return rank_at(Coordinate(pp=layout.pp - 1, dp=0, mp=0), layout)

    @property
    def reports(self) -> bool:
        return self.place.global_rank == self.reporter

    def sum_over_all(self, tensor: Tensor) -> Tensor:
        """The sum over every rank, in place, axis by axis: small groups are faster than one large group."""
        for group in (self.mp, self.dp, self.pp):
            all_reduce(tensor, group)
        return tensor

    def share_bytes(self, payload: bytes | None) -> bytes:
        """Rank 0's `payload` on every rank. All must call it."""
        if self.place.world_size == 1:
            assert payload is not None, "rank 0 has the payload"
            return payload
        size = torch.tensor([len(payload or b"")], device=self.device)
        dist.broadcast(size, src=0)
        content = torch.empty(int(size), dtype=torch.uint8, device=self.device)
        if payload:
            content.copy_(torch.frombuffer(bytearray(payload), dtype=torch.uint8))
        dist.broadcast(content, src=0)
        return content.cpu().numpy().tobytes()


@contextmanager
def open_world(place: Place, device: torch.device) -> Iterator[World]:
    """Join the other ranks; leave them in order at the end. Blocks until all have come."""
    if place.world_size == 1:
        yield World(place, device, dp=ALONE, mp=ALONE, pp=ALONE, links=Links())
        return
    dist.init_process_group(
        dist.get_default_backend_for_device(device),
        rank=place.global_rank,
        world_size=place.world_size,
        timeout=GROUP_TIMEOUT,
        device_id=None if device.type == "cpu" else device,
    )
    try:
        groups = {axis: _open_group(place, axis) for axis in ("mp", "dp", "pp")}
        links = _open_links(groups["pp"])
        links.shake_hands(device)
        yield World(place, device, **groups, links=links)
        dist.barrier()  # nobody closes connections that a slower rank still reads from
    finally:
        dist.destroy_process_group()


def _open_group(place: Place, axis: Axis) -> Group:
    ranks = group_of(place.global_rank, axis, place.layout)
    handle = _new_process_group(ranks) if len(ranks) > 1 else None
    return Group(ranks=ranks, index=ranks.index(place.global_rank), handle=handle)


def _new_process_group(ranks: tuple[int, ...]) -> dist.ProcessGroup:
    # Only the members create the group: the others need not wait for it.
    group = dist.new_group(list(ranks), timeout=GROUP_TIMEOUT, use_local_synchronization=True)
    assert isinstance(group, dist.ProcessGroup), "only members ask for a group"
    return group


def _open_links(pp: Group) -> Links:
    if pp.size == 1:
        return Links()
    return Links(
        previous=pp.ranks[pp.index - 1] if pp.index > 0 else None,
        following=pp.ranks[pp.index + 1] if pp.index < pp.size - 1 else None,
        forward_group=_new_process_group(pp.ranks),
        backward_group=_new_process_group(pp.ranks),
    )


def this_place(*, micro_batches: int) -> Place:
    return place_from_environment(os.environ, micro_batches=micro_batches)
