"""The ways to write a cluster: the formats of tables, and three that name hosts for another launcher."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.core.records import Cluster, Device, Server
from launcher.rank_table.formats.group_list.write import CLOUD, LAB
from launcher.rank_table.formats.node_list.write import V1_1
from launcher.rank_table.formats.rank_list.write import V2_0
from launcher.rank_table.formats.server_list.write import V1_0, V1_2
from launcher.rank_table.formats.writing import DEVICE_LIMITS, Reason, Target, equal_servers, plain_host_names
from launcher.rank_table.hostfiles import write_hostfile, write_rankfile
from launcher.rank_table.nodelist import order_of_slurm, write_nodelist


def ranks_follow_the_file(cluster: Cluster) -> Iterator[Reason]:
    """Refuse ranks and devices that are not counted from the first host to the last: hosts and counts say no more."""
    expected = 0
    for server in cluster.servers:
        for slot, device in enumerate(server.devices):
            if device.global_rank != expected:
                yield Reason(_other(server, device, f"rank {expected}"), "a rankfile writes the ranks down")
                return
            if device.device_id != slot:
                yield Reason(_other(server, device, f"device {slot}"), "a rankfile writes the devices down")
                return
            expected += 1


def _other(server: Server, device: Device, counted: str) -> str:
    who = f"rank {device.global_rank}, device {device.device_id} of {server.server_id[:60]!r}"
    return f"ranks and devices are counted from host to host, and {who} would become {counted}"


_COUNTED = (ranks_follow_the_file, plain_host_names)
HOSTFILE = Target("hostfile", write_hostfile, limits=_COUNTED)
RANKFILE = Target("rankfile", write_rankfile, limits=(*DEVICE_LIMITS, plain_host_names))
NODELIST = Target("nodelist", write_nodelist, limits=(*_COUNTED, equal_servers), advice=order_of_slurm)
TARGETS = {target.name: target for target in (V1_0, V1_1, V1_2, V2_0, LAB, CLOUD, HOSTFILE, RANKFILE, NODELIST)}
