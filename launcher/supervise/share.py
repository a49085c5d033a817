"""The part of a run on one server."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from launcher.core.frozen import frozen
from launcher.core.records import DeviceAssignment, RankSpec, RunSpec
from launcher.supervise.port import HeldPort

# Returns the spec of an elastic run's attempt, and the files that it needs in the run directory, by name.
SpecifyAttempt = Callable[[DeviceAssignment, int], tuple[RunSpec, Mapping[str, str]]]


@frozen
class ServerShare:
    """The part of a run that one agent carries out."""

    spec: RunSpec
    ranks: tuple[RankSpec, ...]  # on this server
    inherited: Mapping[str, str]  # the environment that variables of ranks override
    server_index: int
    port: HeldPort  # of the first attempt
    specify: SpecifyAttempt | None = None  # in an elastic run
