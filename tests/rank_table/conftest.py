"""Builders of tables and reports that the tests of this room share."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.rank_table import Profile, read_rank_table


def address(device, server):
    """Devices i and i + 4 of every server share a network when there are eight, as on a 910."""
    return f"192.{device % 4 + 1 if device < 8 else device + 1}.{device // 4 if device < 8 else 0}.{server + 1}"


def make_table(servers=1, devices=2):
    """A valid v1.0 table as plain JSON values, to be broken by a test."""
    return {
        "version": "1.0",
        "server_count": str(servers),
        "server_list": [
            {
                "server_id": f"10.0.0.{server + 1}",
                "device": [
                    {
                        "device_id": str(device),
                        "device_ip": address(device, server),
                        "rank_id": str(server * devices + device),
                    }
                    for device in range(devices)
                ],
                "host_nic_ip": "reserve",
            }
            for server in range(servers)
        ],
        "status": "completed",
    }


@pytest.fixture
def table():
    return make_table


@pytest.fixture
def report(tmp_path):
    """Read JSON values, a text or bytes as a table: the report."""

    def read(content, *, chip="auto", name="table.json", profile=None, mode=0o640):
        path = Path(tmp_path) / name
        if not isinstance(content, str | bytes):
            content = json.dumps(content, indent=2)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        path.chmod(mode)
        return read_rank_table(path, profile or Profile(chip))

    return read
