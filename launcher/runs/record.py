"""run.json: the RunSpec as JSON, with secrets masked, and the part of it that later readers need."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from launcher.core.env import masked, masked_argv
from launcher.core.errors import UnreadableError
from launcher.core.frozen import frozen
from launcher.core.json_text import json_text
from launcher.core.records import DEFAULT_GRACE_S, RunSpec
from launcher.core.run_dir import RunDir

SCHEMA = 2
_masked = lru_cache(maxsize=256)(masked)  # thousands of ranks have most of their variables alike


def spec_to_json(spec: RunSpec) -> str:
    """Return the whole spec as JSON, one rank after the other; a variable that is removed is null."""
    record: dict[str, Any] = {
        "schema": SCHEMA,
        "name": spec.name,
        "run_dir": str(spec.run_dir),
        "cwd": str(spec.cwd),
        "master_addr": spec.master_addr,
        "master_port": spec.master_port,
        "supervision": asdict(spec.supervision),
        "console": spec.console,
        "engine": spec.engine,
        "layout": asdict(spec.layout),
        "cluster": {
            "source": None if spec.cluster.source is None else str(spec.cluster.source),
            "servers": [asdict(server) for server in spec.cluster.servers],
        },
        "ranks": [
            {
                "global_rank": rank.global_rank,
                "local_rank": rank.local_rank,
                "server_id": rank.server_id,
                "server_index": rank.server_index,
                "device_id": rank.device_id,
                "device_ip": rank.device_ip,
                "cpus": rank.cpus,
                "argv": masked_argv(rank.argv),
                "env": masked_environment(rank.env),
            }
            for rank in spec.ranks
        ],
    }
    return json_text(record)


def masked_environment(environment: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return a rank's variables with secrets masked."""
    return {name: None if value is None else _masked(name, value) for name, value in environment.items()}


@frozen
class Place:
    """The place of a rank, as the rank table has it."""

    global_rank: int
    server_id: str
    server_index: int
    device_id: int


@frozen
class Recorded:
    places: tuple[Place, ...]  # ascending by global rank
    grace_s: float
    max_restarts: int
    engine: str | None = None  # somebody else's, that started the ranks; None: tlaunch did


def read_recorded(run_dir: RunDir) -> Recorded:
    """Read run.json.

    Raises:
        UnreadableError: it is missing, unreadable, or not a record of a run.
    """
    path = run_dir.run_json
    try:
        fields: Any = json.loads(path.read_bytes())
        supervision = fields.get("supervision", {})
        places = (
            Place(
                global_rank=int(rank["global_rank"]),
                server_id=str(rank["server_id"]),
                server_index=int(rank["server_index"]),
                device_id=int(rank["device_id"]),
            )
            for rank in fields["ranks"]
        )
        return Recorded(
            places=tuple(sorted(places, key=lambda place: place.global_rank)),
            grace_s=float(supervision.get("grace_s", fields.get("grace_s", DEFAULT_GRACE_S))),
            max_restarts=int(supervision.get("max_restarts", 0)),
            engine=None if fields.get("engine") is None else str(fields["engine"]),
        )
    except OSError as error:
        raise UnreadableError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnreadableError(f"{path} is no record of a run that this version understands") from error
