"""The rules: a table of clusters with one thing wrong each, and one runner. Wording is in the snapshot."""

import time
from dataclasses import replace

import pytest

from launcher.core.records import Cluster
from launcher.doctor.facts import Interface, Limit, Port
from launcher.doctor.finding import Evidence
from launcher.doctor.join_failure import JoinFailure, diagnose_output, no_answer
from launcher.doctor.reach import Outcome
from launcher.doctor.rules import judge
from launcher.doctor.rules.network_rules import carried_by, unexpected_interface

GIB, MIB = 1 << 30, 1 << 20
REFUSED = JoinFailure("ssh-refused", "its ssh port refuses connections", "is sshd running there?")
UNREACHABLE = diagnose_output(["ssh: connect to host port 22: No route to host"], "it ended")
SILENT = no_answer(30)
HALVES = [(one, other) for one in range(6) for other in range(6, 12)]
DOCKER = Interface("docker0", ("172.17.0.1",), 1500)


def both(ways):
    return (*ways, *(way[::-1] for way in ways))


def folder(purpose, **changes):
    return lambda cluster: cluster.change_folder(1, purpose, **changes)


def summed_up(words):
    """Return the findings about eight of 36 pairs of servers, and one about the others."""
    pairs = [(0, 6), (0, 7), (0, 8), (0, 9), (0, 10), (0, 11), range(1, 12), (1, 6), (1, 7)]
    return [" ".join([words, *map(str, servers)]) for servers in pairs]


def join_partly(cluster):
    del cluster.facts[1], cluster.facts[3]
    cluster.join_failures = {1: REFUSED, 3: REFUSED}
    cluster.troubles[3] = "its ssh port refuses connections"


def join_not_at_all(cluster):
    cluster.only_from(failure=SILENT)
    cluster.join_failures |= {1: UNREACHABLE, 3: UNREACHABLE}


def hang_after_the_facts(cluster):
    cluster.join_failures = {1: SILENT}
    cluster.troubles[1] = "it stopped answering"


def say_nothing(cluster):
    del cluster.facts[1], cluster.facts[2]
    cluster.reach, cluster.troubles[2] = {}, "unknown message 'collect'"


def try_some_with_large_packets(cluster):
    cluster.lose_large((0, 1), (0, 2))
    for server, other in both([(0, 3)]):
        cluster.reach[server] = tuple(
            replace(one, got_large=one.got_large and one.server != other) for one in cluster.reach[server]
        )


def loopback_down(cluster):
    cluster.cut((1, 1))
    outer, loopback = cluster.facts[1].interfaces
    cluster.change(1, interfaces=(outer, replace(loopback, up=False)))


def without_names(knows_own):
    def change(cluster):
        for server in range(cluster.count):
            for other in range(cluster.count):
                if not knows_own or server != other:
                    cluster.resolve(server, f"h{other + 1}")
            cluster.call_itself(server, f"node-{server}")

    return change


def all_alike_but_one(cluster):
    for server in range(6):
        limit = Limit("nofile", 200 if server < 5 else 201, 200)
        cluster.call_itself(server, f"node-{server}", "127.0.1.1", limits=(limit,))


def written_in_many_ways(cluster):
    for server in (0, 1):
        here = Interface("eth0", (f"fd00::{server + 1}",), 1500 if server else 9000)
        cluster.change(server, interfaces=(here,), interface_variables=(("HCCL_IF_IP", f"FD00:0::{server + 1}"),))
        for other in (0, 1):
            cluster.resolve(server, f"h{other + 1}", f"FD00:0:0::0{other + 1}")


def host_ranks(cluster):
    host = cluster.cluster.servers[1]
    host = replace(host, devices=tuple(replace(device, device_id=-1) for device in host.devices))
    cluster.cluster = Cluster((cluster.cluster.servers[0], host))
    cluster.change(0, ascend_devices=(0, 1))


def mpi_by_address(cluster):
    cluster.change(0, mpi_variables=(("OMPI_MCA_coll", "^han"),))
    servers = (replace(one, server_id=f"10.0.0.{index + 1}") for index, one in enumerate(cluster.cluster.servers))
    cluster.cluster = replace(cluster.cluster, servers=tuple(servers))


def unwritable_for_many_reasons(cluster):
    for server, trouble in enumerate(("Not a directory", "Not a directory", "Read-only file system", None)):
        cluster.change_folder(server, "runs_dir", writable=False, trouble=trouble)


def several(cluster):
    cluster.change(0, ports=(Port(40000),))
    cluster.offsets_s[1] = 30.0
    cluster.change_folder(2, "runs_dir", writable=False)


# Number of servers (and of ranks on each), what is changed, and each finding: its code, severity and servers.
CASES = {
    "nothing": (3, lambda c: None),
    "one server alone is not judged by its name": (1, lambda c: c.resolve(0, "h1", "127.0.1.1")),
    # --- who joins and answers ---
    "silent servers": (3, say_nothing, "no-answer breaks 1", "no-answer breaks 2"),
    "no server of 1 has joined": (1, lambda c: c.only_from(failure=SILENT), "no-answer breaks 0"),
    "no server of 3 has joined": (3, lambda c: c.only_from(failure=SILENT), "no-answer breaks 0 1 2"),
    "one server of many has joined": (3, lambda c: c.only_from(1, failure=SILENT), "no-answer breaks 0 2"),
    "the only server that joined does not know a name": (
        2, lambda c: (c.only_from(0, failure=SILENT), c.resolve(0, "h2")), "no-answer breaks 1", "unknown-name breaks 0 1",
    ),
    "servers with the same cause": (4, join_partly, "ssh-refused breaks 1 3"),
    "a hint names the first server": (4, join_not_at_all, "no-answer breaks 0 2", "host-unreachable breaks 1 3"),
    "hangs after the facts": (2, hang_after_the_facts, "no-answer breaks 1"),
    # --- who reaches whom ---
    "cut both ways": (3, lambda c: c.cut((0, 2), (2, 0)), "unreachable breaks 0 2"),
    "cut one way": (2, lambda c: c.cut((1, 0), outcome=Outcome.REFUSED), "unreachable breaks 0 1"),
    "none reaches it": (4, lambda c: c.cut((0, 2), (1, 2), (3, 2)), "unreachable breaks 2"),
    "none reaches it, and it none": (4, lambda c: c.cut(*both([(0, 2), (1, 2), (3, 2)])), *["unreachable breaks 2"] * 2),
    "wrong listener": (3, lambda c: c.cut((0, 1), outcome=Outcome.WRONG_ANSWER), "wrong-answer breaks 0 1"),
    "two halves":
        (12, lambda c: c.cut(*both(HALVES)), *summed_up("unreachable breaks")),
    "large packets from 0 to 1": (2, lambda c: c.lose_large((0, 1)), "large-packets-lost breaks 0 1"),
    "large packets from 2 to 0": (3, lambda c: c.lose_large((2, 0)), "large-packets-lost breaks 0 2"),
    "large packets both ways": (2, lambda c: c.lose_large((0, 1), (1, 0)), "large-packets-lost breaks 0 1"),
    "large packets from one": (3, lambda c: c.lose_large((0, 1), (0, 2)), "large-packets-lost breaks 0"),
    "large packets to one": (4, lambda c: c.lose_large((0, 2), (1, 2), (3, 2)), "large-packets-lost breaks 2"),
    "large packets of some pairs are not known": (4, try_some_with_large_packets, "large-packets-lost breaks 0"),
    "large packets between halves":
        (12, lambda c: c.lose_large(*both(HALVES)), *summed_up("large-packets-lost breaks")),
    "does not reach itself": (2, lambda c: c.cut((1, 1)), "not-itself breaks 1"),
    "first server of one rank does not reach itself": ((2, 1), lambda c: c.cut((0, 0)), "not-itself breaks 0"),
    "other server of one rank does not reach itself": ((2, 1), lambda c: c.cut((1, 1)), "not-itself risky 1"),
    "loopback is down": (2, loopback_down, "not-itself breaks 1"),
    "its address is elsewhere":
        (2, lambda c: (c.cut((1, 1)), c.change(1, interfaces=(Interface("eth0", ("172.17.0.2",), 1500),))),
         "address-not-own risky 1"),
    # --- names ---
    "unknown on one server":
        (3, lambda c: (c.resolve(0, "h3"), c.cut((0, 2), outcome=Outcome.UNKNOWN_NAME)), "unknown-name breaks 0 2"),
    "unknown only when it was needed":
        (3, lambda c: c.cut((0, 2), outcome=Outcome.UNKNOWN_NAME), "unreachable breaks 0 2"),
    "no names on 2 servers": (2, without_names(knows_own=False), "unknown-name breaks 0 1", "own-name-unknown risky 0 1"),
    "no names on 6 servers":
        (6, without_names(knows_own=False), "unknown-name breaks 0 1 2 3 4 5", "own-name-unknown risky 0 1 2 3 4 5"),
    "only own names on 6 servers":
        (6, without_names(knows_own=True), "unknown-name breaks 0 1 2 3 4 5", "own-name-unknown risky 0 1 2 3 4 5"),
    "several names unknown on one server":
        (4, lambda c: [c.resolve(3, name) for name in ("h1", "h2", "h3")], "unknown-name breaks 0 1 2 3"),
    "no answer of the name server":
        (3, lambda c: (c.resolve(0, "h3", seconds=15.0, answered=False), c.cut((0, 2), outcome=Outcome.UNKNOWN_NAME)),
         "unknown-name breaks 0 2"),
    "unknown, or no answer":
        (3, lambda c: (c.resolve(0, "h3"), c.resolve(2, "h3"), c.resolve(1, "h3", seconds=15.0, answered=False)),
         "unknown-name breaks 0 2", "unknown-name breaks 1 2"),
    "no answer on two servers":
        (3, lambda c: [c.resolve(server, "h2", seconds=15.0, answered=False) for server in (0, 2)],
         "unknown-name breaks 0 1 2"),
    "own name is loopback": (2, lambda c: c.resolve(1, "h2", "127.0.1.1"), "own-name-is-loopback risky 1"),
    "another server's name is loopback": (3, lambda c: c.resolve(0, "h2", "127.0.0.1"), "name-is-loopback breaks 0 1"),
    "hostname is loopback": (2, lambda c: c.call_itself(0, "n", "127.0.1.1"), "own-name-is-loopback risky 0"),
    "hostname is loopback, interface by the user":
        (2, lambda c: c.call_itself(0, "n", "127.0.1.1", interface_variables=(("GLOO_SOCKET_IFNAME", "eth0"),))),
    "hostname is loopback, interface by tlaunch":
        (2, lambda c: c.call_itself(0, "n", "127.0.1.1", ranks_interface="eth0")),
    "hostname is unknown": (2, lambda c: c.call_itself(0, "3f2a"), "own-name-unknown risky 0"),
    "the same words on several servers":
        (6, all_alike_but_one,
         "own-name-is-loopback risky 0 1 2 3 4 5", "few-open-files risky 0 1 2 3 4", "few-open-files risky 5"),
    "one address in common": (3, lambda c: c.resolve(1, "h1", "10.0.0.1", "192.168.0.1")),
    "no address in common": (3, lambda c: c.resolve(2, "h1", "192.168.0.7"), "name-differs risky 0 2"),
    "slow name server": (2, lambda c: c.resolve(1, "h1", "10.0.0.1", seconds=5.01), "slow-name risky 1"),
    "IPv6 written in many ways": (2, written_in_many_ways, "mtu-differs risky 1"),
    # --- interfaces and ports ---
    "interface is down": (
        2, lambda c: c.add_interface(0, Interface("ib0", (), 2044, up=False), interface_variables=(("NCCL_SOCKET_IFNAME", "ib0"),)),
        "no-such-interface breaks 0",
    ),
    "no such interface":
        (2, lambda c: c.change(0, interface_variables=(("GLOO_SOCKET_IFNAME", "ib7"),)), "no-such-interface breaks 0"),
    "no such address":
        (2, lambda c: c.change(0, interface_variables=(("HCCL_IF_IP", "10.0.0.9"),)), "no-such-interface breaks 0"),
    "loopback interface":
        (2, lambda c: c.change(0, interface_variables=(("TP_SOCKET_IFNAME", "lo"),)), "loopback-interface breaks 0"),
    "another interface than the table's":
        (2, lambda c: c.add_interface(0, DOCKER, interface_variables=(("NCCL_SOCKET_IFNAME", "^eth"),)),
         "other-interface risky 0"),
    "MTU of an unused interface": (3, lambda c: c.add_interface(1, replace(DOCKER, mtu=9000))),
    "MTU of the interface of the address":
        (3, lambda c: c.change(1, interfaces=(Interface("eth1", ("10.0.0.2",), 9000),)), "mtu-differs risky 1"),
    "port in use":
        (2, lambda c: c.change(0, ports=(Port(29500, "Address already in use"),)), "port-taken breaks 0"),
    "ephemeral port": (2, lambda c: c.change(0, ports=(Port(40000),)), "port-may-be-taken note 0"),
    "one machine": (3, lambda c: c.change(2, machine="boot 0"), "one-machine risky 0 2"),
    "one machine with devices":
        (3, lambda c: (c.change(2, machine="boot 0"), c.change_all(ascend_devices=(0, 1))), "one-machine breaks 0 2"),
    "two machines with one hostname": (3, lambda c: c.change(2, hostname="h1"), "same-hostname note 0 2"),
    "one machine with one hostname": (3, lambda c: c.change(2, machine="boot 0", hostname="h1"), "one-machine risky 0 2"),
    "machines without an identity": (2, lambda c: c.change_all(machine="")),
    # --- what should be the same ---
    "clocks of 3 servers": (3, lambda c: c.offsets_s.update({2: 90.0}), "clock-skew risky 2"),
    "clocks almost alike": (3, lambda c: c.offsets_s.update({2: 0.9})),
    "clocks of 2 servers": (2, lambda c: c.offsets_s.update({0: 0.0, 1: -7.25}), "clock-skew risky 0 1"),
    "another MPI": (3, lambda c: c.change(0, 2, mpi_trouble="mpi4py loads MPICH"), "other-mpi risky 0 2"),
    "MPI hangs by name":
        (3, lambda c: c.change(0, 2, mpi_variables=(("OMPI_MCA_coll", "^han"),)), "mpi-by-name note 0 2"),
    "MPI by name, addresses in the table": (2, mpi_by_address),
    "MPI by name, one server": (1, lambda c: c.change(0, mpi_variables=(("OMPI_MCA_coll", "^han"),))),
    "another user and interpreter": (
        3, lambda c: c.change(2, user=1000, executable="/usr/bin/python3"), "user-differs risky 2", "python-elsewhere note 2",
    ),
    "table missing, table differs": (
        4, lambda c: (c.change(1, table_digest=None, table_trouble="No such file"), c.change(3, table_digest="another")),
        "table-differs breaks 3", "table-missing note 1",
    ),
    # --- files, limits, devices ---
    "not writable for many reasons":
        (4, unwritable_for_many_reasons, "not-writable breaks 0 1", "not-writable breaks 2", "not-writable breaks 3"),
    # Little space is judged by bytes and by share; a file system without inodes has not run out of them.
    "no working directory": (2, folder("cwd", exists=False), "cwd-missing breaks 1"),
    "no directory of runs yet": (2, folder("runs_dir", exists=False)),
    "runs cannot be written": (2, folder("runs_dir", writable=False), "not-writable breaks 1"),
    "temporary files cannot be written": (2, folder("temporary", writable=False), "not-writable breaks 1"),
    "50 MiB for runs": (2, folder("runs_dir", free_bytes=50 * MIB), "disk-nearly-full breaks 1"),
    "50 MiB for temporary files": (2, folder("temporary", free_bytes=50 * MIB), "disk-nearly-full risky 1"),
    "5 of 500 GiB for runs": (2, folder("runs_dir", free_bytes=5 * GIB), "disk-nearly-full risky 1"),
    "5 of 20 GiB for runs": (2, folder("runs_dir", free_bytes=5 * GIB, total_bytes=20 * GIB)),
    "20 of 500 GiB for runs": (2, folder("runs_dir", free_bytes=20 * GIB)),
    "120 files more for runs": (2, folder("runs_dir", free_inodes=120), "few-inodes risky 1"),
    "12 files more for runs": (2, folder("runs_dir", free_inodes=12), "few-inodes breaks 1"),
    "12 more temporary files": (2, folder("temporary", free_inodes=12), "few-inodes risky 1"),
    "no inodes to run out of": (2, folder("runs_dir", free_inodes=0, total_inodes=0)),
    "64 MiB of shared memory": (2, folder("shared_memory", total_bytes=64 * MIB), "small-shared-memory risky 1"),
    "128 MiB of shared memory": (2, folder("shared_memory", total_bytes=128 * MIB, free_bytes=128 * MIB)),
    "shared memory is full": (2, folder("shared_memory", free_bytes=0), "shared-memory-full risky 1"),
    "64 MiB of shared memory, full":
        (2, folder("shared_memory", total_bytes=64 * MIB, free_bytes=0), "small-shared-memory risky 1"),
    "shared memory is closed": (2, folder("shared_memory", writable=False), "shared-memory-closed risky 1"),
    "64 MiB of shared memory, closed":
        (2, folder("shared_memory", writable=False, total_bytes=64 * MIB), "shared-memory-closed risky 1"),
    "no shared memory": (2, folder("shared_memory", writable=False, exists=False)),
    "64 open files": (2, lambda c: c.change(0, limits=(Limit("nofile", 64, 64),)), "few-open-files breaks 0"),
    "200 open files": (2, lambda c: c.change(0, limits=(Limit("nofile", 200, 200),)), "few-open-files risky 0"),
    "enough open files": (2, lambda c: c.change(0, limits=(Limit("nofile", None, None),))),
    "2,048 ranks":
        ((2, 1024), lambda c: c.change_all(memory_available_bytes=1 << 50, usable_cpus=1024, folders=()),
         "few-open-files breaks 0 1"),
    "2,048 ranks with accelerators": (
        (2, 1024),
        lambda c: c.change_all(
            memory_available_bytes=1 << 50, usable_cpus=1024, folders=(), ascend_devices=tuple(range(1024))
        ),
        "few-open-files risky 0 1",
    ),
    "threads of root": (3, lambda c: c.change(0, limits=(Limit("nproc", 100, 100),))),
    "threads of a user":
        (3, lambda c: c.change_all(user=1000, limits=(Limit("nproc", 100, 100),)), "few-processes risky 0 1 2"),
    "locked memory with RDMA": (2, lambda c: c.change(0, rdma_devices=("mlx5_0",)), "locked-memory risky 0"),
    "enough locked memory":
        (2, lambda c: c.change(0, rdma_devices=("mlx5_0",), limits=(Limit("memlock", 1 << 40, 1 << 40),))),
    "size of files": (2, lambda c: c.change(1, limits=(Limit("fsize", 200 << 10, None),)), "small-files risky 1"),
    "little memory": (2, lambda c: c.change(0, memory_limit_bytes=256 * MIB), "little-memory risky 0"),
    "few processors": (2, lambda c: c.change(1, cpu_limit=1.5), "few-cpus note 1"),
    "devices": (2, lambda c: c.change_all(ascend_devices=(0, 1))),
    "one device missing": (
        2, lambda c: (c.change(0, ascend_devices=(0, 1)), c.change(1, ascend_devices=(1, 2))), "devices-missing breaks 1",
    ),
    "NVIDIA's devices are numbered from 0": (2, lambda c: c.change_all(nvidia_devices=(4, 5))),
    "no device on one server": (2, lambda c: c.change(1, nvidia_devices=(4, 5)), "devices-missing breaks 0"),
    "ranks on the host need no device": (2, host_ranks),
    "the worst comes first": (3, several, "not-writable breaks 2", "clock-skew risky 1", "port-may-be-taken note 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_wrong_is_found_and_nothing_else(make_cluster, snapshot, name):
    size, change, *expected = CASES[name]
    cluster = make_cluster(*size) if isinstance(size, tuple) else make_cluster(size)
    change(cluster)
    found = cluster.findings()
    assert [" ".join([one.code, one.severity.value, *map(str, one.servers)]) for one in found] == expected
    if found:
        assert "\n".join(line for one in found for line in (one.message, f"  {one.hint}")) == snapshot


def test_sound_servers_without_accelerators_give_a_note_and_nothing_else(make_cluster):
    """Virtual machines and laptops have no driver."""
    cluster = make_cluster(3)
    (found,) = judge(Evidence(cluster.cluster, cluster.facts, cluster.reach, cluster.offsets_s))
    assert (found.code, found.severity.value, found.servers) == ("no-accelerator", "note", (0, 1, 2))


@pytest.mark.parametrize(("name", "version", "severity"), [
    ("python", "3.11.9", "note"), ("python", "3.10.7", "risky"), ("torch", "2.6.1+cpu", "note"),
    ("torch", "2.6.0+cu124", "note"), ("torch", "2.5.0", "breaks"), ("torch", None, "breaks"),
    ("MPI", "Open MPI 4.1.4", "risky"), ("MPI", "Open MPI 5.0.9", "note"), ("numpy", "2.2.0", "note"),
    ("numpy", "1.26.4", "risky"),
])  # fmt: skip
def test_versions_differ_more_or_less(make_cluster, name, version, severity):
    cluster = make_cluster(3)
    usual = cluster.facts[0].version(name)
    versions = dict(cluster.facts[1].versions) | {name: version}
    cluster.change(1, versions=tuple((package, each) for package, each in versions.items() if each))
    (found,) = cluster.findings()
    assert (found.code, found.severity.value, found.servers) == ("version-differs", severity, (1,))
    assert found.message.endswith(f"{name} differs: {usual} on servers h1, h3; {version or 'missing'} on server h2")


@pytest.mark.parametrize(("variable", "value", "code"), [
    ("GLOO_SOCKET_IFNAME", "eth0", None), ("GLOO_SOCKET_IFNAME", "eth", "no-such-interface"),
    ("GLOO_SOCKET_IFNAME", "eth0,ib0", "no-such-interface"), ("NCCL_SOCKET_IFNAME", "eth", None),
    ("NCCL_SOCKET_IFNAME", "=eth", "no-such-interface"), ("NCCL_SOCKET_IFNAME", "=eth0", None),
    ("NCCL_SOCKET_IFNAME", "^lo,docker", None), ("NCCL_SOCKET_IFNAME", "^lo,eth,docker", "no-such-interface"),
    ("TP_SOCKET_IFNAME", "eth0", None), ("NCCL_SOCKET_IFNAME", "ib", "no-such-interface"),
    ("HCCL_SOCKET_IFNAME", "^=eth", None), ("HCCL_SOCKET_IFNAME", "eth0:1", None), ("HCCL_IF_IP", "10.0.0.1", None),
    ("HCCL_IF_IP", "10.0.0.9", "no-such-interface"), ("GLOO_SOCKET_IFNAME", "lo", "loopback-interface"),
    ("TP_SOCKET_IFNAME", "lo", "loopback-interface"), ("NCCL_SOCKET_IFNAME", "lo", "loopback-interface"),
    ("NCCL_SOCKET_IFNAME", "^eth,docker", "loopback-interface"), ("HCCL_IF_IP", "127.0.0.1", "loopback-interface"),
    ("NCCL_SOCKET_IFNAME", "^eth", "other-interface"), ("GLOO_SOCKET_IFNAME", "docker0", "other-interface"),
    ("HCCL_IF_IP", "172.17.0.1", "other-interface"), ("NCCL_SOCKET_IFNAME", "docker,eth", None),
    ("NCCL_SOCKET_IFNAME", "^docker", None),
])  # fmt: skip
def test_the_interface_that_a_variable_chooses(make_cluster, variable, value, code):
    severity = "risky" if code == "other-interface" else "breaks"
    for count in (1, 2):
        cluster = make_cluster(count)
        cluster.add_interface(0, DOCKER, interface_variables=((variable, value),))
        found = cluster.findings()
        expected = [(code, severity)] if code and (count == 2 or code == "no-such-interface") else []
        assert [(one.code, one.severity.value) for one in found] == expected


def test_the_time_to_judge_grows_with_the_pairs_of_servers(make_cluster):
    def seconds(count):
        cluster = make_cluster(count)
        cluster.cut(*((server, (server + 1) % count) for server in range(count)))
        taken = []
        for _ in range(5):
            begun = time.process_time()
            cluster.findings()
            taken.append(time.process_time() - begun)
        return min(taken)

    assert seconds(100) < 50 * seconds(20)  # 25 times as many pairs; 125 times are cubes


@pytest.mark.parametrize(("carriers", "changes", "measured", "expected"), [
    (("eth0", "ib0"), {}, ("eth0", "ib0"), [(1,)]),
    (("ib0", "ib0", "eth0"), {}, ("ib0", "ib0", "eth0"), [(0, 1)]),
    (("ib0", "eth0"), {"ranks_interface": "ib0"}, ("ib0", "eth0"), [(1,)]),
    (("ib0,eth0", "ib0"), {}, ("eth0", "ib0"), [(1,)]),  # a bridge, and the card below it
    (("ib0", "ib0"), {"interface_variables": (("GLOO_SOCKET_IFNAME", "ib0"),)}, ("ib0", "ib0"), []),
    (("ib0", "ib0"), {"interface_variables": (("NCCL_SOCKET_IFNAME", "ib"),)}, ("ib0", "ib0"), []),
    ((), {}, (), []),  # an older version measured
    (("", ""), {}, ("", ""), []),  # by RDMA
    (("ib0", "ib0"), {"interfaces": (DOCKER,)}, ("ib0", "ib0"), []),  # the table's address is none of its own
])  # fmt: skip
def test_data_that_goes_by_another_network_than_the_tables_is_risky(
    make_cluster, carriers, changes, measured, expected
):
    cluster = make_cluster(max(2, len(carriers)))
    for server in cluster.facts:
        cluster.add_interface(server, Interface("ib0", (f"10.88.0.{server + 1}",), 1500))
        cluster.change(server, **changes)
    evidence = Evidence(cluster.cluster, cluster.facts, {}, {})
    assert carried_by(carriers, evidence) == measured
    found = list(unexpected_interface(measured, evidence))
    assert [(one.code, one.severity.value, one.servers) for one in found] == [
        ("other-network", "risky", servers) for servers in expected
    ]
