"""Variables left in the environment by other launchers that would mislead a rank. Pure.

A rank's libraries read its identity from the environment: torch reads RANK, MindSpore MS_NODE_ID, mpi4py PMIX_RANK,
Lightning SLURM_PROCID. Values from another launcher (the job around tlaunch, or an earlier one in the same shell)
describe another process. Variables that only tune something are never changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from fnmatch import fnmatchcase
from functools import cached_property

from launcher.core import env
from launcher.core.frozen import frozen
from launcher.core.text import counted, some_of
from launcher.engines.variables import VISIBLE_DEVICES, Origin, Variable
from launcher.logs.terminal import escaped
from launcher.preload.masking import masked

SHOWN = 4  # names shown with their values in a note; the rest are counted
MAX_VALUE = 40  # characters of a value in a note


class Fate(str, Enum):
    REPLACED = "replaced"  # a rank gets this run's value
    REMOVED = "taken away"
    KEPT = "kept"


@frozen
class Found:
    name: str
    shown: str  # its value for display: masked, on one line, shortened
    fate: Fate


@frozen
class Conflict:
    family: str  # the launcher: "torchrun", "Slurm", ...
    found: tuple[Found, ...]  # Invariant: not empty
    danger: str  # the consequence in a rank that reads it: a sentence without a full stop


@frozen
class _Family:
    name: str
    names: tuple[str, ...]  # * is a wildcard; in the order of the note
    danger: str
    signs: tuple[str, ...] = ()  # if none of these is set, the others do not identify a process
    of_engine: bool = False  # a rank started by this launcher needs them, for MPI_Init for instance

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(f"({name.replace('*', '.*')})" for name in self.names))

    def place(self, name: str) -> int:
        """Return the position of `name` in `names`, counted from 1, or 0 if it is missing."""
        match = self._pattern.fullmatch(name)
        return match.lastindex or 0 if match else 0


# TORCHELASTIC_USE_AGENT_STORE keeps rank 0 from creating a store. PET_*: torchrun's own options for the place and
# number of ranks.
_TORCHRUN = _Family(
    "torchrun",
    (
        env.RANK, env.WORLD_SIZE, env.LOCAL_RANK, env.LOCAL_WORLD_SIZE, env.GROUP_RANK, env.GROUP_WORLD_SIZE,
        env.MASTER_ADDR, env.MASTER_PORT, env.TORCHELASTIC_RUN_ID, "TORCHELASTIC_USE_AGENT_STORE",
        "TORCHELASTIC_ERROR_FILE", env.TORCHELASTIC_RESTART_COUNT, env.TORCHELASTIC_MAX_RESTARTS, "ROLE_RANK",
        "ROLE_NAME", "ROLE_WORLD_SIZE", "PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR",
        "PET_MASTER_PORT", "PET_LOCAL_ADDR", "PET_STANDALONE", "PET_RDZV_*",
    ),
    "a rank would take itself for a rank of another job, and wait for that job's store",
)  # fmt: skip
_MINDSPORE = _Family(
    "MindSpore, msrun",
    (
        env.RANK_ID, env.RANK_SIZE, env.DEVICE_ID, env.RANK_TABLE_FILE, "MINDSPORE_HCCL_CONFIG_PATH", "MS_ROLE",
        "MS_SCHED_HOST", "MS_SCHED_PORT", "MS_WORKER_NUM", "MS_SERVER_NUM", "MS_NODE_ID", "MS_WORKER_IP",
    ),
    "a rank would read another run's devices, or register with a scheduler that does not expect it",
)  # fmt: skip
_FAMILIES = (
    _TORCHRUN,
    _MINDSPORE,
    _Family(
        "mpirun",
        (
            "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_*", "OMPI_UNIVERSE_SIZE",
            "OMPI_APP_CTX_NUM_PROCS", "OMPI_NUM_APP_CTX", "OMPI_FIRST_RANKS", "OMPI_FILE_LOCATION", "OMPI_MCA_ess",
            "OMPI_MCA_ess_base_*", "OMPI_MCA_orte_hnp_uri", "OMPI_MCA_orte_local_daemon_uri", "PMIX_RANK",
            "PMIX_NAMESPACE", "PMIX_ID", "PMIX_SERVER_*", "PMI_RANK", "PMI_SIZE", "PMI_ID", "PMI_FD", "PMI_PORT",
            "PMI_SPAWNED", "PMI_APPNUM", "PMI_UNIVERSE_SIZE", "PMI_JOBID", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE",
            "PMI_CONTROL_PORT", "PMI_SHARED_SECRET", "PMI2_RANK", "PMI2_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
            "MV2_COMM_WORLD_*", "PALS_RANKID", "PALS_LOCAL_RANKID", "PALS_NODEID", "PALS_APID",
        ),
        "every rank would join the enclosing MPI job, all with the same number",
        of_engine=True,
    ),
    _Family(
        "srun",
        (
            "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE",
            "SLURM_TASKS_PER_NODE", "SLURM_GTIDS", "SLURM_TASK_PID", "SLURM_STEP_ID", "SLURM_STEPID",
            "SLURM_STEP_NUM_*", "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NODELIST", "SLURM_STEP_LAUNCHER_PORT",
            "SLURM_SRUN_COMM_*", "SLURM_LAUNCH_NODE_IPADDR", "SLURM_HOSTFILE", "SLURM_DISTRIBUTION", "SLURM_CPU_BIND",
            "SLURM_CPU_BIND_*", "SRUN_DEBUG",
        ),
        "a library that asks Slurm would give every rank the same number",
        signs=("SLURM_PROCID", "SLURM_STEP_ID", "SLURM_STEPID"),  # a job without a step does not identify a task
        of_engine=True,
    ),
)  # fmt: skip


@frozen
class Leftovers:
    names: tuple[str, ...]  # * is a wildcard
    signs: tuple[str, ...]  # if none of these is set, the others do not identify a process; empty: always remove


def leftovers() -> Iterator[Leftovers]:
    """Yield other launchers' variables that ranks must not inherit. Variables that are always removed come first."""
    always = tuple(name for family in _FAMILIES if not family.signs for name in family.names)
    for names, signs in ((always, ()), *((family.names, family.signs) for family in _FAMILIES if family.signs)):
        # A name that a pattern covers is left out.
        wide = [name for name in names if "*" in name]
        kept = (name for name in names if not any(name != other and fnmatchcase(name, other) for other in wide))
        yield Leftovers(tuple(kept), signs)


def conflicts(
    environment: Mapping[str, str], decided: Mapping[str, str | None], *, within_engine: bool = False
) -> tuple[Conflict, ...]:
    """Return the variables in `environment` that would mislead a rank, grouped by the launcher that sets them.

    `decided`: the values that tlaunch sets for one rank or for all; None removes a variable. Other launchers' variables
    that `decided` lacks are removed, too. A variable that has the decided value already is not a conflict.
    `within_engine`: ranks are processes of the enclosing mpirun or srun, whose variables are correct for them.
    """
    families = (family for family in _FAMILIES if not (within_engine and family.of_engine))
    met = (_met(family, environment, decided) for family in families)
    narrow = (_narrow(name, environment, decided) for name in VISIBLE_DEVICES)
    return tuple(conflict for conflict in (*met, *narrow) if conflict)


def notes(found: Iterable[Conflict]) -> Iterator[str]:
    for conflict in found:
        kept, replaced, removed = (
            [one for one in conflict.found if one.fate is fate] for fate in (Fate.KEPT, Fate.REPLACED, Fate.REMOVED)
        )
        origin = f"from the environment ({conflict.family}?) "
        parts = []
        if kept:
            parts.append(f"warning: {_listed(kept)}: {conflict.danger}")
        if replaced:
            parts.append(f"{_listed(replaced)} {origin}{_are(replaced)} replaced")
        if removed:
            where = "" if replaced else origin
            back = f"use --env to keep {'it' if len(removed) == 1 else 'one'}"
            if [one.name for one in removed] == [env.RANK_TABLE_FILE]:
                back = "to use a table, give --rank-table"  # even if this file is missing or is not a table
            parts.append(f"{_listed(removed)} {where}{_are(removed)} removed for ranks ({back})")
        yield "; ".join(parts)


def _met(family: _Family, environment: Mapping[str, str], decided: Mapping[str, str | None]) -> Conflict | None:
    if family.signs and not any(sign in environment for sign in family.signs):
        return None
    places = {name: family.place(name) for name in environment}
    names = sorted(
        (name for name, place in places.items() if place and environment[name] != decided.get(name)),
        key=lambda name: (places[name], name),
    )
    found = tuple(
        Found(name, _shown(name, environment[name]), Fate.REMOVED if decided.get(name) is None else Fate.REPLACED)
        for name in names
    )
    # A rank that starts tlaunch inherits from it what others inherit from torchrun.
    is_ours = env.TLAUNCH_RUN_ID in environment and family in {_TORCHRUN, _MINDSPORE}
    return Conflict("another tlaunch run" if is_ours else family.name, found, family.danger) if found else None


def _narrow(name: str, environment: Mapping[str, str], decided: Mapping[str, str | None]) -> Conflict | None:
    """Return a conflict if the variable makes some devices visible, but fewer than the ranks need."""
    value = decided[name] if name in decided else environment.get(name)
    visible = [word for word in (value or "").split(",") if word.strip() not in {"", "-1", "NoDevFiles"}]
    rank_count = int(decided.get(env.LOCAL_WORLD_SIZE) or 1)
    if value is None or not 0 < len(visible) < rank_count:
        return None
    danger = f"{rank_count} ranks would need a device each, but only {counted(len(visible), 'device')} can be used"
    return Conflict(name, (Found(name, _shown(name, value), Fate.KEPT),), danger)


def _listed(found: list[Found]) -> str:
    return some_of([f"{one.name}={one.shown}" for one in found], SHOWN)


def _are(found: list[Found]) -> str:
    return "is" if len(found) == 1 else "are"


def _shown(name: str, value: str) -> str:
    shown = escaped(masked(name, value))
    return shown if len(shown) <= MAX_VALUE else shown[: MAX_VALUE - 3] + "..."


def removed_variables(
    inherited: Mapping[str, str], decided: Iterable[Variable], *, within_engine: bool = False
) -> Iterator[Variable]:
    """Yield the variables of other launchers that are removed for all ranks, because tlaunch does not set them."""
    for conflict in conflicts(inherited, {one.name: one.value for one in decided}, within_engine=within_engine):
        for found in conflict.found:
            if found.fate is Fate.REMOVED:
                yield Variable(found.name, None, Origin.REMOVED, f"set by {conflict.family}?")
