"""The part of a run that falls to one server."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from launcher.core.frozen import frozen
from launcher.core.records import DeviceAssignment, RankSpec, RunSpec
from launcher.supervise.port import HeldPort

# Gives the spec of an attempt of an elastic run, and the files that it needs in the run directory, by name.
SpecifyAttempt = Callable[[DeviceAssignment, int], tuple[RunSpec, Mapping[str, str]]]


@frozen
class ServerShare:
    """The part of a run that one agent has to do."""

    spec: RunSpec
    ranks: tuple[RankSpec, ...]  # of this server
    inherited: Mapping[str, str]  # the environment that the variables of ranks are laid over
    server_index: int
    port: HeldPort  # of the first attempt
    specify: SpecifyAttempt | None = None  # of an elastic run
