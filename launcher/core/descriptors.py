"""How many files this process may have open."""

from __future__ import annotations

import resource

SPARE = 64  # for everything else that is open


def own_limit() -> int:
    """How many this process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def limit_to(files: int) -> None:
    """Go back to a limit that this process had: children that are started now get it too."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def make_room(files: int) -> bool:
    """Raise this process's own limit, if need be, so that it can have so many files open; whether it can.

    Children get the limit too: call it when none is to be started any more.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = files + SPARE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        return allowed >= wanted
    return True
