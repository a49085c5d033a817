"""Rules about resources: directories, limits, processors, memory and devices for the ranks of each server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from launcher.core.records import HOST_RANK
from launcher.core.text import ranges
from launcher.doctor.facts import Facts, Folder
from launcher.doctor.finding import Answer, Evidence, Finding, PerServer, Rule, Severity, Topic

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
MIN_FREE_BYTES = 100 * MIB  # may be needed for logs
MIN_ROOM_BYTES, MIN_ROOM_SHARE = 10 * GIB, 0.05  # below both, a checkpoint may not fit
MIN_INODES = 100  # a run directory has about ten files per server, and three per rank
FEW_INODES = 1000  # a run creates some files per rank
SHARED_MEMORY_PER_RANK_BYTES = 64 * MIB  # a container's default
FILES_PER_RANK = 256  # open files of a rank with torch and its data; measured: about 60
THREADS_PER_RANK = 64  # of torch, its communication and some data loaders
LOCKED_BYTES = GIB  # RDMA buffers take some hundreds of MiB per process; the usual limits are 64 KiB and 8 MiB
LARGE_FILE_BYTES = 10 * GIB  # checkpoints of a rank are rarely larger
MEMORY_PER_RANK_BYTES = 512 * MIB  # importing torch takes about 300 MiB

Find = Callable[[Answer], Mapping[str, Any] | None]


def _folder(
    purpose: str, is_wrong: Callable[[Folder, int], bool], breaks: Callable[[Folder], bool] = lambda _: False
) -> Find:
    """Return a check of the directory that a server uses for `purpose`. The check fails if `is_wrong` returns True.

    `breaks` states whether a run would fail if this directory is the runs directory.
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


def _shared_memory_of(ranks: int) -> int:
    """Return the number of bytes of shared memory that a server's ranks and their data loaders need."""
    return SHARED_MEMORY_PER_RANK_BYTES * ranks if ranks > 1 else 0


def _is_small(folder: Folder, ranks: int) -> bool:
    size = folder.total_bytes
    return folder.exists and folder.writable and size is not None and size < _shared_memory_of(ranks)


def _is_used_up(folder: Folder, ranks: int) -> bool:
    """Return True if shared memory is large enough but full, for example with files of killed ranks."""
    free, total = folder.free_bytes, folder.total_bytes
    return free is not None and total is not None and free < _shared_memory_of(ranks) <= total


def _low_limit(name: str, command: str, wanted: Callable[[Answer], int], *, is_unlimited: bool = False) -> Find:
    """Return a check that reports a soft limit below `wanted`. With `is_unlimited`, the hint suggests `unlimited`."""

    def find(answer: Answer) -> Mapping[str, Any] | None:
        limit, least = answer.facts.limit(name), wanted(answer)
        if limit is None or limit.soft is None or limit.soft >= least:
            return None
        if limit.hard is None or (not is_unlimited and limit.hard >= least):
            value = "unlimited" if is_unlimited else least
            how = f"run `{command} {value}` before tlaunch starts there, or add a line to /etc/security/limits.conf"
        else:
            where = "in /etc/security/limits.conf or the service's settings"
            how = f"let root raise the hard limit of {limit.hard:,}, {where}"
        return {"soft": limit.soft, "wanted": least, "how": how}

    return find


def few_files(answer: Answer) -> Mapping[str, Any] | None:
    """Check the limit of open files. gloo connects each rank to all other ranks in its dp, mp and pp groups.

    With accelerators, ranks do not use gloo by default.
    """
    world_size = answer.evidence.world_size
    found = _low_limit("nofile", "ulimit -n", lambda _: 3 * world_size + FILES_PER_RANK)(answer)
    if found is None:
        return None
    is_too_low = found["soft"] < world_size + 64 and not _visible(answer.facts)
    return {**found, "world_size": world_size, **({"severity": Severity.BREAKS} if is_too_low else {})}


def locked_memory(answer: Answer) -> Mapping[str, Any] | None:
    """Check the limit of locked memory on servers with RDMA network cards, because RDMA needs locked memory."""
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
    """Return the ids of the devices that are visible on a server. NVIDIA devices are numbered from 0."""
    return facts.ascend_devices or tuple(range(len(facts.nvidia_devices)))


def missing_devices(answer: Answer) -> Mapping[str, Any] | None:
    """Check that each server has the devices that the table lists for it. Skip the check if no server has a device."""
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
        message = f"no accelerator is visible on {evidence.named(servers)}: ranks would run on CPUs"
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
            f"no file can be created in {words} {{why}}, on {{server}}",
            "check the permissions, and whether the disk is full or read-only, or choose another directory with "
            f"{option}",
        )
        for purpose, words, option in _SPACES
    ),
    *(
        PerServer(
            "disk-nearly-full", Topic.FILES, Severity.RISKY,
            _folder(purpose, _is_nearly_full, lambda folder: (folder.free_bytes or 0) < MIN_FREE_BYTES),
            f"{{free}} MiB of {{total}} MiB are left on {{server}} ({{percent:.1f}} %) for {words} ({{path}})",
            "free space, for instance with `tlaunch prune`: a rank that cannot write its output usually fails",
        )
        for purpose, words, _ in _SPACES
    ),
    *(
        PerServer(
            "few-inodes", Topic.FILES, Severity.RISKY,
            _folder(
                purpose,
                # Some file systems do not count inodes, and report 0 of 0.
                lambda folder, _: bool(folder.total_inodes) and folder.free_inodes is not None
                and folder.free_inodes < FEW_INODES,
                lambda folder: (folder.free_inodes or 0) < MIN_INODES,
            ),
            f"{{server}} can create only {{inodes:,}} more files in {words} ({{path}})",
            "check `df -i`, and remove small files from that disk",
        )
        for purpose, words, _ in _SPACES
    ),
    PerServer(
        "shared-memory-full", Topic.FILES, Severity.RISKY, _folder("shared_memory", _is_used_up),
        "{free} of {total} MiB of shared memory are left on {server} ({path}), but {ranks} ranks may need {needed} MiB",
        "list its files with `du -a`, and remove files of processes that no longer exist",
    ),
    PerServer(
        "small-shared-memory", Topic.FILES, Severity.RISKY, _folder("shared_memory", _is_small),
        "shared memory of {server} ({path}) has {total} MiB, but {ranks} ranks with data loaders may need {needed} MiB",
        "start a container with --shm-size or --ipc=host, or a pod with an emptyDir of medium Memory: the default of "
        "containers is 64 MiB",
    ),
    PerServer(
        "shared-memory-closed", Topic.FILES, Severity.RISKY,
        _folder("shared_memory", lambda folder, _: folder.exists and not folder.writable),
        "no file can be created in shared memory {why}, on {server}: ranks that share tensors, and data loaders, may fail",
        "make it writable for every user: `mount -o remount,rw,mode=1777 /dev/shm`; check `df /dev/shm`, too",
    ),
    PerServer(
        "few-open-files", Topic.LIMITS, Severity.RISKY, few_files,
        "a process may open {soft:,} files on {server}, but each of {world_size:,} ranks may need {wanted:,}", "{how}",
    ),
    PerServer(
        "few-processes", Topic.LIMITS, Severity.RISKY,
        lambda answer: None if answer.facts.user == 0 else _low_limit(  # the kernel does not apply it to root
            "nproc", "ulimit -u", lambda one: THREADS_PER_RANK * one.ranks + 2 * one.facts.usable_cpus
        )(answer),
        "a user may have {soft:,} threads on {server}, but {ranks} ranks may need {wanted:,}", "{how}",
    ),
    PerServer(
        "locked-memory", Topic.LIMITS, Severity.RISKY, locked_memory,
        "a process may lock only {kib:,} KiB of memory on {server}, with {cards}: RDMA connections may fail",
        "run `ulimit -l unlimited`; in containers, use --ulimit memlock=-1",
    ),
    PerServer(
        "small-files", Topic.LIMITS, Severity.RISKY,
        _low_limit("fsize", "ulimit -f", lambda _: LARGE_FILE_BYTES, is_unlimited=True),
        "a file may have at most {soft:,} bytes on {server}, but logs and checkpoints may be larger", "{how}",
    ),
    PerServer(
        "little-memory", Topic.LIMITS, Severity.RISKY, little_memory,
        "{amount:,} MiB of memory is {how} on {server}, but {ranks} ranks with torch take {wanted:,} MiB without a model",
        "provide more memory, or use fewer ranks: the kernel kills a rank if memory runs out",
    ),
    PerServer(
        "few-cpus", Topic.LIMITS, Severity.NOTE, few_cpus, "fewer processors than ranks on {server}: {cpus:g} for {ranks}"
    ),
    PerServer(
        "devices-missing", Topic.DEVICES, Severity.BREAKS, missing_devices,
        "the table needs {missing} on {server}, but {there}",
        "list the devices with `npu-smi info` or `nvidia-smi`; in a container, pass the devices to it",
    ),
    no_accelerator,
)  # fmt: skip
