"""Which format a document is written in, decided as HCCL does: by `version` first, by its keys where that is absent."""

from __future__ import annotations

from enum import Enum
from typing import Any

from launcher.rank_table.catalogue import Finding


class Format(Enum):
    """The formats in use, related files that HCCL does not read included. The value is what people call them."""

    V1_0 = "v1.0"
    V1_1 = "v1.1 (heterogeneous)"
    V1_2 = "v1.2 (super pod)"
    V2_0 = "v2.0 (A5)"
    LAB = "legacy lab (template 2)"
    CLOUD = "legacy cloud (template 2)"
    GLOBAL_TABLE = "MindCluster global table"
    CROSS_CLUSTER = "MindSpore cross-cluster table"
    DISAGGREGATED_PREFILL = "vLLM disaggregated prefill table"
    LOCAL_RESOURCES = "LLM-DataDist local resources"


# Keys that no other format has, with the format they belong to, most telling first.
_TELLING_KEYS = (
    ("prefill_device_list", Format.DISAGGREGATED_PREFILL),
    ("decode_device_list", Format.DISAGGREGATED_PREFILL),
    ("server_group_list", Format.GLOBAL_TABLE),
    ("cluster_list", Format.CROSS_CLUSTER),
)
_VERSIONS = {"1.0": Format.V1_0, "1.1": Format.V1_1, "1.2": Format.V1_2, "2.0": Format.V2_0}
READ = (Format.V1_0,)  # what this version of tlaunch reads


def recognise(document: Any) -> Format | None:
    """The format of a parsed document; None where it is none that is known."""
    if not isinstance(document, dict):
        return None
    for key, telling in _TELLING_KEYS:
        if key in document:
            return telling
    if "version" not in document:
        return _unversioned(document)
    version = document["version"]
    found = _VERSIONS.get(version) if isinstance(version, str) else None
    concise = found in (Format.V1_0, Format.V1_2)
    return Format.LOCAL_RESOURCES if concise and _lacks_every_rank(document) else found


def refusal(document: Any, found: Format | None) -> Finding | None:
    """Why the document is not read, or None when it is to be checked as v1.0."""
    if not isinstance(document, dict):
        hint = "a rank table starts with { and has the keys version, status, server_count, server_list"
        return Finding((), f"a rank table is a JSON object, this is {_named(document)}", hint)
    if found in READ or (found is None and not isinstance(document.get("version"), str)):
        return None  # the schema says what is wrong with the version
    at = ("version",) if "version" in document else ()
    if found is None:
        return Finding(at, f'version "{str(document["version"])[:20]}" is not known', 'write "1.0" for this format')
    hint = 'add "rank_id" to make it a rank table' if found is Format.LOCAL_RESOURCES else "write the table as v1.0"
    return Finding(at, f"format {found.value} is not read yet by this version", hint)


def _unversioned(document: dict[str, Any]) -> Format | None:
    if "group_list" not in document:
        return None
    return Format.LAB if "deploy_mode" in document else Format.CLOUD


def _lacks_every_rank(document: dict[str, Any]) -> bool:
    """LLM-DataDist describes one device in the shape of a rank table, without any rank."""
    servers = document.get("server_list")
    if not isinstance(servers, list) or len(servers) != 1 or not isinstance(servers[0], dict):
        return False
    devices = servers[0].get("device")
    if not isinstance(devices, list) or len(devices) != 1:
        return False
    return isinstance(devices[0], dict) and "rank_id" not in devices[0]


def _named(value: Any) -> str:
    names = {list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
