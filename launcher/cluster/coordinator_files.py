"""The coordinator's files in the run directory: its endpoint for requests, and its mark on a shared file system."""

from __future__ import annotations

import os
import secrets
import time
from contextlib import suppress

from launcher.core import atomic
from launcher.core.codec import json_text, read_json
from launcher.core.frozen import frozen
from launcher.core.run_dir import RunDir

MAX_ENDPOINT_BYTES = 1 << 20


@frozen
class ControlEndpoint:
    addresses: tuple[tuple[str, int], ...]  # the first that answers as it should is taken
    key: str


def write_endpoint(run_dir: RunDir, endpoint: ControlEndpoint) -> None:
    """Write it if possible: a run does not need it."""
    fields = {"addresses": [list(address) for address in endpoint.addresses], "key": endpoint.key}
    with suppress(OSError):
        atomic.write_text(run_dir.endpoint, json_text(fields), mode=0o600)


def read_endpoint(run_dir: RunDir) -> ControlEndpoint | None:
    """Return None for a run on one server, one that is over, and one of another user."""
    try:
        fields = read_json(run_dir.endpoint, MAX_ENDPOINT_BYTES)
        addresses = tuple((str(host), int(port)) for host, port in fields["addresses"])
        return ControlEndpoint(addresses, str(fields["key"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def remove_endpoint(run_dir: RunDir) -> None:
    with suppress(OSError):
        run_dir.endpoint.unlink()


_MARK = ".here."
LOOKS = 3
AGAIN_S = 0.1  # a network file system may hold on to what it knew a moment ago


def leave_mark(run_dir: RunDir) -> str | None:
    """Make a file whose name is drawn by lot; its name. None: nothing can be written there, so nothing can be copied."""
    mark = f"{_MARK}{secrets.token_hex(16)}"
    with suppress(OSError):
        (run_dir.root / mark).touch(exist_ok=False)
        return mark
    return None


def remove_marks(run_dir: RunDir) -> None:
    """Remove the marks of a coordinator that could not do it itself."""
    for path in run_dir.root.glob(f"{_MARK}*"):
        with suppress(OSError):
            path.unlink()


def remove_mark(run_dir: RunDir, mark: str | None) -> None:
    if mark is not None:
        with suppress(OSError):
            (run_dir.root / mark).unlink()


def sees_mark(run_dir: RunDir, mark: str) -> bool:
    """Return True if the mark file is here. Otherwise blocks for up to `LOOKS` * `AGAIN_S` seconds."""
    for look in range(LOOKS):
        if look:
            time.sleep(AGAIN_S)
        with suppress(OSError):
            if mark in os.listdir(run_dir.root):  # noqa: PTH208 - NFS asks its server again when a directory is opened
                return True
    return False
