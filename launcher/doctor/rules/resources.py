"""Rules about directories, limits, processors, memory and devices: whether the ranks of a server fit on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from launcher.core.records import HOST_RANK
from launcher.core.text import ranges
from launcher.doctor.facts import Facts, Folder
from launcher.doctor.finding import Answer, Evidence, Finding, PerServer, Rule, Severity, Topic

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
MIN_FREE_BYTES = 100 * MIB  # logs alone may take that
MIN_ROOM_BYTES, MIN_ROOM_SHARE = 10 * GIB, 0.05  # below both, a checkpoint may not fit
MIN_INODES = 100  # a run directory of a server has some ten files, and three of each rank
FEW_INODES = 1000  # a run makes a handful of files per rank
SHARED_MEMORY_PER_RANK_BYTES = 64 * MIB  # what a container gets for everything in it by default
FILES_PER_RANK = 256  # that a rank with torch has open, with its data; measured: about 60
THREADS_PER_RANK = 64  # of torch, its communication and a few workers that load data
LOCKED_BYTES = GIB  # buffers of RDMA are some hundreds of MiB in a process; the usual limits are 64 KiB and 8 MiB
LARGE_FILE_BYTES = 10 * GIB  # checkpoints of a rank are rarely larger
MEMORY_PER_RANK_BYTES = 512 * MIB  # torch alone takes about 300

Find = Callable[[Answer], Mapping[str, Any] | None]


def _folder(
    purpose: str, is_wrong: Callable[[Folder, int], bool], breaks: Callable[[Folder], bool] = lambda _: False
) -> Find:
    """Look at the directory with that purpose; `is_wrong` gets it and the number of ranks on its server.

    `breaks`: whether a run would fail of it if this is the runs directory.
    """

    def find(answer: Answer) -> Mapping[str, Any] | None:
        folder = answer.facts.folder(purpose)
        if folder is None or not is_wrong(folder, answer.ranks):
            return None
        free, total = folder.free_bytes or 0, folder.total_bytes or 0
        return {
            "path": folder.path,
            "why": f"({folder.path}: {folder.trouble})" if folder.trouble else f"({folder.path})",
            "free": f"{free // MIB:,}",
            "total": f"{total // MIB:,}",
            "percent": 100 * free / total if total else 0.0,
            "inodes": folder.free_inodes,
            "needed": f"{_shared_memory_of(answer.ranks) // MIB:,}",
            **({"severity": Severity.BREAKS} if purpose == "runs_dir" and breaks(folder) else {}),
        }

    return find


def _is_nearly_full(folder: Folder, _ranks: int) -> bool:
    free, total = folder.free_bytes, folder.total_bytes
    if free is None or not total or not folder.writable:
        return False
    return free < MIN_FREE_BYTES or (free < MIN_ROOM_BYTES and free < MIN_ROOM_SHARE * total)


def _has_few_inodes(folder: Folder, _ranks: int) -> bool:
    """Return whether few files can be made. Some file systems do not count inodes, and report 0 of 0."""
    return bool(folder.total_inodes) and folder.free_inodes is not None and folder.free_inodes < FEW_INODES


def _shared_memory_of(ranks: int) -> int:
    """Return what ranks of one server, and their data loaders, need to hand tensors to each other."""
    return SHARED_MEMORY_PER_RANK_BYTES * ranks if ranks > 1 else 0


def _is_small(folder: Folder, ranks: int) -> bool:
    size = folder.total_bytes
    return folder.exists and folder.writable and size is not None and size < _shared_memory_of(ranks)


def _is_used_up(folder: Folder, ranks: int) -> bool:
    """Return whether shared memory that is large enough is full: what killed ranks have left there stays."""
    free, total = folder.free_bytes, folder.total_bytes
    return free is not None and total is not None and free < _shared_memory_of(ranks) <= total


def _low_limit(name: str, command: str, wanted: Callable[[Answer], int], *, is_unlimited: bool = False) -> Find:
    """Compare the soft limit `name` with what is wanted. `is_unlimited`: the hint recommends no limit at all."""

    def find(answer: Answer) -> Mapping[str, Any] | None:
        limit, least = answer.facts.limit(name), wanted(answer)
        if limit is None or limit.soft is None or limit.soft >= least:
            return None
        if limit.hard is None or (not is_unlimited and limit.hard >= least):
            value = "unlimited" if is_unlimited else least
            how = f"`{command} {value}` before tlaunch starts there, or a line in /etc/security/limits.conf"
        else:
            where = "in /etc/security/limits.conf or the service's settings"
            how = f"the hard limit is {limit.hard:,}: only root can raise it, {where}"
        return {"soft": limit.soft, "wanted": least, "how": how}

    return find


def few_files(answer: Answer) -> Mapping[str, Any] | None:
    """Compare the limit of open files: gloo connects every rank to every other, for each group of dp, mp and pp.

    With accelerators, ranks do not use gloo by default.
    """
    world_size = answer.evidence.world_size
    found = _low_limit("nofile", "ulimit -n", lambda _: 3 * world_size + FILES_PER_RANK)(answer)
    if found is None:
        return None
    is_too_low = found["soft"] < world_size + 64 and not _visible(answer.facts)
    return {**found, "world_size": world_size, **({"severity": Severity.BREAKS} if is_too_low else {})}


def locked_memory(answer: Answer) -> Mapping[str, Any] | None:
    """Compare the limit of locked memory where network cards read memory by themselves."""
    found = _low_limit("memlock", "ulimit -l", lambda _: LOCKED_BYTES)(answer)
    if found is None or not answer.facts.rdma_devices or not answer.evidence.has_several_servers:
        return None
    return {"kib": found["soft"] // KIB, "cards": ", ".join(answer.facts.rdma_devices)}


def little_memory(answer: Answer) -> Mapping[str, Any] | None:
    facts, wanted = answer.facts, MEMORY_PER_RANK_BYTES * answer.ranks
    amounts = ((facts.memory_available_bytes, "available"), (facts.memory_limit_bytes, "allowed by its control group"))
    amount, how = min(((one, how) for one, how in amounts if one is not None), default=(wanted, ""))
    return {"amount": amount // MIB, "how": how, "wanted": wanted // MIB} if amount < wanted else None


def few_cpus(answer: Answer) -> Mapping[str, Any] | None:
    cpus = min(float(answer.facts.usable_cpus), answer.facts.cpu_limit or float("inf"))
    return {"cpus": cpus} if 0 < cpus < answer.ranks else None


def _visible(facts: Facts) -> tuple[int, ...]:
    """Return the ids of the devices there. Programs number NVIDIA's from 0, however many of them a container is given."""
    return facts.ascend_devices or tuple(range(len(facts.nvidia_devices)))


def missing_devices(answer: Answer) -> Mapping[str, Any] | None:
    """Compare devices with the table's. A server without any is right where none has one."""
    if not any(map(_visible, answer.evidence.facts.values())):
        return None
    visible = _visible(answer.facts)
    wanted = {device.device_id for device in answer.evidence.cluster.servers[answer.index].devices} - {HOST_RANK}
    if not (missing := sorted(wanted - set(visible))):
        return None
    there = f"{ranges(visible)} are visible" if visible else "no device is visible"
    return {"missing": f"device{'s' * (len(missing) > 1)} {ranges(missing)}", "there": there}


def no_accelerator(evidence: Evidence) -> Iterator[Finding]:
    servers = tuple(sorted(evidence.facts))
    if servers and not any(map(_visible, evidence.facts.values())):
        message = f"no accelerator is visible on {evidence.named(servers)}: ranks would compute on processors"
        yield Finding("no-accelerator", Topic.DEVICES, Severity.NOTE, servers, message)


_SPACES = (
    ("runs_dir", "the runs directory", "--runs-dir"),
    ("temporary", "the directory for temporary files", "TMPDIR"),
)
RULES: tuple[Rule, ...] = (
    PerServer(
        "cwd-missing", Topic.FILES, Severity.BREAKS, _folder("cwd", lambda folder, _: not folder.exists),
        "ranks would start in {path}, which is not a directory on {server}",
        "start from a directory that all servers have",
    ),
    *(
        PerServer(
            "not-writable", Topic.FILES, Severity.BREAKS, _folder(purpose, lambda folder, _: not folder.writable),
            f"no file can be made in {words} {{why}}, on {{server}}",
            "check the permissions, and whether the disk is full or mounted read-only; "
            f"{option} chooses another directory",
        )
        for purpose, words, option in _SPACES
    ),
    *(
        PerServer(
            "disk-nearly-full", Topic.FILES, Severity.RISKY,
            _folder(purpose, _is_nearly_full, lambda folder: (folder.free_bytes or 0) < MIN_FREE_BYTES),
            f"{{free}} MiB of {{total}} MiB are left on {{server}} ({{percent:.1f}} %) for {words} ({{path}})",
            "a rank whose log cannot be written continues without one; remove old runs",
        )
        for purpose, words, _ in _SPACES
    ),
    *(
        PerServer(
            "few-inodes", Topic.FILES, Severity.RISKY,
            _folder(purpose, _has_few_inodes, lambda folder: (folder.free_inodes or 0) < MIN_INODES),
            f"{{server}} can make only {{inodes:,}} more files in {words} ({{path}})",
            "`df -i` shows it; many small files elsewhere on that disk use them up",
        )
        for purpose, words, _ in _SPACES
    ),
    PerServer(
        "shared-memory-full", Topic.FILES, Severity.RISKY, _folder("shared_memory", _is_used_up),
        "{free} MiB of {total} MiB are left in shared memory of {server} ({path}), for {ranks} ranks; {needed} MiB or more "
        "are usual",
        "`du -a` there shows what fills it; files of processes that have ended may be removed",
    ),
    PerServer(
        "small-shared-memory", Topic.FILES, Severity.RISKY, _folder("shared_memory", _is_small),
        "shared memory of {server} ({path}) holds {total} MiB, for {ranks} ranks; {needed} MiB or more are usual",
        "64 MiB is what a container gets by default: start it with --shm-size or --ipc=host, a pod with an emptyDir of "
        "medium Memory",
    ),
    PerServer(
        "shared-memory-closed", Topic.FILES, Severity.RISKY,
        _folder("shared_memory", lambda folder, _: folder.exists and not folder.writable),
        "no file can be made in shared memory {why}, on {server}: ranks that share tensors, and the workers that load "
        "their data, may fail",
        "it should be a tmpfs that every user may write to: `mount -o remount,rw,mode=1777 /dev/shm`; `df /dev/shm` shows whether it is "
        "full",
    ),
    PerServer(
        "few-open-files", Topic.LIMITS, Severity.RISKY, few_files,
        "a process may open {soft:,} files on {server}; a rank among {world_size:,} may need {wanted:,}", "{how}",
    ),
    PerServer(
        "few-processes", Topic.LIMITS, Severity.RISKY,
        lambda answer: None if answer.facts.user == 0 else _low_limit(  # the kernel does not apply it to root
            "nproc", "ulimit -u", lambda one: THREADS_PER_RANK * one.ranks + 2 * one.facts.usable_cpus
        )(answer),
        "a user may have {soft:,} threads on {server}; {ranks} ranks may need {wanted:,}", "{how}",
    ),
    PerServer(
        "locked-memory", Topic.LIMITS, Severity.RISKY, locked_memory,
        "a process may lock {kib:,} KiB of memory on {server}, with {cards}: connections by RDMA may fail",
        "`ulimit -l unlimited`; in containers --ulimit memlock=-1",
    ),
    PerServer(
        "small-files", Topic.LIMITS, Severity.RISKY,
        _low_limit("fsize", "ulimit -f", lambda _: LARGE_FILE_BYTES, is_unlimited=True),
        "no file may be larger than {soft:,} bytes on {server}: logs and checkpoints are", "{how}",
    ),
    PerServer(
        "little-memory", Topic.LIMITS, Severity.RISKY, little_memory,
        "{amount:,} MiB of memory is {how} on {server}; {ranks} ranks with torch take {wanted:,} MiB before they have a "
        "model",
        "the kernel kills a rank where memory runs out; `tlaunch why` would say so",
    ),
    PerServer(
        "few-cpus", Topic.LIMITS, Severity.NOTE, few_cpus, "fewer processors than ranks on {server}: {cpus:g} for {ranks}"
    ),
    PerServer(
        "devices-missing", Topic.DEVICES, Severity.BREAKS, missing_devices,
        "the table wants {missing} on {server}, where {there}",
        "`npu-smi info` or `nvidia-smi` shows them; a container sees only what it is given",
    ),
    no_accelerator,
)  # fmt: skip
