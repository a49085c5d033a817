"""The formats of rank tables, their optional keys, and the recognition of a document's format.

Like HCCL, use `version`, or the keys if it is missing. Files of other programs are recognised first: they may also
contain "1.0" or "1.2", but have keys that no rank table has.
"""

from __future__ import annotations

from enum import Enum
from typing import Any


class Format(Enum):
    """The known file formats, including formats of related files that HCCL does not read."""

    _value_: str
    title: str
    use: str | None  # the program that reads the file, and what to do with it; None for rank tables

    V1_0 = "v1.0", "rank table v1.0"
    V1_1 = "v1.1", "heterogeneous rank table (v1.1)"
    V1_2 = "v1.2", "super pod rank table (v1.2)"
    V2_0 = "v2.0", "A5 rank table (v2.0)"
    LAB = "legacy-lab", "legacy rank table for a lab (template 2, deploy_mode)"
    CLOUD = "legacy-cloud", "legacy rank table of a cloud (template 2, group_list)"
    GLOBAL_TABLE = (
        "global-table", "MindCluster global table (groups of servers for serving)",
        "MindCluster reads it; use the rank table of one of its groups",
    )  # fmt: skip
    CROSS_CLUSTER = (
        "v1.0+cluster_list", "MindSpore cross-cluster table",
        "only MindSpore reads it; remove cluster_list to make it a rank table",
    )  # fmt: skip
    DISAGGREGATED_PREFILL = (
        "vllm-pd", "vLLM table for disaggregated prefill",
        "give a rank table instead; vLLM reads this file from DISAGGREGATED_PREFILL_RANK_TABLE_PATH",
    )  # fmt: skip
    LOCAL_RESOURCES = (
        "local-comm-res", "description of one device's links for LLM-DataDist",
        'it is the value of the option llm.LocalCommRes; add "rank_id" to make it a rank table',
    )  # fmt: skip
    ROOT_INFO = (
        "root-info", "root-info file of an A5 server",
        "HCCL reads it if there is no rank table; remove topo_file_path to make it one",
    )  # fmt: skip
    RESOURCE_REQUEST = (
        "resource-request", "resource manager's request",
        "it requests devices from a resource manager; use the rank table that the manager returns",
    )  # fmt: skip
    SWITCHES = (
        "switches", "list of network switches",
        "MindCluster's scheduler reads it to place jobs; name the rank table of the job instead",
    )  # fmt: skip

    def __new__(cls, value: str, title: str, use: str | None = None) -> Format:  # noqa: PYI034 - typing.Self needs Python 3.11
        member = object.__new__(cls)
        member._value_, member.title, member.use = value, title, use
        return member

    @property
    def is_rank_table(self) -> bool:
        """True if HCCL reads the format. Other formats are recognised and named, but not checked."""
        return self.use is None


SERVER_LISTS = frozenset({Format.V1_0, Format.V1_2})
GROUP_LISTS = frozenset({Format.LAB, Format.CLOUD})
RANKED = frozenset({Format.V1_0, Format.V1_1, Format.V1_2, Format.V2_0, Format.LAB})  # ranks are written in the file
STRINGS = frozenset({Format.V1_0, Format.V1_1, Format.V1_2, Format.LAB, Format.CLOUD})  # numbers are strings

# The key of each format's list of servers or ranks.
LISTS = {
    Format.V1_0: "server_list",
    Format.V1_2: "server_list",
    Format.V1_1: "node_list",
    Format.V2_0: "rank_list",
    Format.LAB: "group_list",
    Format.CLOUD: "group_list",
}

# Keys that no rank table has, with their format, the most specific first.
_TELLING_KEYS = (
    ("prefill_device_list", Format.DISAGGREGATED_PREFILL),
    ("decode_device_list", Format.DISAGGREGATED_PREFILL),
    ("server_group_list", Format.GLOBAL_TABLE),
    ("cluster_list", Format.CROSS_CLUSTER),
    ("allocated_group_resource", Format.RESOURCE_REQUEST),
    ("topo_file_path", Format.ROOT_INFO),
    ("tor_list", Format.SWITCHES),
    ("tor_count", Format.SWITCHES),
)

VERSIONS = {"1.0": Format.V1_0, "1.1": Format.V1_1, "1.2": Format.V1_2, "2.0": Format.V2_0}

# Keys that are stored as `options` of the records, in output order.
# v1.0 and v1.2
DEVICE_OPTIONS = (
    "device_port",
    "device_vnic_port",
    "host_port",
    "backup_device_ip",
    "backup_device_port",
    "net_position",
    "net_protocol",
)
SERVER_OPTIONS = ("container_ip", "hardware_type", "server_ip", "pod_ip", "server_index")
# v1.1
SUB_VERSION = "heterog_sub_version"  # if present, a rank needs more keys
NODE_TABLE_OPTIONS = ("collective_id", "mode", SUB_VERSION, "master_ip", "master_port")
NO_SUPER_DEVICE = "-1"  # marks a rank outside every super pod
# legacy-lab. A list is kept as JSON text in the records.
LAB_TABLE_OPTIONS = ("board_id", "chip_info", "para_plane_nic_location", "para_plane_nic_name", "para_plane_nic_num")
# v2.0
RANK_NUMBERS = ("local_id", "replaced_local_id", "device_port", "host_port")
RANK_LAYERS = ("level_list", "control_plane")  # kept as JSON text in the records
RANK_OPTIONS = (*RANK_NUMBERS, *RANK_LAYERS)
RANK_TABLE_OPTIONS = ("detour",)
# only v1.2
SUPER_POD = frozenset({"super_pod_id", "super_device_id"})
# HCCL never reads these keys. A format that cannot hold them drops them, with a note.
NEVER_READ = frozenset({"host_nic_ip", *SERVER_OPTIONS, *LAB_TABLE_OPTIONS, "collective_id", SUB_VERSION})


def recognise(document: Any) -> Format | None:
    """Return the format of a parsed document, or None if it is unknown.

    A document with the keys of v1.0 but without `version` counts as v1.0, and is refused for the missing key.
    """
    if not isinstance(document, dict):
        return None
    for key, telling in _TELLING_KEYS:
        if key in document:
            return telling
    if "version" not in document:
        return _unversioned(document)
    version = document["version"]
    if not isinstance(version, str):  # refused later
        return VERSIONS.get(str(version)) or _unversioned(document) or Format.V1_0
    found = VERSIONS.get(version)
    if found in SERVER_LISTS:
        # LLM-DataDist's description of one device is a rank table without any rank.
        match document.get("server_list"):
            case [{"device": [dict(device)]}] if "rank_id" not in device:
                return Format.LOCAL_RESOURCES
    return found


def groups_are_servers(document: dict[str, Any]) -> bool:
    """Return True if `group_list` lists servers. The file is then a v1.0 table with wrong key names."""
    groups = document.get("group_list")
    if "server_list" in document or not isinstance(groups, list) or not groups:
        return False
    first = groups[0]
    return isinstance(first, dict) and {"server_id", "devices"} <= first.keys() and "instance_list" not in first


def list_of_another(document: dict[str, Any], found: Format) -> str | None:
    """If the document has the list of another format instead of format `found`, return the list's key, else None."""
    return None if LISTS[found] in document else next((key for key in LISTS.values() if key in document), None)


def _unversioned(document: dict[str, Any]) -> Format | None:
    if groups_are_servers(document):
        return Format.V1_0
    if "deploy_mode" in document:
        return Format.LAB
    if {"group_list", "group_count"} & document.keys():
        return Format.CLOUD
    for key, found in {"rank_list": Format.V2_0, "node_list": Format.V1_1, "server_list": Format.V1_0}.items():
        if key in document:
            return found
    return Format.V1_0 if {"server_count", "status"} & document.keys() else None
