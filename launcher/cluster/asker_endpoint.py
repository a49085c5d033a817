"""The file in the run directory by which somebody on a run's servers finds its coordinator while it goes on, with a key.

It is there on the machine that coordinates, and where a server has a run directory of its own, there too. Only its owner
may read it. The key lets nobody into the run, and tells nobody what agents are told: it is good for asking where ranks
are.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from launcher.core import atomic
from launcher.core.codec import json_text
from launcher.core.frozen import frozen
from launcher.core.run_dir import RunDir


@frozen
class AskerEndpoint:
    addresses: tuple[tuple[str, int], ...]  # the first that answers as it should is taken
    key: str


def write_endpoint(run_dir: RunDir, endpoint: AskerEndpoint) -> None:
    """Without it, as on a full disk, a run goes on as well."""
    fields = {"addresses": [list(address) for address in endpoint.addresses], "key": endpoint.key}
    with suppress(OSError):
        atomic.write_text(run_dir.endpoint, json_text(fields), mode=0o600)


def read_endpoint(run_dir: RunDir) -> AskerEndpoint | None:
    """None for a run on one server, one that is over, and one of somebody else."""
    try:
        fields: Any = json.loads(run_dir.endpoint.read_text(encoding="utf-8"))
        addresses = tuple((str(host), int(port)) for host, port in fields["addresses"])
        return AskerEndpoint(addresses, str(fields["key"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def remove_endpoint(run_dir: RunDir) -> None:
    with suppress(OSError):
        run_dir.endpoint.unlink()
