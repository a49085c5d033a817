"""The groups of ranks that a plan communicates in, each opened once, when it is first asked for.

Ranks may be several copies of a plan: global rank = copy * ranks + rank in the plan. Worked example, 8 ranks as 2 copies of
a plan for 4: what ranks (0, 2) of the plan do, global ranks (0, 2) and (4, 6) do.
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
    """Opens groups. All ranks have to ask for the same ones in the same order."""

    def __init__(
        self,
        global_rank: int,
        world_size: int,
        ranks: int,
        device: torch.device,
        transport: Transport,
        existing: Iterable[Group],
    ) -> None:
        self.ranks, self.copies = ranks, world_size // ranks  # of a plan, and how many of them
        self.copy, self.rank = divmod(global_rank, ranks)
        self._global_rank = global_rank
        self._shares = device.type == "cpu" and transport != "backend"
        self._is_required = transport == "shared_memory"
        self._opened: dict[tuple[int, ...], Group] = {group.ranks: group for group in existing if group.size > 1}
        self._own: list[Group] = []

    def along(self, devices: Sequence[int], axes: Iterable[int], *, over_copies: bool = False) -> Group:
        """Return this rank's group of the ranks of a device matrix that differ along some axes only.

        The group is of this rank's copy of the plan, or of all copies.
        """
        members = next(group for group in groups_along(devices, axes) if self.rank in group)
        assert members == tuple(sorted(members)), "axes are in order, since those that cut a dim are"
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
        """Give memory back that was opened here."""
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
    """Give the groups of plans for so many ranks, of which `existing` ones are open already; torch.distributed is.

    After an error nothing is closed, as in `open_world`.

    Raises:
        RefusedLayoutError: the ranks of a plan do not divide all ranks.
        UsageError: while a group is opened, on all ranks alike, if `transport` is "shared_memory" and its ranks share none.
    """
    if world_size % ranks:
        raise RefusedLayoutError(
            f"{world_size} ranks are no copies of {ranks}", hint=f"a number of ranks that {ranks} divides"
        )
    groups = Groups(global_rank, world_size, ranks, device, transport, existing)
    yield groups
    groups.close()
