"""The formats, and the one a document is written in: by `version` as HCCL decides, by its keys where that is absent.

Files of other programs come first: they say "1.0" or "1.2" too, and have keys that no rank table has.
"""

from __future__ import annotations

from enum import Enum
from typing import Any


class Format(Enum):
    """The formats in use, related files that HCCL does not read included. The value is the name shown to users."""

    V1_0 = "v1.0"
    V1_1 = "v1.1"
    V1_2 = "v1.2"
    V2_0 = "v2.0"
    LAB = "legacy-lab"
    CLOUD = "legacy-cloud"
    GLOBAL_TABLE = "global-table"
    CROSS_CLUSTER = "v1.0+cluster_list"
    DISAGGREGATED_PREFILL = "vllm-pd"
    LOCAL_RESOURCES = "local-comm-res"
    ROOT_INFO = "root-info"
    RESOURCE_REQUEST = "resource-request"

    @property
    def is_rank_table(self) -> bool:
        """True if HCCL reads it. What is no rank table is recognised, named, and checked no further."""
        return self not in _RELATED

    @property
    def title(self) -> str:
        """The name of the format in words."""
        return _TITLES[self]


_TITLES = {
    Format.V1_0: "rank table v1.0",
    Format.V1_1: "heterogeneous rank table (v1.1)",
    Format.V1_2: "super pod rank table (v1.2)",
    Format.V2_0: "A5 rank table (v2.0)",
    Format.LAB: "legacy rank table for a lab (template 2, deploy_mode)",
    Format.CLOUD: "legacy rank table of a cloud (template 2, group_list)",
    Format.GLOBAL_TABLE: "MindCluster global table (groups of servers for serving)",
    Format.CROSS_CLUSTER: "MindSpore cross-cluster table",
    Format.DISAGGREGATED_PREFILL: "vLLM table for disaggregated prefill",
    Format.LOCAL_RESOURCES: "description of one device's links for LLM-DataDist",
    Format.ROOT_INFO: "root-info file of an A5 server",
    Format.RESOURCE_REQUEST: "resource manager's request",
}


# Whose file it is, and what to do with it instead.
_RELATED = {
    Format.GLOBAL_TABLE: "MindCluster reads it; each of its groups gets a rank table of its own",
    Format.CROSS_CLUSTER: "MindSpore reads it, HCCL is set up without it; leave cluster_list out to make it a rank table",
    Format.DISAGGREGATED_PREFILL: "vLLM reads it from DISAGGREGATED_PREFILL_RANK_TABLE_PATH; it has no ranks",
    Format.LOCAL_RESOURCES: 'it goes into the option llm.LocalCommRes; add "rank_id" to make it a rank table',
    Format.ROOT_INFO: "HCCL reads it where there is no rank table; leave topo_file_path out to make it one",
    Format.RESOURCE_REQUEST: "it asks a resource manager for devices; the rank table is the answer to it",
}


SERVER_LISTS = frozenset({Format.V1_0, Format.V1_2})


GROUP_LISTS = frozenset({Format.LAB, Format.CLOUD})


RANKED = frozenset({Format.V1_0, Format.V1_1, Format.V1_2, Format.V2_0, Format.LAB})  # ranks are written in the file


STRINGS = frozenset({Format.V1_0, Format.V1_1, Format.V1_2, Format.LAB, Format.CLOUD})  # numbers are strings


# The list of each format, in which its servers or ranks stand.
LISTS = {
    Format.V1_0: "server_list",
    Format.V1_2: "server_list",
    Format.V1_1: "node_list",
    Format.V2_0: "rank_list",
    Format.LAB: "group_list",
    Format.CLOUD: "group_list",
}


# Keys that no rank table has, with the format they belong to, most telling first.
_TELLING_KEYS = (
    ("prefill_device_list", Format.DISAGGREGATED_PREFILL),
    ("decode_device_list", Format.DISAGGREGATED_PREFILL),
    ("server_group_list", Format.GLOBAL_TABLE),
    ("cluster_list", Format.CROSS_CLUSTER),
    ("allocated_group_resource", Format.RESOURCE_REQUEST),
    ("topo_file_path", Format.ROOT_INFO),
)


VERSIONS = {"1.0": Format.V1_0, "1.1": Format.V1_1, "1.2": Format.V1_2, "2.0": Format.V2_0}


def recognise(document: Any) -> Format | None:
    """Return the format of a parsed document; None where it is unknown.

    A document without `version` whose keys are those of v1.0 is called v1.0, and refused for the missing key.
    """
    if not isinstance(document, dict):
        return None
    for key, telling in _TELLING_KEYS:
        if key in document:
            return telling
    if "version" not in document:
        return _unversioned(document)
    version = document["version"]
    if not isinstance(version, str):  # refused, but what was meant can be said
        return VERSIONS.get(str(version)) or _unversioned(document) or Format.V1_0
    found = VERSIONS.get(version)
    concise = found in (Format.V1_0, Format.V1_2)
    return Format.LOCAL_RESOURCES if concise and _lacks_every_rank(document) else found


def list_of_another(document: dict[str, Any], found: Format) -> str | None:
    """Return the key of another format's list, where a document in the format `found` has that and not its own."""
    own = LISTS[found]
    return None if own in document else next((key for key in LISTS.values() if key in document), None)


def what_to_do_with(related: Format) -> str:
    """Name the program that reads a format that is not a rank table, and what to do with it."""
    return _RELATED[related]


def _unversioned(document: dict[str, Any]) -> Format | None:
    if "deploy_mode" in document:
        return Format.LAB
    if {"group_list", "group_count"} & document.keys():
        return Format.CLOUD
    by_list = {"rank_list": Format.V2_0, "node_list": Format.V1_1, "server_list": Format.V1_0}
    for key, found in by_list.items():
        if key in document:
            return found
    return Format.V1_0 if {"server_count", "status"} & document.keys() else None


def _lacks_every_rank(document: dict[str, Any]) -> bool:
    """Return whether this is LLM-DataDist's description of one device: a rank table without any rank."""
    servers = document.get("server_list")
    if not isinstance(servers, list) or len(servers) != 1 or not isinstance(servers[0], dict):
        return False
    devices = servers[0].get("device")
    if not isinstance(devices, list) or len(devices) != 1:
        return False
    return isinstance(devices[0], dict) and "rank_id" not in devices[0]
