"""From texts and lists to a cluster that the reader takes."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.core.errors import UnreadableError
from launcher.rank_table import parse_rank_table, render_table
from launcher.rank_table.devices import MAX_CONF_BYTES, FoundDevice, decode_conf, parse_hccn_conf
from launcher.rank_table.generate import Machine, build_cluster, check_address, devices_per_server, parse_servers

from .conftest import error_of


def plain(name, devices):
    return Machine(name, tuple(FoundDevice(one) for one in range(devices)))


def report_on(cluster):
    return parse_rank_table(render_table(cluster).encode(), Path("table.json"))


# --- options ---


def test_counts_are_for_all_or_for_each():
    assert devices_per_server("8", 3) == (8, 8, 8)
    assert devices_per_server("8, 8,4", 3) == (8, 8, 4)
    assert "2 counts for 3 servers" in error_of(devices_per_server, "8,8", 3)
    assert "2 counts for 1 server" in error_of(devices_per_server, "8,8", 1)


@pytest.mark.parametrize("text", ["0", "-1", "", "eight", "8x", "99999", "9999999999999999999"])
def test_counts_that_no_server_has_are_refused(text):
    assert text in error_of(devices_per_server, text, 2)


@pytest.mark.parametrize(("text", "part"), [
    ("a,b,a", '"a" twice'), ("a,,b", "empty"), ("a[1-2],,b", "empty"), ("a b", "not a valid server name"),
    ("a\x1b2J", "not a valid server name"), ("é" * 33, "66 bytes"), ("-x", "not a valid server name"),
    ("a;b", "not a valid server name"), ("a:1", "not a valid server name"), ("node[1-3", "a bracket is not closed"),
    ("node[3-1]", "runs backwards"), ("node[1-2],node2", '"node2" twice'),
])  # fmt: skip
def test_server_names_that_hccl_refuses(text, part):
    message = error_of(parse_servers, text)
    assert part in message
    assert message.isprintable()


def test_servers_as_slurm_writes_them():
    assert parse_servers("node[08-10] , login") == ("node08", "node09", "node10", "login")
    assert parse_servers(" 10.0.0.1 , fd00::2") == ("10.0.0.1", "fd00::2")


def test_host_ip_is_an_address():
    check_address("10.0.0.1", "--host-ip")
    check_address("fd00::1", "--host-ip")
    assert '--host-ip: "node1"' in error_of(check_address, "node1", "--host-ip")
    assert '--host-ip: "0.0.0.0"' in error_of(check_address, "0.0.0.0", "--host-ip")


# --- hccn.conf ---


def test_everyday_conf():
    text = "# cards\r\n\r\naddress_1 = 10.0.0.2 # second\r\nnetmask_1=255.255.0.0\naddress_0=10.0.0.1\nnetdetect_0=10.0.0.9\n"
    conf = parse_hccn_conf(text, "hccn.conf")
    assert conf.devices == (FoundDevice(0, "10.0.0.1"), FoundDevice(1, "10.0.0.2"))
    assert conf.notes == ()


def test_ipv4_goes_before_ipv6_and_none_is_made_up():
    text = "IPv6address_0=fd00::1\naddress_0=10.0.0.1\nIPv6address_1=fd00::2\n"
    assert parse_hccn_conf(text, "x").devices == (FoundDevice(0, "10.0.0.1"), FoundDevice(1, "fd00::2"))
    unset = "netmask_0=255.255.0.0\naddress_1=\naddress_2=-.-.-.-\naddress_3=0.0.0.0\n"
    assert parse_hccn_conf(unset, "x").devices == tuple(FoundDevice(number) for number in range(4))


def test_all_faults_are_named_with_their_lines():
    text = (
        "address_0=10.0.0.1\naddress_1=10.*.*.*\nnonsense\naddress_0=10.0.0.7\naddress_2=10.0.0.1\n"
        "address_99=10.0.0.9\naddress_04=10.0.0.4\nadress_5=10.0.0.5\naddress_6=fd00::6\n"
    )
    for nothing in ("", "# nothing\n", "route_0=x\n"):
        assert error_of(parse_hccn_conf, nothing, "x", kind=UnreadableError) == "x names no device"
    lines = error_of(parse_hccn_conf, text, "hccn.conf", kind=UnreadableError).split("\n")
    assert lines[0] == "hccn.conf: 8 lines cannot be used"
    for line, number, words in zip(
        lines[1:],
        range(2, 10),
        (
            '"10.*.*.*", which is not an IPv4',
            '"nonsense" is not KEY=VALUE',
            "line 1, with another",
            "line 1 gives to device 0",
            "99 is not a device id",
            "04 is not a device id",
            '"adress_5" is not known',
            "not an IPv4 address",
        ),
        strict=True,
    ):
        assert line.startswith(f"  line {number}: ")
        assert words in line


def test_bytes_in_any_encoding_are_read_up_to_a_size():
    assert decode_conf("# 卡\n".encode("gbk") + b"address_0=10.0.0.1\n", "x").endswith("\naddress_0=10.0.0.1\n")
    assert decode_conf(b"#" * MAX_CONF_BYTES, "x")
    too_large = error_of(decode_conf, b"#" * (MAX_CONF_BYTES + 1), "x", kind=UnreadableError)
    assert too_large == "x is larger than 1 MiB"


@st.composite
def confs(draw):
    """A valid hccn.conf, and the address of each device that it names."""
    ids = draw(st.lists(st.integers(0, 31), min_size=1, max_size=16, unique=True))
    version, network = draw(st.sampled_from([("", "10.0.0.0/8"), ("IPv6", "fd00::/8")]))
    count = len(ids)
    drawn = draw(st.lists(st.ip_addresses(network=network), min_size=count, max_size=count, unique=True))
    addresses = {one: str(address) for one, address in zip(ids, drawn, strict=True)}
    blank = st.sampled_from(["", " ", "\t"])
    lines = [f"{draw(blank)}{version}address_{one}{draw(blank)}={draw(blank)}{addresses[one]}" for one in ids]
    others = ["", "# comment: address_0=1.2.3.4", "netdetect_3=10.0.0.1", "gateway_0=10.0.0.1"]
    lines += draw(st.lists(st.sampled_from(others), max_size=6))
    end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    return end.join(draw(st.permutations(lines))) + draw(st.sampled_from(["", end])), addresses


@given(drawn=confs())
def test_any_conf_becomes_a_valid_table_with_exactly_its_addresses(drawn):
    text, addresses = drawn
    cluster = build_cluster([Machine("10.0.0.1", parse_hccn_conf(text, "x").devices)]).cluster
    report = report_on(cluster)
    assert report.problems == ()
    assert report.cluster == cluster
    (server,) = report.cluster.servers
    assert {device.device_id: device.device_ip for device in server.devices} == addresses
    assert [(device.global_rank, device.device_id) for device in server.devices] == list(enumerate(sorted(addresses)))


# --- clusters ---


@pytest.mark.parametrize(("hardware", "written"), [(None, "cpu"), ("gpu", "gpu")])
def test_servers_that_hccl_cannot_join_are_for_cpu_or_gpu(hardware, written):
    generated = build_cluster([plain("a", 1), plain("b", 40)], hardware=hardware)
    assert {server.options for server in generated.cluster.servers} == {(("hardware_type", written),)}
    assert "CPU or GPU" in generated.notes[0].text
    report = report_on(generated.cluster)
    assert report.errors == ()
    assert report.cluster == generated.cluster


def test_further_keys_of_servers_are_written_beside_what_the_table_is_for():
    machines = [Machine(name, (FoundDevice(0),), options=(("container_ip", "10.0.0.7"),)) for name in "ab"]
    (first, _) = build_cluster(machines).cluster.servers
    assert first.options == (("container_ip", "10.0.0.7"), ("hardware_type", "cpu"))
    assert "device 32" in error_of(build_cluster, [Machine("a", (FoundDevice(32),), options=(("pod_ip", "10.0.0.7"),))])


def test_addresses_of_devices_are_enough_between_servers():
    generated = build_cluster([Machine(name, (FoundDevice(0, f"10.1.0.{end}"),)) for end, name in enumerate("ab")])
    assert generated.notes == ()
    assert all(server.host_ip is None and server.options == () for server in generated.cluster.servers)


def test_too_few_too_many_and_unknown_devices_are_refused():
    error_of(build_cluster, [])
    error_of(build_cluster, [plain("a", 1), Machine("b", ())])
    many = plain("a", 4096).devices
    assert "1,024,000 devices" in error_of(build_cluster, [Machine(str(one), many) for one in range(250)])
    assert "device 32" in error_of(build_cluster, [plain("a", 33)])
