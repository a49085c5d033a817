"""Rules about software, rank tables and clocks, which should be the same on all servers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from launcher.core.machine.interfaces import go_by_names
from launcher.doctor.finding import Answer, Evidence, Finding, PerServer, Rule, Severity, Topic, groups, minority

MAX_SKEW_S = 1.0
_MISSING = "missing"
# The number of version parts that must be equal, and the severity if they are not. If only later parts differ, it is a
# note. Servers with another version of tlaunch are refused earlier.
_MUST_AGREE = {
    "python": (2, Severity.RISKY),
    "torch": (2, Severity.BREAKS),
    "torch_npu": (2, Severity.BREAKS),
    "mpi4py": (1, Severity.RISKY),
    "MPI": (1, Severity.RISKY),  # the library that mpi4py loads: "Open MPI 5.0.11"
    "numpy": (1, Severity.RISKY),
}


def clock_skew(evidence: Evidence) -> Iterator[Finding]:
    """Check that the servers' clocks agree, because clocks determine the order of log lines and failures."""
    if len(evidence.offsets_s) < 2:
        return
    middle_s = median(evidence.offsets_s.values())
    off = {index: offset_s - middle_s for index, offset_s in evidence.offsets_s.items()}
    apart_s = max(off.values()) - min(off.values())
    if apart_s <= MAX_SKEW_S:
        return
    # With two clocks, either may be wrong.
    servers = tuple(sorted(index for index, by_s in off.items() if abs(by_s) > MAX_SKEW_S / 2))
    ahead, behind = max(off, key=lambda index: off[index]), min(off, key=lambda index: off[index])
    yield Finding(
        "clock-skew", Topic.CLOCK, Severity.RISKY, servers,
        f"clocks are up to {apart_s:.1f} s apart: {evidence.name(ahead)} is ahead of {evidence.name(behind)}; "
        "logs of several servers would be merged in a wrong order, and a failure attributed to the wrong rank",
        "synchronise all clocks with one service, and check it with `timedatectl` or `chronyc tracking`",
    )  # fmt: skip


def versions(evidence: Evidence) -> Iterator[Finding]:
    for name, (parts, severity) in _MUST_AGREE.items():
        said = groups({index: facts.version(name) or _MISSING for index, facts in evidence.facts.items()})
        if len(said) < 2:
            continue
        # Ignore the build: 2.6.0+cpu and 2.6.0+cu124 are the same release.
        agree = len({tuple(version.partition("+")[0].split(".")[:parts]) for version in said}) == 1
        yield Finding(
            "version-differs", Topic.SOFTWARE, Severity.NOTE if agree else severity, minority(said),
            f"the version of {name} differs: {evidence.each(said)}", "install one version on all servers, or share one environment",
        )  # fmt: skip


def interpreters(evidence: Evidence) -> Iterator[Finding]:
    """Check that Python has the same path on all servers. Different paths may explain other findings."""
    said = groups({index: facts.executable for index, facts in evidence.facts.items()})
    if len(said) > 1:
        message = f"the path of Python differs: {evidence.each(said)}"
        yield Finding("python-elsewhere", Topic.SOFTWARE, Severity.NOTE, minority(said), message)


def users(evidence: Evidence) -> Iterator[Finding]:
    said = groups({index: facts.user for index, facts in evidence.facts.items()})
    if len(said) > 1:
        yield Finding(
            "user-differs", Topic.SOFTWARE, Severity.RISKY, minority(said),
            f"ranks would have different user IDs: {evidence.each(said)}",
            "use the same user on all servers: others may be unable to write to a shared run directory",
        )  # fmt: skip


def table_differs(evidence: Evidence) -> Iterator[Finding]:
    said = groups({index: facts.table_digest for index, facts in evidence.facts.items() if facts.table_digest})
    if len(said) > 1:
        others = minority(said)
        yield Finding(
            "table-differs", Topic.TABLE, Severity.BREAKS, others,
            f"the rank table on {evidence.named(others)} differs from the one on {evidence.named(next(iter(said.values())))}: "
            "HCCL would stop with EI0005",
            "copy one file to all servers, and compare files with `tlaunch table diff`",
        )  # fmt: skip


def mpi_by_name(answer: Answer) -> Mapping[str, Any] | None:
    """Return the variables that keep mpi4py from hanging if the table has server names, or None if none are needed."""
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
        "for programs that import mpi4py, put the mpirun of that MPI first on PATH, or install mpi4py for this mpirun",
    ),
    PerServer(
        "mpi-by-name", Topic.SOFTWARE, Severity.NOTE, mpi_by_name,
        "on {server}, mpi4py loads {mpi} under the mpirun of Open MPI 4: ranks get {needed}, because otherwise MPI_Barrier "
        "hangs if mpirun knows servers by name",
        "put the mpirun of that MPI first on PATH, or use addresses in the rank table: splits by COMM_TYPE_SHARED stay wrong",
    ),
    interpreters,
    users,
    PerServer(
        "table-missing", Topic.TABLE, Severity.NOTE,  # ranks get a copy in the run directory
        lambda answer: {"trouble": answer.facts.table_trouble} if answer.facts.table_trouble else None,
        "the rank table cannot be read on {server}: {trouble}",
        "copy it to the same path for ranks started by hand or by `tlaunch exec`; `tlaunch run` gives ranks a copy",
    ),
    table_differs,
)  # fmt: skip
