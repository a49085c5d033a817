"""The owner of a run, and the check that a process belongs to that owner.

A run's files can name any process. Only processes that the run's owner could signal count as the run's.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from launcher.core.errors import UsageError
from launcher.core.machine.owner import ROOT, called, is_trusted_in, uids_of_file, uids_of_process
from launcher.core.machine.proc import PROC, ProcessId, has_open
from launcher.core.run_dir import RunDir


def owner_of(run_dir: RunDir, read_from: frozenset[int]) -> int | None:
    """Return the uid of the user who owns all files of a run, or None if the files have different owners."""
    uids = set(read_from)
    for path in (run_dir.root, run_dir.events.parent, run_dir.events):
        with suppress(OSError):
            uids.add(os.lstat(path).st_uid)
    return uids.pop() if len(uids) == 1 else None


def is_of_owner(process: ProcessId, owner: int | None, file: Path) -> bool:
    """Return True if a process belongs to `owner` or has `file` open for writing.

    The open file counts because a file system may map all users to one.
    """
    return owner is not None and (
        owner in {ROOT, *uids_of_process(process.pid)} or _writes_to(process.pid, file, owner)
    )


def _writes_to(pid: int, file: Path, owner: int) -> bool:
    """Return True if a process has `file` open for writing. Ignore links, and files that `owner` does not own."""
    with suppress(OSError):
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            is_own = os.fstat(descriptor).st_uid == owner
            is_direct = os.readlink(f"{PROC}/self/fd/{descriptor}") == str(file)  # noqa: PTH115 - like `has_open`
            return is_own and is_direct and has_open(pid, descriptor)
        finally:
            os.close(descriptor)
    return False


def check_own_directory(directory: Path) -> None:
    """Raise UsageError if a directory or a link to it belongs to another user, who could replace its files."""
    for uid in uids_of_file(directory):
        if not is_trusted_in(uid, directory):
            raise UsageError(
                f"{directory} belongs to {called(uid)}; a run needs a directory that you own",
                hint="give this run a unique name, or set `--runs-dir` to a directory that you own",
            )
