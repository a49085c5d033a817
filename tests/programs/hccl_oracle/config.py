"""config.cc, and what hccl_communicator_attrs.cc and topoinfo_parse.cc ask of the table once it is read."""

from __future__ import annotations

from collections import Counter
from typing import Any

from .concise import concise
from .heterog import heterog
from .reading import Cluster, Rank, need, text_of
from .standard import standard

RINGS = ("0145", "0246", "0347", "1256", "1357", "2367", "0123", "4567")  # topoinfo_parse.cc


def by_version(document: Any, chip: str) -> None:
    """config.cc CfgGetClusterInfo, after LoadFile has waited for the status."""
    need(text_of(document, "status") == "completed", "Parser LoadFile: waits for the status")
    version = text_of(document, "version") if "version" in document else "Standard"  # GetRanktableVersion
    if version == "1.1":
        found = heterog(document)
        check_ranks(found)
        return
    if version in ("1.0", "1.2"):
        found = concise(document, chip, has_pods=version == "1.2")
    else:
        need(version == "Standard", "config.cc CfgGetClusterInfo: version is not supported")
        found = standard(document, chip)
    check_ranks(found)
    check_device_numbers(found, chip)
    init_rank_info(found, chip)


def check_ranks(found: Cluster) -> None:
    """config.cc CheckRankListInfo and, of several servers, CheckRankIpFamily."""
    need([rank.rank for rank in found.ranks] == list(range(len(found.ranks))), "config.cc CheckRankListInfo: ranks")
    if found.server_num > 1:
        hosts = {rank.host.family for rank in found.ranks if not rank.host.unset}
        devices = {ip.family for rank in found.ranks if not rank.ips[0].unset or len(rank.ips) > 1 for ip in rank.ips}
        need(len(hosts) < 2 and len(devices) < 2, "config.cc CheckRankIpFamily: IPv4 and IPv6")


def check_device_numbers(found: Cluster, chip: str) -> None:
    """config.cc CheckRankListBaseInfo, CheckDeviceNumValid: equal servers, but on an A2 and an A3."""
    need(found.device_num and found.server_num, "config.cc CheckRankListBaseInfo: nothing")
    if chip not in ("a2", "a3"):
        each = set(Counter(rank.server for rank in found.ranks).values())
        need(each == {found.device_num // found.server_num}, "config.cc CheckDeviceNumValid: unequal servers")


def init_rank_info(found: Cluster, chip: str) -> None:
    """HcclCommunicatorAttrs::InitRankInfo with TopoInfoParse::ParseAndCheck and CheckRankTable."""
    by_server: dict[str, list[int]] = {}
    for rank in found.ranks:
        by_server.setdefault(rank.server, []).append(rank.device)
    need(len(by_server) == found.server_num, "InitRankInfo: calculated serverNum is not that of the table")
    for devices in by_server.values():
        need(len(set(devices)) == len(devices), "topoinfo_parse.cc CheckInterServerDeviceId: device id repeat")
        need(max(devices) <= 31, "CheckDevPhyId: more than 31")
        if chip == "910":
            ring = "".join(map(str, sorted(devices)))
            need(len(devices) != 4 or ring in RINGS, "topoinfo_parse.cc CheckServerInnerRankInfo: no ring")
            need(len(devices) in (1, 2, 4, 8), "CheckDevCount: 1, 2, 4 or 8")
    check_nics(found)
    if chip == "a2" and len(by_server) == 1:
        check_single_server(found)
    need(found.nic_is_known, "CheckNicDeploy: neither host nor device")


def check_single_server(found: Cluster) -> None:
    """hccl_communicator_host.cc CheckSingleServerComm: an A2 server with two modules of eight uses both alike."""
    modules = [{rank.device % 8 for rank in found.ranks if rank.device // 8 == module} for module in range(2)]
    need(not all(modules) or modules[0] == modules[1], "CheckSingleServerComm: not on the same plane")


def check_nics(found: Cluster) -> None:
    """topoinfo_parse.cc CheckAndAssignNicInfo: servers of eight devices have cards at the same ones of them."""
    by_server: dict[str, list[Rank]] = {}
    for rank in found.ranks:
        by_server.setdefault(rank.server, []).append(rank)
    pods = {rank.pod for rank in found.ranks}
    in_one_pod = len(pods) == 1 and pods != {""}
    if len(by_server) == 1 or in_one_pod or {len(ranks) for ranks in by_server.values()} != {8}:
        return
    for ranks in by_server.values():
        cards = sorted(rank.device for rank in ranks if not (rank.host.unset and rank.ips[0].unset))
        need(cards and len(found.ranks) % len(cards) == 0, "topoinfo_parse.cc CheckAndAssignNicInfo: cards")
        for other in by_server.values() if len(cards) < 8 else ():
            theirs = sorted(rank.device for rank in other if not rank.ips[0].unset)
            need(theirs in ([], cards), "topoinfo_parse.cc CheckAndAssignNicInfo: not the same cards")
