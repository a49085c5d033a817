"""run.json: the RunSpec as JSON, with secrets masked, so that it may be shown and kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from launcher.core.env import masked, masked_argv
from launcher.core.json_text import json_text
from launcher.core.records import RankSpec, RunSpec

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
        "ranks": [_rank(rank) for rank in spec.ranks],
    }
    return json_text(record)


def masked_environment(environment: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return a rank's variables with secrets masked."""
    return {name: None if value is None else _masked(name, value) for name, value in environment.items()}


def _rank(rank: RankSpec) -> dict[str, Any]:
    return {
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
