"""Ranks of one server in the place of processes that an engine started: what the agent does about these processes.

It gives each rank the identity of its member, and lets all members end together when the run is over on all servers:
an engine may kill every other process of its job as soon as one of them has ended. A member that is killed before means
that a rank called MPI_Abort, which its own end tells soon; or the engine itself was ended, and then so is the run.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace

from launcher.core.events import Trouble
from launcher.core.records import RankSpec
from launcher.core.text import ranges
from launcher.supervise.event_log import EventLog
from launcher.supervise.mpi_proxy import Left, MpiProxies, Refused

ABORT_PATIENCE_S = 2.0  # for a rank that called MPI_Abort to end, after its engine has begun to end all others


class ProxyControl:
    """The agent's part in `members`, none of which is missing any more. Nothing here blocks."""

    def __init__(self, members: MpiProxies, ranks: Iterable[RankSpec], inherited: Mapping[str, str]) -> None:
        self._members = members
        self.ranks = tuple(
            replace(rank, env={**_differences(members.environment_of(rank.global_rank), inherited), **rank.env})
            for rank in ranks
        )
        self.descriptors = {rank.global_rank: members.descriptors_of(rank.global_rank) for rank in self.ranks}
        self._left: set[int] = set()
        self._deadline: float | None = None  # monotonic: no rank's failure will explain by then why members left

    def fileno(self) -> int:
        """Readable when something has come: then call `step`."""
        return self._members.fileno()

    @property
    def timeout_s(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def step(self, event_log: EventLog) -> None:
        for told in self._members.step():
            if isinstance(told, Left):
                self._left.add(told.global_rank)
                self._deadline = self._deadline or time.monotonic() + ABORT_PATIENCE_S
            elif isinstance(told, Refused):
                event_log.record(Trouble(told.reason))

    def engine_gone(self) -> str | None:
        """Return what to report once the engine has killed proxies and enough time has passed. Returned once, else None."""
        if self._deadline is None or time.monotonic() < self._deadline:
            return None
        self._deadline = None
        what = "process" if len(self._left) == 1 else "processes"
        return f"the engine has ended its {what} of rank{'s' * (len(self._left) > 1)} {ranges(self._left)}"

    def release(self) -> None:
        """Let all members end well: how ranks have ended is nothing for the engine. Nothing else is called afterwards."""
        for rank in self.ranks:
            self._members.tell_end(rank.global_rank, 0)
        self._members.close()


def _differences(environment: Mapping[str, str], inherited: Mapping[str, str]) -> dict[str, str | None]:
    """Return the variables that turn `inherited` into `environment`; None removes one."""
    added = {name: value for name, value in environment.items() if inherited.get(name) != value}
    return {**added, **dict.fromkeys(inherited.keys() - environment.keys())}
