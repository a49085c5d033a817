"""The part of run.json that later readers need: where each rank is, and the rules of the run. Tolerant of other versions."""

from __future__ import annotations

import json
from typing import Any

from launcher.core.errors import UnreadableError
from launcher.core.frozen import frozen
from launcher.core.records import DEFAULT_GRACE_S
from launcher.core.run_dir import RunDir


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
        return Recorded(
            places=tuple(sorted(map(_place, fields["ranks"]), key=lambda place: place.global_rank)),
            grace_s=float(supervision.get("grace_s", fields.get("grace_s", DEFAULT_GRACE_S))),
            max_restarts=int(supervision.get("max_restarts", 0)),
            engine=None if fields.get("engine") is None else str(fields["engine"]),
        )
    except OSError as error:
        raise UnreadableError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnreadableError(f"{path} is no record of a run that this version understands") from error


def _place(rank: dict[str, Any]) -> Place:
    return Place(
        global_rank=int(rank["global_rank"]),
        server_id=str(rank["server_id"]),
        server_index=int(rank["server_index"]),
        device_id=int(rank["device_id"]),
    )
