"""Directories and the space in them."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.doctor.facts import Folder
from launcher.doctor.finding import Evidence, Finding, Severity, Topic, groups

MIB = 1 << 20
GIB = 1 << 30
TOO_LITTLE_BYTES = 100 * MIB  # logs alone may take that
LITTLE_BYTES = 10 * GIB  # and less than LITTLE_SHARE of all: a checkpoint may not fit
LITTLE_SHARE = 0.05
FEW_INODES = 1000  # a run makes a handful of files per rank
TOO_FEW_INODES = 100  # a run directory of a server has some ten files, and three of each rank
SHARED_MEMORY_PER_RANK_BYTES = 64 * MIB  # what containers get for everything in them, if nobody asks for more
_PURPOSES = {"runs_dir": "the runs directory", "temporary": "the directory for temporary files"}


def cwd_missing(evidence: Evidence) -> Iterator[Finding]:
    missing = {index: folder.path for index, folder in _folders(evidence, "cwd") if not folder.exists}
    for path, servers in groups(dict(missing)).items():
        yield Finding(
            "cwd-missing", Topic.FILES, Severity.BREAKS, servers,
            f"ranks would start in {path}, which is no directory on {evidence.named(servers)}",
            "start from a directory that all servers have",
        )  # fmt: skip


def not_writable(evidence: Evidence) -> Iterator[Finding]:
    for purpose, words in _PURPOSES.items():
        wrong = {index: folder for index, folder in _folders(evidence, purpose) if not folder.writable}
        for said, servers in groups({index: _not_made(folder) for index, folder in wrong.items()}).items():
            yield Finding(
                "not-writable", Topic.FILES, Severity.BREAKS, servers,
                f"no file can be made in {words} {said}, on {evidence.named(servers)}",
                "look at the permissions, and whether the disk is full or mounted read-only; "
                + ("--runs-dir chooses another" if purpose == "runs_dir" else "TMPDIR chooses another"),
            )  # fmt: skip


def little_space(evidence: Evidence) -> Iterator[Finding]:
    for purpose, words in _PURPOSES.items():
        for index, folder in _folders(evidence, purpose):
            free, total = folder.free_bytes, folder.total_bytes
            if free is None or not total or not folder.writable:
                continue
            if free < TOO_LITTLE_BYTES or (free < LITTLE_BYTES and free < LITTLE_SHARE * total):
                is_too_little = free < TOO_LITTLE_BYTES and purpose == "runs_dir"
                yield Finding(
                    "disk-nearly-full", Topic.FILES, Severity.BREAKS if is_too_little else Severity.RISKY, (index,),
                    f"{_mib(free)} MiB of {_mib(total)} MiB are left on {evidence.named([index])} "
                    f"({100 * free / total:.1f} %) for {words} ({folder.path})",
                    "a rank whose log cannot be written goes on without one; old runs may be removed",
                )  # fmt: skip


def few_inodes(evidence: Evidence) -> Iterator[Finding]:
    """Some file systems do not count them, and say 0 of 0."""
    for purpose, words in _PURPOSES.items():
        for index, folder in _folders(evidence, purpose):
            if folder.total_inodes and folder.free_inodes is not None and folder.free_inodes < FEW_INODES:
                is_too_few = folder.free_inodes < TOO_FEW_INODES and purpose == "runs_dir"
                yield Finding(
                    "few-inodes", Topic.FILES, Severity.BREAKS if is_too_few else Severity.RISKY, (index,),
                    f"{evidence.named([index])} can make only {folder.free_inodes:,} more files in {words} "
                    f"({folder.path})",
                    "`df -i` shows it; many small files elsewhere on that disk use them up",
                )  # fmt: skip


def full_shared_memory(evidence: Evidence) -> Iterator[Finding]:
    """Of one that is large enough; what died ranks have left there stays."""
    for index, folder in _folders(evidence, "shared_memory"):
        needed = SHARED_MEMORY_PER_RANK_BYTES * evidence.rank_count(index)
        total, free = folder.total_bytes, folder.free_bytes
        if evidence.rank_count(index) > 1 and total is not None and free is not None and free < needed <= total:
            yield Finding(
                "shared-memory-full", Topic.FILES, Severity.RISKY, (index,),
                f"{_mib(free)} MiB of {_mib(total)} MiB are left in shared memory of {evidence.named([index])} "
                f"({folder.path}), for {evidence.rank_count(index)} ranks; {_mib(needed)} MiB or more are usual",
                "`du -a` there shows by what; files of processes that have ended may be removed",
            )  # fmt: skip


def small_shared_memory(evidence: Evidence) -> Iterator[Finding]:
    """Ranks of one server, and the workers that load their data, hand tensors to each other there."""
    for index, folder in _folders(evidence, "shared_memory"):
        rank_count = evidence.rank_count(index)
        needed = SHARED_MEMORY_PER_RANK_BYTES * rank_count
        size = folder.total_bytes
        if rank_count > 1 and size is not None and folder.exists and folder.writable and size < needed:
            yield Finding(
                "small-shared-memory", Topic.FILES, Severity.RISKY, (index,),
                f"shared memory of {evidence.named([index])} ({folder.path}) holds {_mib(size)} MiB, for {rank_count} ranks; "
                f"{_mib(needed)} MiB or more are usual",
                "64 MiB is what a container gets by default: start it with --shm-size or --ipc=host, a pod with an "
                "emptyDir of medium Memory",
            )  # fmt: skip


def shared_memory_closed(evidence: Evidence) -> Iterator[Finding]:
    """A rank that computes alone does without; NCCL, locks between processes and workers that load data do not."""
    wrong = {index: folder for index, folder in _folders(evidence, "shared_memory") if folder.exists}
    wrong = {index: folder for index, folder in wrong.items() if not folder.writable}
    for said, servers in groups({index: _not_made(folder) for index, folder in wrong.items()}).items():
        yield Finding(
            "shared-memory-closed", Topic.FILES, Severity.RISKY, servers,
            f"no file can be made in shared memory {said}, on {evidence.named(servers)}: ranks that share tensors, and "
            "the workers that load their data, may fail",
            "it is a tmpfs that everybody may write to: `mount -o remount,rw,mode=1777 /dev/shm`; `df /dev/shm` tells "
            "whether it is full",
        )  # fmt: skip


def _not_made(folder: Folder) -> str:
    """What and why; an older version says nothing of the latter."""
    return f"({folder.path})" if folder.trouble is None else f"({folder.path}: {folder.trouble})"


def _folders(evidence: Evidence, purpose: str) -> Iterator[tuple[int, Folder]]:
    for index, facts in sorted(evidence.facts.items()):
        folder = facts.folder(purpose)
        if folder is not None:
            yield index, folder


def _mib(count_bytes: int) -> str:
    return f"{count_bytes // MIB:,}"
