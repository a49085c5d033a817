"""File descriptors of this process: the limit on their number, and whether one can be read."""

from __future__ import annotations

import resource
import select

from launcher.core.errors import UnreadableError

SPARE = 64  # for everything else that is open


def is_readable(descriptor: int, within_s: float = 0.0) -> bool:
    """Return True if `descriptor` has data or is at its end. Blocks for `within_s` seconds at most."""
    poll = select.poll()  # select.select knows no descriptor from 1024 on
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(within_s * 1000))


def own_limit() -> int:
    """Return how many descriptors this process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def limit_to(files: int) -> None:
    """Set the limit back to `files`, which this process had before. Children that are started from now on get it too."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def make_room(files: int) -> bool:
    """Raise this process's limit, if need be, so that it can have `files` files open. Return True if it can.

    Children inherit the limit: call it when none is to be started any more.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = files + SPARE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        return allowed >= wanted
    return True


def make_room_for_servers(count: int) -> None:
    """Raise the limit, as `make_room` does, to hold a connection to each of `count` servers.

    Raises:
        UnreadableError: the system does not allow so many.
    """
    if not make_room(count):
        raise UnreadableError(
            f"{count} servers need as many connections, and this machine allows {own_limit()} files",
            hint="ulimit -Hn shows the limit, which root can raise",
        )
