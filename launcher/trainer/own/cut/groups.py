"""The process groups in which a sharding plan communicates. Each is opened at first use.

The ranks may form several replicas of a plan: global rank = replica * ranks + rank in the plan. Example with 8 ranks
as 2 replicas of a plan for 4: the plan's group (0, 2) is the groups of global ranks (0, 2) and (4, 6).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack

import torch

from launcher.core.errors import RefusedLayoutError
from launcher.sharding.layout import groups_along
from launcher.trainer.parallel.collectives import Group
from launcher.trainer.parallel.world import Transport, open_group, with_shared_memory


class Groups(AbstractContextManager["Groups"]):
    """The process groups of a sharding plan. All ranks must request the same groups in the same order.

    On exit, this context manager releases the groups' shared memory, except after an error (see `open_world`).
    """

    def __init__(
        self,
        global_rank: int,
        world_size: int,
        ranks: int,
        device: torch.device,
        *,
        transport: Transport = "backend",
        existing: Iterable[Group] = (),
    ) -> None:
        """Prepare the process groups of a plan for `ranks` ranks. Groups in `existing` are reused.

        Raises:
            RefusedLayoutError: the world size is not a multiple of `ranks`.
        """
        if world_size % ranks:
            raise RefusedLayoutError(
                f"the plan needs a multiple of {ranks} ranks, but there are {world_size}",
                hint=f"set the number of ranks to a multiple of {ranks}",
            )
        self.ranks, self.copies = ranks, world_size // ranks  # ranks of a plan, and replicas of the plan
        self.copy, self.rank = divmod(global_rank, ranks)
        self._global_rank = global_rank
        self._shares = device.type == "cpu" and transport != "backend"
        self._is_required = transport == "shared_memory"
        self._opened: dict[tuple[int, ...], Group] = {group.ranks: group for group in existing if group.size > 1}
        self._memories = ExitStack()

    def along(self, devices: Sequence[int], axes: Iterable[int], *, over_copies: bool = False) -> Group:
        """Return this rank's process group along mesh axes. With `over_copies`, the group spans all replicas.

        Raises:
            UsageError: `transport` is "shared_memory", and the ranks cannot share memory. All ranks raise it.
        """
        members = next(group for group in groups_along(devices, axes) if self.rank in group)
        assert members == tuple(sorted(members)), "the axes of a dim are in order"
        copies = range(self.copies) if over_copies else [self.copy]
        ranks = tuple(copy * self.ranks + member for copy in copies for member in members)
        if ranks not in self._opened:
            group = open_group(ranks, self._global_rank)
            if self._shares and group.size > 1:
                group = with_shared_memory({ranks: group}, required=self._is_required)[ranks]
            if group.shared_memory is not None:
                self._memories.callback(group.shared_memory.close)
            self._opened[ranks] = group
        return self._opened[ranks]

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        if kind is None:
            self._memories.close()
