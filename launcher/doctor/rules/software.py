"""What is installed, the rank table, the clocks: what should be the same on all servers."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from launcher.core.interfaces import go_by_names
from launcher.doctor.finding import Evidence, Finding, Severity, Topic, all_but_most, groups

SKEW_S = 1.0
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
_HINT_INSTALL = "install the same on all servers, or start from one shared environment"


def clock_skew(evidence: Evidence) -> Iterator[Finding]:
    """A run does not fail of it. But logs are merged, and the first failure is found, by what clocks say."""
    if len(evidence.offsets_s) < 2:
        return
    middle_s = median(evidence.offsets_s.values())
    off = {index: offset_s - middle_s for index, offset_s in evidence.offsets_s.items()}
    apart_s = max(off.values()) - min(off.values())
    if apart_s <= SKEW_S:
        return
    # Of two clocks nobody knows which one is wrong.
    servers = tuple(sorted(index for index, by_s in off.items() if abs(by_s) > SKEW_S / 2))
    ahead, behind = max(off, key=lambda index: off[index]), min(off, key=lambda index: off[index])
    yield Finding(
        "clock-skew", Topic.CLOCK, Severity.RISKY, servers,
        f"clocks are up to {apart_s:.1f} s apart: {evidence.name(ahead)} is ahead of {evidence.name(behind)}; "
        "logs of several servers would be merged in a wrong order, and a wrong rank be blamed for a failure",
        "let one service set all clocks: `timedatectl` or `chronyc tracking` says whether one does",
    )  # fmt: skip


def versions(evidence: Evidence) -> Iterator[Finding]:
    for name, (parts, severity) in _MUST_AGREE.items():
        whole = {index: facts.version(name) for index, facts in evidence.facts.items()}
        if not any(whole.values()):
            continue
        said = groups({index: version or _MISSING for index, version in whole.items()})
        if len(said) < 2:
            continue
        compared = {index: _beginning(version, parts) for index, version in whole.items()}
        agree = len(set(compared.values())) == 1
        others = all_but_most(said)
        yield Finding(
            "version-differs", Topic.SOFTWARE, Severity.NOTE if agree else severity, others,
            f"{name}: " + "; ".join(f"{version} on {evidence.named(servers)}" for version, servers in said.items()),
            _HINT_INSTALL,
        )  # fmt: skip


def other_mpi(evidence: Evidence) -> Iterator[Finding]:
    """No fault of a run that does not use mpi4py; one that does is refused."""
    troubles = {index: facts.mpi_trouble for index, facts in evidence.facts.items() if facts.mpi_trouble}
    for trouble, servers in groups(dict(troubles)).items():
        yield Finding(
            "other-mpi", Topic.SOFTWARE, Severity.RISKY, servers,
            f"on {evidence.named(servers)}, {trouble}",
            "for programs that import mpi4py: the mpirun of that MPI first on PATH, or the MPI of this mpirun for that Python",
        )  # fmt: skip


def mpi_by_name(evidence: Evidence) -> Iterator[Finding]:
    """No fault of a run that does not use mpi4py; one that does is given what keeps it from hanging."""
    if not go_by_names(evidence.cluster.servers):
        return
    said = {
        index: " ".join(f"{name}={value}" for name, value in facts.mpi_variables)
        for index, facts in evidence.facts.items()
        if facts.mpi_variables
    }
    for needed, servers in groups(dict(said)).items():
        yield Finding(
            "mpi-by-name", Topic.SOFTWARE, Severity.NOTE, servers,
            f"on {evidence.named(servers)}, mpi4py loads {evidence.facts[servers[0]].version('MPI')} under the mpirun of Open "
            f"MPI 4: ranks get {needed}, without which MPI_Barrier hangs where mpirun knows servers by name",
            "COMM_TYPE_SHARED is wrong there all the same: the mpirun of that MPI first on PATH, or addresses in the rank "
            "table, make all of it right",
        )  # fmt: skip


def interpreters(evidence: Evidence) -> Iterator[Finding]:
    """Different environments explain whatever else differs."""
    said = groups({index: facts.executable for index, facts in evidence.facts.items()})
    if len(said) > 1:
        others = all_but_most(said)
        yield Finding(
            "python-elsewhere", Topic.SOFTWARE, Severity.NOTE, others,
            "Python is " + "; ".join(f"{path} on {evidence.named(servers)}" for path, servers in said.items()),
        )  # fmt: skip


def users(evidence: Evidence) -> Iterator[Finding]:
    said = groups({index: str(facts.user) for index, facts in evidence.facts.items()})
    if len(said) > 1:
        others = all_but_most(said)
        yield Finding(
            "user-differs", Topic.SOFTWARE, Severity.RISKY, others,
            "ranks would belong to user "
            + "; ".join(f"{user} on {evidence.named(servers)}" for user, servers in said.items()),
            "files of a shared run directory may be unwritable for the others",
        )  # fmt: skip


def table_missing(evidence: Evidence) -> Iterator[Finding]:
    """No fault of a run: its ranks get a copy in the run directory, wherever the table was read."""
    troubles = {index: facts.table_trouble for index, facts in evidence.facts.items() if facts.table_trouble}
    for trouble, servers in groups(dict(troubles)).items():
        yield Finding(
            "table-missing", Topic.TABLE, Severity.NOTE, servers,
            f"the rank table cannot be read on {evidence.named(servers)}: {trouble}",
            "`tlaunch run` gives ranks a copy; started by hand, or by `tlaunch exec`, they need it at the same path",
        )  # fmt: skip


def table_differs(evidence: Evidence) -> Iterator[Finding]:
    digests = {index: facts.table_digest for index, facts in evidence.facts.items() if facts.table_digest}
    said = groups(dict(digests))
    if len(said) > 1:
        others = all_but_most(said)
        yield Finding(
            "table-differs", Topic.TABLE, Severity.BREAKS, others,
            f"the rank table on {evidence.named(others)} is another one than on "
            f"{evidence.named(next(iter(said.values())))}: HCCL would stop with EI0005",
            "copy one file to all servers; `tlaunch table diff` shows the differences of two",
        )  # fmt: skip


def _beginning(version: str | None, parts: int) -> str:
    """Without the build: 2.6.0+cpu and 2.6.0+cu124 are one release."""
    if version is None:
        return _MISSING
    return ".".join(version.partition("+")[0].split(".")[:parts])
