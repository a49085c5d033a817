"""A cluster back to the text of a v1.0 table."""

from __future__ import annotations

import json

from launcher.core.records import Cluster, Device, Server


def render_table(cluster: Cluster) -> str:
    """The canonical v1.0 table: fixed order of keys, one line per device, a newline at the end.

    Equal clusters give equal text on every node, which HCCL compares by checksum. Reading it gives the same cluster
    again. An address that the cluster does not have is left out, never invented.
    """
    servers = ",\n".join(_server(server) for server in cluster.servers)
    return (
        "{\n"
        '  "version": "1.0",\n'
        f'  "server_count": "{len(cluster.servers)}",\n'
        f'  "server_list": [\n{servers}\n  ],\n'
        '  "status": "completed"\n'
        "}\n"
    )


def _server(server: Server) -> str:
    devices = ",\n".join(f"        {_device(device)}" for device in server.devices)
    addresses = {"host_ip": server.host_ip, "host_nic_ip": server.host_nic_ip}
    host = "".join(f',\n      "{key}": {_string(value)}' for key, value in addresses.items() if value is not None)
    return (
        f'    {{\n      "server_id": {_string(server.server_id)},\n      "device": [\n{devices}\n      ]{host}\n    }}'
    )


def _device(device: Device) -> str:
    fields = {"device_id": str(device.device_id), "device_ip": device.device_ip, "rank_id": str(device.global_rank)}
    return json.dumps({key: value for key, value in fields.items() if value is not None}, ensure_ascii=False)


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
