"""topoinfo_ranktableStandard.cc: a lab's table and a cloud's, the two formats without a version."""

from __future__ import annotations

from typing import Any

from .reading import UNSET, Cluster, Pool, Rank, list_of, members, need, size, text_of, unsigned


def standard(document: Any, chip: str) -> Cluster:
    """GetDeployMode, GetHcomInfo or GetCloudHcomInfo, GetGroupList."""
    is_cloud, nic_is_known = "deploy_mode" not in document, True
    if not is_cloud:
        location = text_of(document, "para_plane_nic_location")
        need(location != "host", "Standard GetHcomInfo: host nic is unsupported")
        nic_is_known = location == "device"
        need(nic_is_known or chip == "300i", "Standard GetHcomInfo: para_plane_nic_location is not device")
    number = unsigned(text_of(document, "group_count") or "", "group_count")
    groups = list_of(document, "group_list")
    need(number and number == size(groups), "Standard GetGroupList: group_count differs")
    pool, ranks, servers = Pool(), [], 0
    for group in members(groups, "group_list"):
        pool.name("group_name", text_of(group, "group_name") or "")
        found, server_num = single_group(group, pool, chip, is_cloud=is_cloud, reads_ips=nic_is_known)
        ranks += found
        servers += server_num
    if is_cloud:  # GetSortClouldRankList
        ranks.sort(key=lambda rank: (rank.server.encode(), rank.device))
        ranks = [rank._replace(rank=index) for index, rank in enumerate(ranks)]
        servers = len({rank.server for rank in ranks})
    return Cluster(sorted(ranks), servers, len(ranks), nic_is_known)


def single_group(group: Any, pool: Pool, chip: str, *, is_cloud: bool, reads_ips: bool) -> tuple[list[Rank], int]:
    """GetLabSingleGroup or GetSingleGroupDeviceCount, then GetInstanceList."""
    instances_num = unsigned(text_of(group, "instance_count") or "", "instance_count")
    devices_num = unsigned(text_of(group, key := "device_count" if is_cloud else "device_num") or "", key)
    need(instances_num and devices_num, "Standard GetGroupList: a count is zero")
    server_num = 0
    if not is_cloud:
        server_num = unsigned(text_of(group, "server_num") or "", "server_num")
        need(server_num, "Standard GetLabSingleGroup: server_num is zero")
        if chip != "300i":  # CheckAverageDev
            is_part = devices_num % server_num == 0 and devices_num // server_num in (1, 2, 4, 8, 16)
            need(is_part, "Parser CheckAverageDev: device_num / server_num")
        need(instances_num == devices_num, "Standard GetLabSingleGroup: instance_count is not device_num")
    instances = members(list_of(group, "instance_list"), "instance_list")
    ranks = []
    for instance in instances:
        name = text_of(instance, "server_id") or ""
        need(0 < len(name.encode()) <= 64, "Standard GetInstanceList: server_id is empty or too long")
        devices = members(list_of(instance, "devices"), "devices")
        if is_cloud:
            pool.name("pod_name", text_of(instance, "pod_name") or "")
        else:  # GetDevList forgets the rank after the first device
            need(len(devices) == 1, "Standard GetDevList: no rank for a second device")
        rank = 0 if is_cloud else unsigned(text_of(instance, "rank_id") or "", "rank_id")
        has_ips = reads_ips if not is_cloud else len(instances) > 1
        ranks += [group_device(one, pool, chip, name, rank, has_ips=has_ips, is_cloud=is_cloud) for one in devices]
    need(len(instances) == instances_num and len(ranks) == devices_num, "Standard GetInstanceList: counts differ")
    return ranks, server_num


def group_device(device: Any, pool: Pool, chip: str, name: str, rank: int, *, has_ips: bool, is_cloud: bool) -> Rank:
    """GetDevList, GetCloudDevList: the address is one, and may be empty."""
    device_id = unsigned(text_of(device, "device_id") or "", "device_id")
    need(device_id < 8 or not (is_cloud or chip == "910"), "Standard GetDevList: device_id more than 7")
    written = text_of(device, "device_ip") if has_ips else ""
    return Rank(rank, name, device_id, (pool.ip(written) if written else UNSET,), UNSET)
