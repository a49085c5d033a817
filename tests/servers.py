"""Servers of a rank table, machines, and a job of Slurm, as tests write them."""

import json

from launcher.core.records import Device, Server
from launcher.engines import slurm_allocation
from launcher.engines.placement import Machine, Node

NODES = (("n1", "n1", "10.0.0.1"), ("n2", "host2", "10.0.0.2"), ("n3", "n3", "10.0.0.3"))
SLURM_JOB = slurm_allocation.Allocation(
    job_id="12", nodes=tuple(slurm_allocation.Node(*node) for node in NODES), ends_at_s=None, gpus_per_node=None, here=None,
    version="Slurm 22.05.8",
)  # fmt: skip


def server(name, first=0, count=2, **more):
    return Server(name, tuple(Device(index, first + index) for index in range(count)), **more)


def servers(*names, each=1):
    places = {name: place for place, name in enumerate(dict.fromkeys(names))}
    return tuple(server(name, places[name] * each, each) for name in names)


def uniform(core_count):
    return Machine((Node(0, tuple((cpu,) for cpu in range(core_count))),))


def table_of(path, servers, count=2, network="192.168"):
    if not isinstance(servers, dict):
        servers = {server: range(number * count, (number + 1) * count) for number, server in enumerate(servers)}
    entries = []
    for number, (server, ranks) in enumerate(servers.items()):
        devices = [
            {"device_id": str(index), "device_ip": f"{network}.{number}.{index + 1}", "rank_id": str(rank)}
            for index, rank in enumerate(ranks)
        ]
        entries.append({"server_id": server, "device": devices})
    whole = {"version": "1.0", "server_count": str(len(servers)), "server_list": entries, "status": "completed"}
    path.write_text(json.dumps(whole))
    return path
