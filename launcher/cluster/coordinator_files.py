"""The coordinator's files in the run directory: its endpoint, and a mark that shows if servers share it."""

from __future__ import annotations

import os
import secrets
import time
from contextlib import suppress

from launcher.core import atomic
from launcher.core.codec import decode, encode, json_text, read_json
from launcher.core.frozen import frozen
from launcher.core.run_dir import RunDir

MAX_ENDPOINT_BYTES = 1 << 20


@frozen
class ControlEndpoint:
    addresses: tuple[tuple[str, int], ...]  # tried in order
    key: str


def write_endpoint(run_dir: RunDir, endpoint: ControlEndpoint) -> None:
    """Write the endpoint file. Ignore write errors, since a run works without the file."""
    with suppress(OSError):
        atomic.write_text(run_dir.endpoint, json_text(encode(endpoint)), mode=0o600)


def read_endpoint(run_dir: RunDir) -> ControlEndpoint | None:
    """Read the endpoint of the run's coordinator. Return None if the file is missing or cannot be read."""
    try:
        return decode(ControlEndpoint, read_json(run_dir.endpoint, MAX_ENDPOINT_BYTES))
    except (OSError, ValueError):
        return None


def remove_endpoint(run_dir: RunDir) -> None:
    with suppress(OSError):
        run_dir.endpoint.unlink()


_MARK = ".here."
LOOKS = 3
AGAIN_S = 0.1  # a network file system may serve stale data for a moment


def leave_mark(run_dir: RunDir) -> str | None:
    mark = f"{_MARK}{secrets.token_hex(16)}"
    with suppress(OSError):
        (run_dir.root / mark).touch(exist_ok=False)
        return mark
    return None


def remove_marks(run_dir: RunDir) -> None:
    """Remove the mark files of this coordinator and of killed coordinators."""
    with suppress(OSError):  # the file system may be gone, so that even listing the directory fails
        for path in list(run_dir.root.glob(f"{_MARK}*")):
            with suppress(OSError):
                path.unlink()


def sees_mark(run_dir: RunDir, mark: str) -> bool:
    """Return True if a coordinator's mark file is visible in the run directory. Retry briefly if it is not."""
    for look in range(LOOKS):
        if look:
            time.sleep(AGAIN_S)
        with suppress(OSError):
            if mark in os.listdir(run_dir.root):  # noqa: PTH208 - opening the directory makes NFS revalidate it
                return True
    return False
