"""What HCCL's parser of v1.0 tables takes and refuses, chip by chip, as a list that can be read from top to bottom.

What every chip refuses for the same reason, and only by a rule of its own, is in test_rules.py.
"""

import pytest

from .tables import DROP, servers, without_last

CHIPS = ("auto", "910", "a2", "a3", "300i")
ALL, NONE, OLD = set(CHIPS), set(), {"910", "300i"}


def both(path, value):
    """The same change on both servers; where a value has a star, the server's number stands there."""
    return {path.format(n): value.replace("*", str(n + 1)) if isinstance(value, str) else value for n in range(2)}


# what is said in words: servers, devices on each, what is changed, the chips that refuse it, the codes that say so
CASES = {
    # The table itself
    "server_count is not empty": (2, 1, {"server_count": ""}, ALL, "RT312"),
    "server_list is not empty": (1, 1, {"server_list": []}, ALL, "RT206"),
    # Servers
    "a server has devices": (1, 1, {"s0/device": []}, ALL, "RT206"),
    "host_nic_ip may be anything": (1, 1, {"s0/host_nic_ip": ["reserve"]}, NONE, None),
    "host_ip is an address": (1, 1, {"s0/host_ip": "node-0"}, ALL, "RT331"),
    "host_ip is of one family": (2, 1, {"s0/host_ip": "10.0.0.1", "s1/host_ip": "fd00::1"}, ALL, "RT335"),
    "families may differ on one server": (1, 2, {"d0.0/device_ip": "fd00::1"}, NONE, None),
    # Ranks and device ids
    "device_id 7 is the last of a 910": (1, 1, {"d0.0/device_id": "8"}, {"910"}, "RT322"),
    "device_id 15 is the last of an A2 and A3": (1, 1, {"d0.0/device_id": "16"}, {"910", "a2", "a3"}, "RT322"),
    "device_id 31 is the last of a 300I": (1, 1, {"d0.0/device_id": "32"}, ALL, "RT322"),
    # Numbers of devices
    "servers are alike on old chips": (2, 2, {"s1/device": without_last}, OLD, "RT342"),
    "three devices of a 910 are no ring": (1, 3, {}, {"910"}, "RT341"),
    "sixteen devices are too many for a 910 alone": (1, 16, {}, {"910"}, "RT322 RT341"),
    # Addresses of devices
    "device_ip is a string": (1, 1, {"d0.0/device_ip": None}, ALL, "RT205"),
    "device_ip is needed between servers": (2, 1, {"d1.0/device_ip": DROP}, ALL, "RT333"),
    "device_ip is not empty between servers": (2, 1, {"d1.0/device_ip": ""}, ALL, "RT333"),
    "host_ip stands in for device_ip, but not on an A2": (
        2, 1, {**both("d{}.0/device_ip", DROP), **both("s{}/host_ip", "10.0.0.*")}, {"a2"}, "RT333"
    ),
    # An A2 does not get as far as RT336.
    "host_ip on the server of rank 0 asks for the others": (
        2, 1, {"d0.0/device_ip": DROP, "s0/host_ip": "10.0.0.1"}, ALL, "RT336 RT333"
    ),
    "net_position host asks for host_ip": (2, 1, {"d1.0/net_position": "host", "s0/host_ip": "10.0.0.1"}, ALL, "RT336"),
    "net_position may be any other text": (2, 1, {"d1.0/net_position": "moon"}, NONE, None),
    "net_position is a string": (2, 1, {"d1.0/net_position": 1}, ALL, "RT205"),
    "net_protocol may be any text": (2, 1, {"d1.0/net_protocol": "udp"}, NONE, None),
    "device_ip is compared as text": (1, 2, {"d0.0/device_ip": "fd00::1", "d0.1/device_ip": "fd00::01"}, NONE, None),
    "0.0.0.0 is the address of no device": (1, 1, {"d0.0/device_ip": "0.0.0.0"}, ALL, "RT331"),
    "nor is it with a zone": (1, 1, {"d0.0/device_ip": "0.0.0.0%eth0"}, ALL, "RT331"),
    "nor is ::": (2, 1, {"d0.0/device_ip": "fd00::1", "d1.0/device_ip": "0::0"}, ALL, "RT331"),
    "nor the second of two": (1, 1, {"d0.0/device_ip": "192.1.0.1,0.0.0.0"}, ALL, "RT331"),
    "each is said once where several devices have it": (
        2, 1, {"d0.0/device_ip": "0.0.0.0", "d1.0/device_ip": "0.0.0.0"}, ALL, "RT331"
    ),
    "host_ip 0.0.0.0 is read as none": (2, 1, both("s{}/host_ip", "0.0.0.0"), NONE, None),
    "so it does not stand in for device_ip": (
        2, 1, {**both("d{}.0/device_ip", DROP), **both("s{}/host_ip", "0.0.0.0")}, ALL, "RT333"
    ),
    "nor among addresses of other servers": (
        2, 1, {**both("d{}.0/device_ip", DROP), "s0/host_ip": "10.0.0.1", "s1/host_ip": "0.0.0.0"}, ALL, "RT333 RT336"
    ),
    "several addresses are written with commas": (1, 1, {"d0.0/device_ip": "192.1.0.1,192.2.0.1"}, NONE, None),
    "a comma at the end is forgiven": (1, 1, {"d0.0/device_ip": "192.1.0.1,"}, NONE, None),
    "blanks around an address are not": (1, 1, {"d0.0/device_ip": "192.1.0.1, 192.2.0.1"}, ALL, "RT331"),
    "an unset address counts as one": (
        1, 2, {"d0.0/device_ip": "192.2.0.1,192.3.0.1", "d0.1/device_ip": ""}, ALL, "RT334"
    ),
    "also the second address of a device": (
        2, 1, {"d0.0/device_ip": "10.1.0.1,10.1.0.2", "d1.0/device_ip": "10.1.0.3,fd00::1"}, ALL, "RT335"
    ),
    # Ports
    "device_port has 16 bits": (1, 1, {"d0.0/device_port": "65536"}, ALL, "RT324"),
    "device_port is not empty": (1, 1, {"d0.0/device_port": ""}, ALL, "RT324"),
    "host_port is not 0": (1, 1, {"d0.0/host_port": "0"}, ALL, "RT324"),
    "host_port may repeat": (1, 2, {"d0.0/host_port": "60000", "d0.1/host_port": "60000"}, NONE, None),
    "device_vnic_port is skipped without device_port": (1, 1, {"d0.0/device_vnic_port": "0"}, NONE, None),
    "whatever its type": (1, 1, {"d0.0/device_vnic_port": 0}, NONE, None),
    "device_vnic_port beside device_port is not 0": (
        1, 1, {"d0.0/device_port": "1", "d0.0/device_vnic_port": "0"}, ALL, "RT324"
    ),
    "device_vnic_port beside device_port is a string": (
        1, 1, {"d0.0/device_port": "1", "d0.0/device_vnic_port": 16666}, ALL, "RT324"
    ),
    # Keys of an A3 that HCCL reads only where operators are retried between super pods
    "backup_device_ip is skipped": (1, 1, {"d0.0/backup_device_ip": "none"}, NONE, None),
    "super_device_id is skipped": (1, 1, {"d0.0/super_device_id": {}}, NONE, None),
    "super_pod_list is skipped": (1, 1, {"super_pod_list": "none"}, NONE, None),
}  # fmt: skip


@pytest.mark.parametrize("name", list(CASES))
def test_each_chip_takes_or_refuses(name, report):
    """A minimal table with one thing changed is taken or refused by each chip, for one reason.

    What is taken becomes a cluster with the same devices, in the order of their ranks.
    """
    count, devices, changes, refused_by, code = CASES[name]
    for chip in CHIPS:
        found = report(servers(count, devices).make(changes), chip=chip)
        errors = {problem.code for problem in found.errors}
        if chip in refused_by:
            assert errors
            assert errors <= set(code.split())
            assert found.cluster is None
        else:
            assert errors == set()
            ranks = [device.global_rank for server in found.cluster.servers for device in server.devices]
            assert ranks == list(range(len(ranks)))
            assert len(ranks) == count * devices - ("s1/device" in changes)


@pytest.mark.parametrize(("path", "value", "code"), [
    ("d1.1/device_ip", "192.1.0.1", "RT332"), ("s1/server_id", "10.0.0.1", "RT314"), ("d1.1/device_id", "0", "RT323"),
    ("d1.1/rank_id", "0", "RT302"),
])  # fmt: skip
def test_what_is_written_twice_is_refused_on_all_hardware(path, value, code, report):
    found = report(servers(2, 2).make({path: value}), chip="none")
    assert [problem.code for problem in found.errors] == [code]
    assert found.cluster is None


def test_addresses_that_are_none_are_no_repeated_ones(report):
    found = report(servers(2, 1).make(both("d{}.0/device_ip", "0.0.0.0")), chip="none")
    assert {problem.code for problem in found.problems} == {"RT331"}
    assert found.cluster is not None
