"""The keys of each format that become `options` of the records, in the order in which they are written."""

from __future__ import annotations

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
NODE_RANK_OPTIONS = ("device_port", "bind_device_id")
NODE_TABLE_OPTIONS = ("collective_id", "mode", SUB_VERSION, "master_ip", "master_port")
NO_SUPER_DEVICE = "-1"  # how a rank outside every super pod is written
# legacy-lab. A list is kept as JSON text in the records.
LAB_NETWORK_CARDS = "para_plane_nic_name"
LAB_TABLE_OPTIONS = ("board_id", "chip_info", "para_plane_nic_location", LAB_NETWORK_CARDS, "para_plane_nic_num")
# v2.0
RANK_NUMBERS = ("local_id", "replaced_local_id", "device_port", "host_port")
RANK_LAYERS = ("level_list", "control_plane")  # kept as JSON text in the records
RANK_OPTIONS = (*RANK_NUMBERS, *RANK_LAYERS)
RANK_TABLE_OPTIONS = ("detour",)


def usual_board(devices: int) -> dict[str, str]:
    """Return the usual description of boards of `devices` devices each in a lab's table."""
    cards = ",".join(f'"eth{index}"' for index in range(devices))
    return dict(zip(LAB_TABLE_OPTIONS, ("0x0000", "910", "device", f"[{cards}]", str(devices)), strict=True))


# of v1.2 alone
SUPER_POD = frozenset({"super_pod_id", "super_device_id"})
# HCCL never reads these: where a format has no place for them they stay behind, and that is said.
NEVER_READ = frozenset({"host_nic_ip", *SERVER_OPTIONS, *LAB_TABLE_OPTIONS, "collective_id", SUB_VERSION})
