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
SHARED_MEMORY_PER_RANK_BYTES = 64 * MIB  # what containers get for everything in them, if nobody asks for more
_PURPOSES = {"runs_dir": "the runs directory", "temporary": "the directory for temporary files"}


def cwd_missing(evidence: Evidence) -> Iterator[Finding]:
    missing = {index: folder.path for index, folder in _folders(evidence, "cwd") if not folder.exists}
    for path, servers in groups(dict(missing)).items():
        yield Finding(
            "cwd-missing", Topic.FILES, Severity.BREAKS, servers,
            f"ranks would start in {path}, which is no directory on {evidence.named(servers)}",
            "start from a directory that all servers have, or give --cwd",
        )  # fmt: skip


def not_writable(evidence: Evidence) -> Iterator[Finding]:
    for purpose, words in _PURPOSES.items():
        wrong = {index: folder.path for index, folder in _folders(evidence, purpose) if not folder.writable}
        for path, servers in groups(dict(wrong)).items():
            yield Finding(
                "not-writable", Topic.FILES, Severity.BREAKS, servers,
                f"no file can be made in {words} ({path}) on {evidence.named(servers)}",
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
                yield Finding(
                    "few-inodes", Topic.FILES, Severity.RISKY, (index,),
                    f"{evidence.named([index])} can make only {folder.free_inodes:,} more files in {words} "
                    f"({folder.path})",
                    "`df -i` shows it; many small files elsewhere on that disk use them up",
                )  # fmt: skip


def small_shared_memory(evidence: Evidence) -> Iterator[Finding]:
    """Ranks of one server, and the workers that load their data, hand tensors to each other there."""
    for index, folder in _folders(evidence, "shared_memory"):
        rank_count = evidence.rank_count(index)
        needed = SHARED_MEMORY_PER_RANK_BYTES * rank_count
        size = folder.total_bytes
        if rank_count > 1 and size is not None and folder.exists and size < needed:
            yield Finding(
                "small-shared-memory", Topic.FILES, Severity.RISKY, (index,),
                f"shared memory of {evidence.named([index])} ({folder.path}) holds {_mib(size)} MiB, for {rank_count} ranks; "
                f"{_mib(needed)} MiB or more are usual",
                "64 MiB is what a container gets by default: start it with --shm-size or --ipc=host, a pod with an "
                "emptyDir of medium Memory",
            )  # fmt: skip


def _folders(evidence: Evidence, purpose: str) -> Iterator[tuple[int, Folder]]:
    for index, facts in sorted(evidence.facts.items()):
        folder = facts.folder(purpose)
        if folder is not None:
            yield index, folder


def _mib(count_bytes: int) -> str:
    return f"{count_bytes // MIB:,}"
