"""The owners of files and processes. On shared machines, only trusted owners' files may affect a run."""

from __future__ import annotations

import os
import pwd
from contextlib import suppress
from pathlib import Path

from launcher.core.machine.proc import status

ROOT = 0
SUDO_UID = "SUDO_UID"  # set by sudo: the user who called it


def own_uids() -> frozenset[int]:
    """Return the uid of this process and, under sudo, also the uid of the user who called sudo."""
    uid, caller = os.geteuid(), os.environ.get(SUDO_UID, "")
    return frozenset({uid, int(caller)} if uid == ROOT and caller.isdecimal() else {uid})


def is_own(uid: int | None) -> bool:
    return uid in own_uids()


def is_trusted(uid: int) -> bool:
    """Return True if this user's files may control this process: if the user is root or runs this process."""
    return uid == ROOT or uid in own_uids()


def is_trusted_in(uid: int, directory: Path) -> bool:
    """Return True if the user is trusted, or if a uid mapping gives this uid to all new files in `directory`."""
    if is_trusted(uid):
        return True
    from tempfile import TemporaryFile  # noqa: PLC0415 - most directories belong to their user

    with suppress(OSError), TemporaryFile(dir=directory) as file:
        return os.fstat(file.fileno()).st_uid == uid
    return False


def called(uid: int | None) -> str:
    """Return a user's name and uid, for example `alice (uid 1001)`."""
    if uid is None:
        return "an unknown user"
    with suppress(KeyError):
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    return f"uid {uid}"


def uids_of_file(path: str | Path) -> frozenset[int]:
    """Return the owner of a file, and for a link also the owner of its target. Raises OSError."""
    uids = {os.lstat(path).st_uid}
    with suppress(OSError):
        uids.add(os.stat(path).st_uid)  # noqa: PTH116 - `path` may be a str
    return frozenset(uids)


def uids_of_process(pid: int) -> frozenset[int]:
    """Return the real and saved uids of a process, or an empty set if it has ended. These users may signal it."""
    return frozenset(map(int, status(pid).get("Uid", "").split()[:3:2]))
