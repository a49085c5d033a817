"""topoinfo_ranktableConcise.cc: v1.0 and v1.2."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .reading import U32, UNSET, Address, Cluster, Pool, Rank, address, list_of, members, need, size, text_of, unsigned


def concise(document: Any, chip: str, *, has_pods: bool) -> Cluster:
    """GetServerList, GetSuperPodList, and of ParserClusterInfo what every rank finds."""
    servers, count = list_of(document, "server_list"), text_of(document, "server_count", optional=True)
    number = size(servers) if count is None else unsigned(count, "server_count")
    need(number == size(servers), "Concise GetServerList: server_count differs")
    pool, ranks = Pool(), []
    for server in members(servers, "server_list"):
        ranks += single_server(server, pool, number, chip, has_pods=has_pods)
        need(len({len(rank.ips) for rank in ranks}) == 1, "Concise GetDeviceList: numbers of device_ip differ")
    if has_pods and chip == "a3":
        ranks = super_pods(document, pool, ranks, number)
    ranks.sort()
    uses_host = any(rank.on_host for rank in ranks)  # each of them is a process that looks at its own
    first = ranks[0]
    uses_host |= not first.host.unset and all(ip.unset for ip in first.ips)  # DetectNicDepoly
    need(not uses_host or not any(rank.host.unset for rank in ranks), "Concise CheckNicDeployConsistence: no host_ip")
    return Cluster(ranks, number, len(ranks))


def single_server(server: Any, pool: Pool, number: int, chip: str, *, has_pods: bool) -> Iterator[Rank]:
    """GetSingleServer, GetDeviceList."""
    name = text_of(server, "server_id") or ""
    need(0 < len(name.encode()) <= 64, "Concise GetSingleServer: server_id is empty or too long")
    pool.name("server_id", name)
    host_ip = text_of(server, "host_ip", optional=True)
    host = UNSET if host_ip is None else address(host_ip)
    for device in members(list_of(server, "device"), "device"):
        rank = single_device(device, pool, number, chip, host)._replace(server=name)
        yield rank._replace(sdid=super_device_id(device)) if has_pods else rank


def single_device(device: Any, pool: Pool, number: int, chip: str, host: Address) -> Rank:
    """GetSingleDevice and the functions that it calls, in their order."""
    rank_id, device_id = text_of(device, "rank_id") or "", unsigned(text_of(device, "device_id") or "", "device_id")
    limit = {"910": 8, "a2": 16, "a3": 16, "300i": 32}[chip]
    need(device_id < limit, "Concise GetSingleDevice: device_id is too large")
    port(device, "host_port")
    ips = device_ips(device, pool, number, chip, host)
    if port(device, "device_port"):
        port(device, "device_vnic_port")
    on_host = text_of(device, "net_position", optional=True) == "host"  # GetSingleNicInfo
    text_of(device, "net_protocol", optional=True)
    return Rank(unsigned(rank_id, "rank_id"), "", device_id, ips, host, on_host)


def port(device: Any, key: str) -> bool:
    """GetSingleDeviceHostPort, GetSingleDevicePort: whether there is one, of 1 to 65535."""
    written = text_of(device, key, optional=True)
    need(written is None or 1 <= unsigned(written, key) <= 65535, f"Concise GetSingleDevicePort: {key}")
    return written is not None


def device_ips(device: Any, pool: Pool, number: int, chip: str, host: Address) -> tuple[Address, ...]:
    """GetSingleDeviceIp. An A3 needs none: when it asks, it has not read its super pods."""
    written = device.get("device_ip")
    is_text = isinstance(written, str)
    is_set = is_text and written != ""
    if number > 1:
        wrong = (not is_text and host.unset) or (chip == "a2" and not is_set)
        need(chip == "a3" or not wrong, "Concise GetSingleDeviceIp: no device_ip between servers")
    elif "device_ip" in device:
        need(is_text or not host.unset, "Concise GetSingleDeviceIp: device_ip is no string")
    if not is_set:
        return (UNSET,)
    return tuple(map(pool.ip, written.removesuffix(",").split(",")))


def super_device_id(device: Any) -> int:
    """GetSingleSuperDeviceId: missing, or a number."""
    if "super_device_id" not in device:
        return U32
    written = device["super_device_id"]
    return unsigned(written if isinstance(written, str) else "", "super_device_id")


def super_pods(document: Any, pool: Pool, ranks: list[Rank], number: int) -> list[Rank]:
    """GetSuperPodList, GetSingleSuperPod, GetSingleSuperPodSever, CheckSuperPodInfo, where hardware has super pods."""
    pods = list_of(document, "super_pod_list", optional=True)
    if pods is None:
        return ranks
    pod_of: dict[str, str] = {}
    names = {rank.server for rank in ranks}
    for entry in members(pods, "super_pod_list"):
        pod = text_of(entry, "super_pod_id") or ""
        if not pod:
            continue  # an empty name is an error whose code says success; its servers stay without a super pod
        pool.name("super_pod_id", pod)
        for server in members(list_of(entry, "server_list"), "server_list of a super pod"):
            name = text_of(server, "server_id") or ""
            need(name in names, "Concise GetSingleSuperPodSever: server_id is not in server_list")
            pod_of[name] = pod
    ranks = [rank._replace(pod=pod_of.get(rank.server, "")) for rank in ranks]
    need(all(rank.pod and rank.sdid != U32 for rank in ranks), "Concise CheckSuperPodInfo: no super pod or no SDID")
    need(len({(rank.pod, rank.sdid) for rank in ranks}) == len(ranks), "Concise CheckSuperPodInfo: SDID repeated")
    need(len({rank.server for rank in ranks}) == number, "Concise CheckSuperPodInfo: numbers of servers differ")
    return ranks
