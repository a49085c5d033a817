"""Limits, processors, memory and devices: whether the ranks of a server fit on it."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.core.records import HOST_RANK
from launcher.core.text import ranges
from launcher.doctor.facts import Facts
from launcher.doctor.finding import Evidence, Finding, Severity, Topic

MIB = 1 << 20
OWN_FILES = 256  # that a rank with torch has open, with its data; measured: about 60
THREADS_PER_RANK = 64  # of torch, its communication and a few workers that load data
LOCKED_BYTES = 1 << 30  # buffers of RDMA are some hundreds of MiB in a process; the usual limits are 64 KiB and 8 MiB
LARGE_FILE_BYTES = 10 << 30  # checkpoints of a rank are rarely larger
MEMORY_PER_RANK_BYTES = 512 * MIB  # torch alone takes about 300


def few_files(evidence: Evidence) -> Iterator[Finding]:
    """Every rank has one connection to every other, as gloo makes them, for each of its groups: three with dp, mp, pp.

    With accelerators gloo is not what ranks use, unless somebody asks for it.
    """
    needed, wanted = evidence.world_size + 64, 3 * evidence.world_size + OWN_FILES
    for index, facts in sorted(evidence.facts.items()):
        limit = facts.limit("nofile")
        if limit is None or limit.soft is None or limit.soft >= wanted:
            continue
        is_too_low = limit.soft < needed and not _visible(facts)
        yield Finding(
            "few-open-files", Topic.LIMITS, Severity.BREAKS if is_too_low else Severity.RISKY, (index,),
            f"a process may open {limit.soft:,} files on {evidence.named([index])}; a rank among {evidence.world_size:,} "
            f"may need {wanted:,}",
            _hint_limit("ulimit -n", wanted, limit.hard),
        )  # fmt: skip


def few_processes(evidence: Evidence) -> Iterator[Finding]:
    """The limit counts threads of the user, and does not bind root."""
    for index, facts in sorted(evidence.facts.items()):
        limit = facts.limit("nproc")
        wanted = THREADS_PER_RANK * evidence.rank_count(index) + 2 * facts.usable_cpus
        if limit is not None and limit.soft is not None and limit.soft < wanted and facts.user != 0:
            yield Finding(
                "few-processes", Topic.LIMITS, Severity.RISKY, (index,),
                f"a user may have {limit.soft:,} threads on {evidence.named([index])}; {evidence.rank_count(index)} ranks "
                f"may need {wanted:,}",
                _hint_limit("ulimit -u", wanted, limit.hard),
            )  # fmt: skip


def small_files(evidence: Evidence) -> Iterator[Finding]:
    """A rank whose log or checkpoint reaches the limit gets SIGXFSZ, or an error that it did not expect."""
    for index, facts in sorted(evidence.facts.items()):
        limit = facts.limit("fsize")
        if limit is not None and limit.soft is not None and limit.soft < LARGE_FILE_BYTES:
            yield Finding(
                "small-files", Topic.LIMITS, Severity.RISKY, (index,),
                f"no file may be larger than {limit.soft:,} bytes on {evidence.named([index])}: logs and checkpoints are",
                _hint_limit("ulimit -f", "unlimited", limit.hard),
            )  # fmt: skip


def locked_memory(evidence: Evidence) -> Iterator[Finding]:
    """Memory that network cards read by themselves must stay where it is. Without such cards the limit is nobody's."""
    for index, facts in sorted(evidence.facts.items()):
        limit = facts.limit("memlock")
        if not facts.rdma_devices or not evidence.has_several_servers or limit is None or limit.soft is None:
            continue
        if limit.soft < LOCKED_BYTES:
            yield Finding(
                "locked-memory", Topic.LIMITS, Severity.RISKY, (index,),
                f"a process may lock {limit.soft // 1024:,} KiB of memory on {evidence.named([index])}, with "
                f"{', '.join(facts.rdma_devices)}: connections by RDMA may fail",
                "`ulimit -l unlimited`; in containers --ulimit memlock=-1",
            )  # fmt: skip


def little_memory(evidence: Evidence) -> Iterator[Finding]:
    for index, facts in sorted(evidence.facts.items()):
        amounts = [
            (facts.memory_available_bytes, "is available"),
            (facts.memory_limit_bytes, "is allowed by its control group"),
        ]
        known = [(amount, words) for amount, words in amounts if amount is not None]
        amount, words = min(known, default=(None, ""))
        wanted = MEMORY_PER_RANK_BYTES * evidence.rank_count(index)
        if amount is not None and amount < wanted:
            yield Finding(
                "little-memory", Topic.LIMITS, Severity.RISKY, (index,),
                f"{amount // MIB:,} MiB of memory {words} on {evidence.named([index])}; {evidence.rank_count(index)} ranks "
                f"with torch take {wanted // MIB:,} MiB before they have a model",
                "the kernel kills a rank where memory runs out; `tlaunch why` would say so",
            )  # fmt: skip


def few_cpus(evidence: Evidence) -> Iterator[Finding]:
    """It works, slowly."""
    servers = tuple(
        index for index, facts in sorted(evidence.facts.items()) if 0 < _cpus(facts) < evidence.rank_count(index)
    )
    if servers:
        first = servers[0]
        where = f" on {evidence.name(first)}" if len(servers) > 1 else ""
        yield Finding(
            "few-cpus", Topic.LIMITS, Severity.NOTE, servers,
            f"fewer processors than ranks on {evidence.named(servers)}: {_cpus(evidence.facts[first]):g} for "
            f"{evidence.rank_count(first)}{where}",
        )  # fmt: skip


def devices(evidence: Evidence) -> Iterator[Finding]:
    """A server without any driver is no fault where none has one: ranks then compute on processors."""
    kinds = {index: _visible(facts) for index, facts in evidence.facts.items()}
    if not any(kinds.values()):
        if evidence.facts:
            servers = tuple(sorted(evidence.facts))
            yield Finding(
                "no-accelerator", Topic.DEVICES, Severity.NOTE, servers,
                f"no accelerator is visible on {evidence.named(servers)}: ranks would compute on processors",
            )  # fmt: skip
        return
    for index, visible in sorted(kinds.items()):
        wanted = {device.device_id for device in evidence.cluster.servers[index].devices} - {HOST_RANK}
        if missing := sorted(wanted - set(visible)):
            there = f"{ranges(visible)} are visible" if visible else "none is visible"
            yield Finding(
                "devices-missing", Topic.DEVICES, Severity.BREAKS, (index,),
                f"the table wants device{'s' * (len(missing) > 1)} {ranges(missing)} on {evidence.named([index])}, "
                f"where {there}",
                "`npu-smi info` or `nvidia-smi` shows them; a container sees only what it is given",
            )  # fmt: skip


def _visible(facts: Facts) -> tuple[int, ...]:
    """Programs number NVIDIA's from 0, however many of them a container is given."""
    return facts.ascend_devices or tuple(range(len(facts.nvidia_devices)))


def _cpus(facts: Facts) -> float:
    return facts.usable_cpus if facts.cpu_limit is None else min(float(facts.usable_cpus), facts.cpu_limit)


def _hint_limit(command: str, wanted: int | str, hard: int | None) -> str:
    """`wanted`: "unlimited" where no number would do."""
    if hard is None or (isinstance(wanted, int) and hard >= wanted):
        return f"`{command} {wanted}` before tlaunch starts there, or a line in /etc/security/limits.conf"
    return f"the hard limit is {hard:,}: only root can raise it, in /etc/security/limits.conf or the service's settings"
