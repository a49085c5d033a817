"""What a cluster can be written as, and what each of these formats has a place for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from launcher.core.frozen import frozen
from launcher.core.records import Cluster
from launcher.rank_table import hostfiles, keys, limits, nodelist
from launcher.rank_table.limits import Limit
from launcher.rank_table.writers import a5, concise, heterogeneous, legacy

SUPER_POD = frozenset({"super_pod_id", "super_device_id"})
# HCCL never reads these: where a format has no place for them they stay behind, and that is said.
NEVER_READ = frozenset(
    {"host_nic_ip", *keys.SERVER_OPTIONS, *keys.LAB_TABLE_OPTIONS, "collective_id", "heterog_sub_version"}
)

_FIELDS = ("device_ip", "super_device_id", "host_ip", "host_nic_ip")
_CONCISE = frozenset({*_FIELDS, *keys.DEVICE_OPTIONS, *keys.SERVER_OPTIONS})
_HETEROGENEOUS = frozenset({"device_ip", "super_device_id", *keys.NODE_RANK_OPTIONS, *keys.NODE_TABLE_OPTIONS})
_A5 = frozenset({*keys.RANK_OPTIONS, *keys.RANK_TABLE_OPTIONS})
_LEGACY = frozenset({"device_ip"})
_LAB = _LEGACY | frozenset(keys.LAB_TABLE_OPTIONS)


@frozen
class Target:
    """One way to write a cluster down. Invariant: `write` gets only clusters without keys outside `keys`."""

    name: str  # as Format.value has it, or "hostfile", "rankfile", "nodelist"
    write: Callable[[Cluster], str]
    keys: frozenset[str] = frozenset()  # what it has a place for, beside servers, devices and ranks
    limits: tuple[Limit, ...] = ()
    completed: Callable[[Cluster], Cluster] = lambda cluster: cluster  # adds what it demands and others have not
    advice: Callable[[Cluster], Iterator[str]] = lambda _: iter(())  # what a person should know about the result

    @property
    def is_table(self) -> bool:
        """False: it names hosts and slots for another launcher, and what else is known stays in the table."""
        return self.name not in PLAIN


PLAIN = ("hostfile", "rankfile", "nodelist")
_DEVICES = (limits.no_host_ranks, limits.one_rank_per_device)
_OF_A_910 = (*_DEVICES, limits.devices_of_a_910, limits.one_address_each)
_COUNTED = (limits.ranks_follow_the_file, limits.plain_host_names)
TARGETS = {
    target.name: target
    for target in (
        Target("v1.0", concise.write_v1_0, _CONCISE, _DEVICES),
        Target(
            "v1.1",
            heterogeneous.write_v1_1,
            _HETEROGENEOUS,
            (
                limits.one_rank_per_device,
                limits.servers_are_addresses,
                limits.one_address_each,
                limits.one_family_of_addresses,
            ),
            heterogeneous.completed_v1_1,
        ),
        Target("v1.2", concise.write_v1_2, _CONCISE | SUPER_POD, (*_DEVICES, limits.super_pods_for_all)),
        Target("v2.0", a5.write_v2_0, _A5, (limits.no_host_ranks, limits.network_layers_for_all)),
        Target("legacy-lab", legacy.write_lab, _LAB, (*_OF_A_910, limits.equal_parts_of_servers)),
        Target("legacy-cloud", legacy.write_cloud, _LEGACY, (*_OF_A_910, limits.ranks_follow_names)),
        Target("hostfile", hostfiles.write_hostfile, limits=_COUNTED),
        Target("rankfile", hostfiles.write_rankfile, limits=(*_DEVICES, limits.plain_host_names)),
        Target(
            "nodelist",
            nodelist.write_nodelist,
            limits=(*_COUNTED, limits.equal_servers),
            advice=nodelist.order_of_slurm,
        ),
    )
}
