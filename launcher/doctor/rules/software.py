"""Rules about software, rank table and clocks, which should be the same on all servers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from launcher.core.machine.interfaces import go_by_names
from launcher.doctor.finding import Answer, Evidence, Finding, PerServer, Rule, Severity, Topic, groups, minority

MAX_SKEW_S = 1.0
_MISSING = "missing"
# How many parts of a version must be alike, and how bad it is where they are not. Where only later parts differ, it is
# a note. Servers with another tlaunch are refused before they are asked.
_MUST_AGREE = {
    "python": (2, Severity.RISKY),
    "torch": (2, Severity.BREAKS),
    "torch_npu": (2, Severity.BREAKS),
    "mpi4py": (1, Severity.RISKY),
    "MPI": (1, Severity.RISKY),  # that mpi4py loads: "Open MPI 5.0.11"
    "numpy": (1, Severity.RISKY),
}


def clock_skew(evidence: Evidence) -> Iterator[Finding]:
    """Compare clocks, by which logs are merged and the first failure is found."""
    if len(evidence.offsets_s) < 2:
        return
    middle_s = median(evidence.offsets_s.values())
    off = {index: offset_s - middle_s for index, offset_s in evidence.offsets_s.items()}
    apart_s = max(off.values()) - min(off.values())
    if apart_s <= MAX_SKEW_S:
        return
    # With two clocks, either may be the wrong one.
    servers = tuple(sorted(index for index, by_s in off.items() if abs(by_s) > MAX_SKEW_S / 2))
    ahead, behind = max(off, key=lambda index: off[index]), min(off, key=lambda index: off[index])
    yield Finding(
        "clock-skew", Topic.CLOCK, Severity.RISKY, servers,
        f"clocks are up to {apart_s:.1f} s apart: {evidence.name(ahead)} is ahead of {evidence.name(behind)}; "
        "logs of several servers would be merged in a wrong order, and a wrong rank be blamed for a failure",
        "let one service set all clocks: `timedatectl` or `chronyc tracking` shows whether one does",
    )  # fmt: skip


def versions(evidence: Evidence) -> Iterator[Finding]:
    for name, (parts, severity) in _MUST_AGREE.items():
        found = {index: facts.version(name) or _MISSING for index, facts in evidence.facts.items()}
        said = groups(found)
        if len(said) < 2:
            continue
        # Without the build: 2.6.0+cpu and 2.6.0+cu124 are one release.
        agree = len({tuple(version.partition("+")[0].split(".")[:parts]) for version in said}) == 1
        yield Finding(
            "version-differs", Topic.SOFTWARE, Severity.NOTE if agree else severity, minority(said),
            f"{name}: {evidence.each(said)}", "install the same on all servers, or start from one shared environment",
        )  # fmt: skip


def interpreters(evidence: Evidence) -> Iterator[Finding]:
    """Compare the paths of Python: different environments explain whatever else differs."""
    said = groups({index: facts.executable for index, facts in evidence.facts.items()})
    if len(said) > 1:
        message = f"Python is {evidence.each(said)}"
        yield Finding("python-elsewhere", Topic.SOFTWARE, Severity.NOTE, minority(said), message)


def users(evidence: Evidence) -> Iterator[Finding]:
    said = groups({index: facts.user for index, facts in evidence.facts.items()})
    if len(said) > 1:
        yield Finding(
            "user-differs", Topic.SOFTWARE, Severity.RISKY, minority(said),
            f"ranks would belong to user {evidence.each(said)}",
            "other users may be unable to write files of a shared run directory",
        )  # fmt: skip


def table_differs(evidence: Evidence) -> Iterator[Finding]:
    said = groups({index: facts.table_digest for index, facts in evidence.facts.items() if facts.table_digest})
    if len(said) > 1:
        others = minority(said)
        yield Finding(
            "table-differs", Topic.TABLE, Severity.BREAKS, others,
            f"the rank table on {evidence.named(others)} is not the one on {evidence.named(next(iter(said.values())))}: "
            "HCCL would stop with EI0005",
            "copy one file to all servers; `tlaunch table diff` shows the differences of two",
        )  # fmt: skip


def mpi_by_name(answer: Answer) -> Mapping[str, Any] | None:
    """Return what ranks get so that mpi4py does not hang where mpirun knows servers by name."""
    if not answer.facts.mpi_variables or not go_by_names(answer.evidence.cluster.servers):
        return None
    needed = " ".join(f"{name}={value}" for name, value in answer.facts.mpi_variables)
    return {"needed": needed, "mpi": answer.facts.version("MPI")}


RULES: tuple[Rule, ...] = (
    clock_skew,
    versions,
    PerServer(
        "other-mpi", Topic.SOFTWARE, Severity.RISKY,  # a run that does not use mpi4py works
        lambda answer: {"trouble": answer.facts.mpi_trouble} if answer.facts.mpi_trouble else None,
        "on {server}, {trouble}",
        "for programs that import mpi4py: the mpirun of that MPI first on PATH, or the MPI of this mpirun for that Python",
    ),
    PerServer(
        "mpi-by-name", Topic.SOFTWARE, Severity.NOTE, mpi_by_name,
        "on {server}, mpi4py loads {mpi} under the mpirun of Open MPI 4: ranks get {needed}, without which MPI_Barrier hangs "
        "where mpirun knows servers by name",
        "COMM_TYPE_SHARED is wrong there nevertheless: the mpirun of that MPI first on PATH, or addresses in the rank table, "
        "correct all of it",
    ),
    interpreters,
    users,
    PerServer(
        "table-missing", Topic.TABLE, Severity.NOTE,  # ranks get a copy in the run directory
        lambda answer: {"trouble": answer.facts.table_trouble} if answer.facts.table_trouble else None,
        "the rank table cannot be read on {server}: {trouble}",
        "`tlaunch run` gives ranks a copy; started by hand, or by `tlaunch exec`, they need it at the same path",
    ),
    table_differs,
)  # fmt: skip
