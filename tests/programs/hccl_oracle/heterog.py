"""topoinfo_ranktableHeterog.cc: v1.1."""

from __future__ import annotations

from typing import Any

from .reading import Address, Cluster, Pool, Rank, address, list_of, members, need, signed, size, text_of, unsigned


def heterog(document: Any) -> Cluster:
    """GetRanktableInfo, GetSingleNode, CheckNicDeployConsistence."""
    in_pods = "heterog_sub_version" in document
    need(not in_pods or text_of(document, "heterog_sub_version") == "1.2", "Heterog CheckHeterogSubVersion")
    need(len((text_of(document, "collective_id") or "").encode()) <= 127, "Heterog GetRanktableInfo: collective_id")
    nodes = list_of(document, "node_list")
    need(text_of(document, "mode", optional=True) in (None, "tcp", "rdma"), "Heterog CheckMode")
    pool, ranks = Pool(), []
    for node in members(nodes, "node_list"):
        name = text_of(node, "node_addr") or ""
        pool.name("server_id", name)
        host = address(name)
        entries = members(list_of(node, "ranks"), "ranks")
        ranks += [heterog_rank(entry, name, host, in_pods=in_pods) for entry in entries]
    need(len({rank.host.unset for rank in ranks}) == 1, "Heterog CheckNicDeployConsistence: a node without an address")
    return Cluster(sorted(ranks), size(nodes), sum(rank.device != -1 for rank in ranks))


def heterog_rank(rank: Any, name: str, host: Address, *, in_pods: bool) -> Rank:
    """GetSingleRank, and GetSingleRank91093, to which nothing is optional but bind_device_id."""
    rank_id, device = text_of(rank, "rank_id") or "", -1
    if in_pods or "device_id" in rank:
        device = signed(text_of(rank, "device_id") or "", "device_id")
    if in_pods or "port" in rank:
        signed(text_of(rank, "port") or "", "port")
    written = text_of(rank, "rank_ip") if in_pods else rank.get("rank_ip")
    ip = address(written) if isinstance(written, str) and written else host
    if in_pods:
        signed(text_of(rank, "sdid") or "", "sdid")
        if device == -1:
            signed(text_of(rank, "bind_device_id") or "", "bind_device_id")
    return Rank(unsigned(rank_id, "rank_id"), name, device, (ip,), host)
