"""The shape of a v1.0 table: which keys there must be, and of which type. Imported only when a table is read.

Strict, as HCCL is: where it asks for a string, a number is refused. What the strings say is left to the rules.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from launcher.rank_table.catalogue import Finding
from launcher.rank_table.places import Pointer

AT_MOST = (
    1000  # faults of shape that are reported one by one: a list of a million numbers is one mistake, not a million
)


class _Shape(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class DeviceShape(_Shape):
    device_id: str
    rank_id: str
    device_ip: str = ""  # may be missing on a single server
    device_port: str = ""
    device_vnic_port: str = ""
    host_port: str = ""
    net_position: str = ""
    net_protocol: str = ""


class ServerShape(_Shape):
    server_id: str
    device: list[DeviceShape] = Field(min_length=1)
    host_ip: str = ""


class TableShape(_Shape):
    version: str
    status: str
    server_count: str = ""  # HCCL counts for itself where it is missing
    server_list: list[ServerShape] = Field(min_length=1)


def shape_problems(document: dict[str, Any]) -> Iterator[tuple[str, Finding]]:
    """Code and finding of everything that has the wrong shape; past `AT_MOST`, the last one says how many follow."""
    try:
        TableShape.model_validate(document)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        found = [_finding(document, detail["type"], detail["loc"]) for detail in details[:AT_MOST]]
        if len(details) > AT_MOST:
            code, last = found[-1]
            found[-1] = code, replace(last, message=f"{last.message} (and {len(details) - AT_MOST} more like it)")
        yield from found


def _finding(document: dict[str, Any], kind: str, where: Pointer) -> tuple[str, Finding]:
    name = next((part for part in reversed(where) if isinstance(part, str)), "")
    if kind == "missing":
        example = _EXAMPLES.get(name, '"..."')
        return "RT204", Finding(where[:-1], f"{name} is missing here", f'add "{name}": {example}')
    if kind == "too_short":
        return "RT206", Finding(where, f"{name} is empty", "every table names at least one server with one device")
    value = _value_at(document, where)
    wanted = {"string_type": "a string", "list_type": "a list"}.get(kind, "an object")
    subject = f"an entry of {name}" if isinstance(where[-1], int) else name
    return "RT205", Finding(where, f"{subject} must be {wanted}, not {_shown(value)}", _retyped(kind, value))


_EXAMPLES = {
    "version": '"1.0"',
    "status": '"completed"',
    "server_list": '[{"server_id": "...", "device": [...]}]',
    "device": '[{"device_id": "0", "device_ip": "...", "rank_id": "0"}]',
    "device_id": '"0", the id that the driver shows',
    "rank_id": '"0" to "n-1", counted over all servers',
    "server_id": '"...", the address or name of the server',
}


def _value_at(document: Any, where: Pointer) -> Any:
    for part in where:
        document = document[part]
    return document


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:39]}…"


def _retyped(kind: str, value: Any) -> str | None:
    """The value to write: numbers need only quotes."""
    if kind == "string_type" and isinstance(value, int | float) and not isinstance(value, bool):
        return f'write "{_shown(value)}": HCCL reads numbers from strings only'
    return "write a JSON string" if kind == "string_type" else None
