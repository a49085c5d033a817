"""The groups of ranks that a plan communicates in. Each is opened at first use.

The ranks may form several replicas of a plan: global rank = replica * ranks + rank in the plan. Example with 8 ranks
as 2 replicas of a plan for 4: the plan's group (0, 2) is the groups of global ranks (0, 2) and (4, 6).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch

from launcher.core.errors import RefusedLayoutError
from launcher.sharding.layout import groups_along
from launcher.trainer.parallel.collectives import Group
from launcher.trainer.parallel.world import Transport, open_group, with_shared_memory


class Groups:
    """The process groups of a plan, opened at first use. All ranks must request the same groups in the same order."""

    def __init__(
        self,
        global_rank: int,
        world_size: int,
        ranks: int,
        device: torch.device,
        transport: Transport,
        existing: Iterable[Group],
    ) -> None:
        self.ranks, self.copies = ranks, world_size // ranks  # ranks of a plan, and replicas of the plan
        self.copy, self.rank = divmod(global_rank, ranks)
        self._global_rank = global_rank
        self._shares = device.type == "cpu" and transport != "backend"
        self._is_required = transport == "shared_memory"
        self._opened: dict[tuple[int, ...], Group] = {group.ranks: group for group in existing if group.size > 1}
        self._own: list[Group] = []

    def along(self, devices: Sequence[int], axes: Iterable[int], *, over_copies: bool = False) -> Group:
        """Return this rank's group along some axes of the device matrix, in its replica or over all replicas."""
        members = next(group for group in groups_along(devices, axes) if self.rank in group)
        assert members == tuple(sorted(members)), "the axes of a dim are in order"
        copies = range(self.copies) if over_copies else [self.copy]
        return self._group_of(tuple(copy * self.ranks + member for copy in copies for member in members))

    def _group_of(self, ranks: tuple[int, ...]) -> Group:
        group = self._opened.get(ranks)
        if group is None:
            group = open_group(ranks, self._global_rank)
            if self._shares and group.size > 1:
                group = with_shared_memory({ranks: group}, required=self._is_required)[ranks]
            self._opened[ranks] = group
            self._own.append(group)
        return group

    def close(self) -> None:
        """Release the shared memory of the groups that this object opened."""
        for group in self._own:
            if group.shared_memory is not None:
                group.shared_memory.close()


@contextmanager
def open_groups(
    global_rank: int,
    world_size: int,
    *,
    ranks: int,
    device: torch.device,
    transport: Transport = "backend",
    existing: Iterable[Group] = (),
) -> Iterator[Groups]:
    """Provide the groups of a plan for `ranks` ranks; `existing` groups are reused.

    torch.distributed must be initialised.
    After an error nothing is closed, as in `open_world`.

    Raises:
        RefusedLayoutError: the world size is not a multiple of `ranks`.
        UsageError: `transport` is "shared_memory", and the ranks of a group share no memory. All ranks raise it when
            the group is opened.
    """
    if world_size % ranks:
        raise RefusedLayoutError(
            f"{world_size} ranks are not a multiple of the plan's {ranks} ranks",
            hint=f"use a number of ranks that is a multiple of {ranks}",
        )
    groups = Groups(global_rank, world_size, ranks, device, transport, existing)
    yield groups
    groups.close()
