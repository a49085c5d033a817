"""The formats, their optional keys, and the one a document is written in: by `version` as HCCL decides, by its keys where that is absent.

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
    SWITCHES = "switches"

    @property
    def is_rank_table(self) -> bool:
        """True if HCCL reads it. What is no rank table is recognised, named, and checked no further."""
        return self not in _RELATED

    @property
    def title(self) -> str:
        """The name of the format in words."""
        return _TITLES[self]

    @property
    def use(self) -> str:
        """The program that reads a format that is no rank table, and what to do with the file."""
        return _RELATED[self]


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
    Format.SWITCHES: "list of network switches",
}

# Whose file it is, and what to do with it instead.
_RELATED = {
    Format.GLOBAL_TABLE: "MindCluster reads it; each of its groups gets a rank table of its own",
    Format.CROSS_CLUSTER: "MindSpore reads it, HCCL is set up without it; leave cluster_list out to make it a rank table",
    Format.DISAGGREGATED_PREFILL: "vLLM reads it from DISAGGREGATED_PREFILL_RANK_TABLE_PATH; it has no ranks",
    Format.LOCAL_RESOURCES: 'it goes into the option llm.LocalCommRes; add "rank_id" to make it a rank table',
    Format.ROOT_INFO: "HCCL reads it where there is no rank table; leave topo_file_path out to make it one",
    Format.RESOURCE_REQUEST: "it asks a resource manager for devices; the rank table is the answer to it",
    Format.SWITCHES: "MindCluster's scheduler reads it to place jobs; name the rank table of the job instead",
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
    ("tor_list", Format.SWITCHES),
    ("tor_count", Format.SWITCHES),
)

VERSIONS = {"1.0": Format.V1_0, "1.1": Format.V1_1, "1.2": Format.V1_2, "2.0": Format.V2_0}

# Keys that become `options` of the records, in the order in which they are written.
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
SUB_VERSION = "heterog_sub_version"  # its presence makes more keys of a rank mandatory
NODE_TABLE_OPTIONS = ("collective_id", "mode", SUB_VERSION, "master_ip", "master_port")
NO_SUPER_DEVICE = "-1"  # how a rank outside every super pod is written
# legacy-lab. A list is kept as JSON text in the records.
LAB_TABLE_OPTIONS = ("board_id", "chip_info", "para_plane_nic_location", "para_plane_nic_name", "para_plane_nic_num")
# v2.0
RANK_NUMBERS = ("local_id", "replaced_local_id", "device_port", "host_port")
RANK_LAYERS = ("level_list", "control_plane")  # kept as JSON text in the records
RANK_OPTIONS = (*RANK_NUMBERS, *RANK_LAYERS)
RANK_TABLE_OPTIONS = ("detour",)
# of v1.2 alone
SUPER_POD = frozenset({"super_pod_id", "super_device_id"})
# HCCL never reads these: where a format has no place for them they stay behind, and that is said.
NEVER_READ = frozenset({"host_nic_ip", *SERVER_OPTIONS, *LAB_TABLE_OPTIONS, "collective_id", SUB_VERSION})


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
    if found in SERVER_LISTS:
        # LLM-DataDist's description of one device is a rank table without any rank.
        match document.get("server_list"):
            case [{"device": [dict(device)]}] if "rank_id" not in device:
                return Format.LOCAL_RESOURCES
    return found


def groups_are_servers(document: dict[str, Any]) -> bool:
    """Return whether `group_list` holds servers, so that the document is a v1.0 table with other names for its keys."""
    groups = document.get("group_list")
    if "server_list" in document or not isinstance(groups, list) or not groups:
        return False
    first = groups[0]
    return isinstance(first, dict) and {"server_id", "devices"} <= first.keys() and "instance_list" not in first


def list_of_another(document: dict[str, Any], found: Format) -> str | None:
    """Return the key of another format's list, where a document in the format `found` has that and not its own."""
    own = LISTS[found]
    return None if own in document else next((key for key in LISTS.values() if key in document), None)


def _unversioned(document: dict[str, Any]) -> Format | None:
    if groups_are_servers(document):
        return Format.V1_0
    if "deploy_mode" in document:
        return Format.LAB
    if {"group_list", "group_count"} & document.keys():
        return Format.CLOUD
    by_list = {"rank_list": Format.V2_0, "node_list": Format.V1_1, "server_list": Format.V1_0}
    for key, found in by_list.items():
        if key in document:
            return found
    return Format.V1_0 if {"server_count", "status"} & document.keys() else None
