"""Each rule alone: a healthy cluster with one thing changed gives one finding, and names the servers it is about."""

import time
from dataclasses import replace

import pytest

from launcher.core.records import Cluster
from launcher.doctor.facts import Interface, Limit, Port
from launcher.doctor.finding import Evidence, Topic
from launcher.doctor.join_failure import JoinFailure, diagnose_output, silent
from launcher.doctor.reach import Outcome
from launcher.doctor.rules.network import carried_by, elsewhere

GIB, MIB = 1 << 30, 1 << 20


def test_healthy_servers_without_accelerators_give_a_note_and_nothing_else(ward):
    """Virtual machines and laptops have no driver: that is no fault."""
    (found,) = ward(3).findings()
    assert (found.code, found.severity.value, found.servers) == ("no-accelerator", "note", (0, 1, 2))


def test_one_server_alone_is_not_judged_by_its_names(ward):
    """Nobody has to reach it."""
    alone = ward(1)
    alone.means(0, "h1", "127.0.1.1")
    alone.reach, alone.offsets_s = {}, {}
    assert alone.said() == []


def test_a_silent_server_is_told_of(ward):
    """Its own words are told where it has said some."""
    patients = ward(3)
    del patients.facts[1], patients.facts[2]
    patients.troubles[2] = "unknown message 'collect'"
    assert [(one.servers, one.message) for one in patients.findings() if one.code == "no-answer"] == [
        ((1,), "server h2: no answer"),
        ((2,), "server h3: unknown message 'collect'"),
    ]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_of_servers_that_have_all_not_come_nothing_is_made_up(ward, count):
    """Nobody has said anything, so nothing differs."""
    patients = ward(count)
    patients.facts, patients.reach, patients.offsets_s = {}, {}, {}
    patients.join_failures = dict.fromkeys(range(count), silent(30))
    assert patients.said() == [("no-answer", "breaks", tuple(range(count)))]


def test_what_only_one_of_many_servers_says_differs_from_nothing(ward):
    """It is judged by itself."""
    patients = ward(3)
    patients.facts = {1: patients.facts[1]}
    patients.reach, patients.offsets_s = {}, {1: 100.0}
    patients.join_failures = {0: silent(30), 2: silent(30)}
    assert patients.said() == [("no-answer", "breaks", (0, 2))]


def test_a_name_that_the_only_server_that_answers_does_not_know_may_be_known_to_others(ward):
    """Nobody has asked those."""
    patients = ward(2)
    del patients.facts[1]
    patients.reach, patients.offsets_s, patients.join_failures = {}, {}, {1: silent(30)}
    patients.means(0, "h2")
    (found,) = [one for one in patients.findings() if one.code == "unknown-name"]
    assert found.message == "h2 means nothing on server h1"


def test_of_an_absent_server_only_its_cause_is_told_and_alike_ones_together(ward):
    """Neither that there was no answer, nor what came of not having one."""
    patients = ward(4)
    refused = JoinFailure("ssh-refused", "its ssh port refuses connections", "is sshd running there?")
    del patients.facts[1], patients.facts[3]
    patients.join_failures = {1: refused, 3: refused}
    patients.troubles[3] = "its ssh port refuses connections"
    assert [
        (one.code, one.servers, one.message, one.hint) for one in patients.findings() if one.topic is Topic.ANSWER
    ] == [("ssh-refused", (1, 3), "servers h2, h4: its ssh port refuses connections", "is sshd running there?")]


def test_a_hint_names_the_first_of_the_servers_it_is_for(ward):
    """So that it can be copied; servers with another cause have their own."""
    patients = ward(4)
    unreachable = diagnose_output(["ssh: connect to host port 22: No route to host"], "it ended")
    patients.facts = {}
    patients.reach, patients.offsets_s = {}, {}
    patients.join_failures = {0: silent(30), 1: unreachable, 2: silent(30), 3: unreachable}
    hints = {one.servers: one.hint for one in patients.findings()}
    assert set(hints) == {(0, 2), (1, 3)}
    assert "`ping h2`" in hints[1, 3]


def test_a_server_that_has_told_of_itself_and_then_hangs_is_told_of_once(ward):
    """What it told counts nevertheless."""
    patients = ward(2)
    patients.join_failures = {1: silent(30)}
    patients.troubles[1] = "it answered at first, and then no more"
    assert patients.said() == [("no-answer", "breaks", (1,))]


# --- who reaches whom ---


def test_a_pair_that_is_cut_both_ways_is_one_finding(ward):
    """With the address that was tried, and what became of it."""
    patients = ward(3)
    patients.cut(0, 2)
    patients.cut(2, 0)
    found = patients.only()
    assert (found.code, found.severity.value, found.servers) == ("unreachable", "breaks", (0, 2))
    assert found.message == "h1 and h3 do not reach each other: h3 at 10.0.0.3: timed out"
    assert "firewall" in found.hint


def test_a_pair_that_is_cut_one_way_says_which(ward):
    """Connections are opened by either end."""
    patients = ward(2)
    patients.cut(1, 0, Outcome.REFUSED)
    assert patients.only().message == "h2 does not reach h1, only the other way round: h1 at 10.0.0.1: refused"


def test_a_server_that_nobody_reaches_is_one_cause(ward):
    """Not as many as there are others; that it reaches nobody either is told too."""
    patients = ward(4)
    for other in (0, 1, 3):
        patients.cut(other, 2)
    assert patients.only().message.startswith("no other server reaches h3")
    for other in (0, 1, 3):
        patients.cut(2, other)
    messages = [one.message.partition(":")[0] for one in patients.findings() if one.code == "unreachable"]
    assert messages == ["no other server reaches h3", "h3 reaches no other server"]


def test_a_wrong_listener_has_a_code_of_its_own(ward):
    """The cure is another one."""
    patients = ward(3)
    patients.cut(0, 1, Outcome.WRONG_ANSWER)
    assert patients.only().code == "wrong-answer"


def test_many_pairs_are_summed_up(ward):
    """Twelve servers in two halves that do not see each other: 36 pairs."""
    patients = ward(12)
    for one in range(6):
        for other in range(6, 12):
            patients.cut(one, other)
            patients.cut(other, one)
    messages = [one.message for one in patients.findings() if one.code == "unreachable"]
    assert len(messages) == 9
    assert any(message.startswith("28 more pairs of servers do not reach each other") for message in messages)


def large_lost(patients, *ways):
    """Both ends notice: one that nothing arrives there, the other that nothing comes back."""
    for sender, receiver in ways:
        patients.cut(sender, receiver, Outcome.LOSES_THERE)
        if (receiver, sender) not in ways:
            patients.cut(receiver, sender, Outcome.LOSES_BACK)


@pytest.mark.parametrize(
    ("count", "ways", "where", "servers"),
    [
        (2, [(0, 1)], "from h1 to h2", (0, 1)),
        (3, [(2, 0)], "from h3 to h1", (0, 2)),
        (2, [(0, 1), (1, 0)], "between h1 and h2, both ways", (0, 1)),
        (3, [(0, 1), (0, 2)], "from h1 to all others", (0,)),
        (4, [(0, 2), (1, 2), (3, 2)], "from all others to h3", (2,)),
    ],
)
def test_lost_large_packets_are_told_by_their_way(ward, count, ways, where, servers):
    """Once, though both ends tell of it, and of a server that has to do with all."""
    patients = ward(count)
    large_lost(patients, *ways)
    found = patients.only()
    assert (found.code, found.severity.value, found.servers) == ("large-packets-lost", "breaks", servers)
    assert found.message == f"{where}, small packets arrive and large ones do not"
    assert "is the MTU the same on the whole way?" in found.hint


def test_pairs_of_which_no_large_packets_are_known_are_no_others(ward):
    """Of many servers only some pairs are tried so."""
    patients = ward(4)
    large_lost(patients, (0, 1), (0, 2))
    for server, other in ((0, 3), (3, 0)):
        patients.reach[server] = tuple(
            replace(one, got_large=one.got_large and one.server != other) for one in patients.reach[server]
        )
    assert patients.only().message.startswith("from h1 to all others")


def test_many_ways_that_lose_large_packets_are_summed_up(ward):
    """Two racks, between which the switch takes no large ones, each way; and a pair that can be told is."""
    patients = ward(12)
    halves = [(one, other) for one in range(6) for other in range(6, 12)]
    large_lost(patients, *halves, *(way[::-1] for way in halves))
    found = [one.message.partition(",")[0] for one in patients.findings() if one.code == "large-packets-lost"]
    assert len(found) == 9
    assert {"between h1 and h7", "between 28 more pairs of servers"} <= set(found)


@pytest.mark.parametrize(("ranks", "server", "severity"), [(2, 1, "breaks"), (1, 0, "breaks"), (1, 1, "risky")])
def test_a_server_that_does_not_reach_itself_is_named_alone(ward, ranks, server, severity):
    """By the interface that is down, where one is; with one rank only rank 0 has to reach its own address."""
    patients = ward(2, ranks)
    patients.cut(server, server)
    found = patients.only()
    assert (found.code, found.severity.value, found.servers) == ("not-itself", severity, (server,))
    assert found.message == f"server h{server + 1} does not reach itself at 10.0.0.{server + 1}: timed out"
    outer, loopback = patients.facts[server].interfaces
    patients.change(server, interfaces=(outer, replace(loopback, up=False)))
    assert patients.only().message.endswith(": its interface lo is down")
    assert patients.only().hint == "`ip link set lo up` there"


def test_an_address_that_is_elsewhere_is_not_told_as_one_that_is_not_reached(ward):
    """A router may not let a server reach itself from outside."""
    patients = ward(2)
    patients.cut(1, 1)
    patients.change(1, interfaces=(Interface("eth0", ("172.17.0.2",), 1500),))
    assert [code for code, *_ in patients.said()] == ["address-not-own"]


# --- names ---


def test_a_name_that_one_server_does_not_know_breaks_a_run(ward):
    """It is told once, and not again as a server that cannot be reached."""
    patients = ward(3)
    patients.means(0, "h3")
    patients.cut(0, 2, Outcome.UNKNOWN_NAME)
    found = patients.only()
    assert (found.code, found.severity.value, found.servers) == ("unknown-name", "breaks", (0, 2))
    assert found.message == "h3 is known, but not on server h1"


def test_a_name_that_was_unknown_only_when_it_was_needed_is_told_too(ward):
    """A name server that answers now and then."""
    patients = ward(3)
    patients.cut(0, 2, Outcome.UNKNOWN_NAME)
    assert patients.said() == [("unreachable", "breaks", (0, 2))]


@pytest.mark.parametrize(
    ("count", "knows_own", "expected"),
    [
        (2, False, "h1, h2 mean something on no server"),
        (64, False, "h1, h2, h3, h4 and 60 more mean something on no server"),
        (64, True, "h1, h2, h3, h4 and 60 more are known on their own server only"),
    ],
)
def test_servers_without_any_names_have_one_cause(ward, count, knows_own, expected):
    """Nobody has written them into /etc/hosts: that is not as many findings as there are servers."""
    patients = ward(count)
    for server in range(count):
        for other in range(count):
            if not knows_own or server != other:
                patients.means(server, f"h{other + 1}")
        patients.change(server, hostname=f"node-{server}")
        patients.means(server, f"node-{server}")
    everybody = tuple(range(count))
    assert patients.said() == [("unknown-name", "breaks", everybody), ("own-name-unknown", "risky", everybody)]
    unknown, own = patients.findings()[:2]
    assert unknown.message == expected
    listed = "node-0, node-1" if count == 2 else "node-0, node-1, node-2, node-3 and 60 more"
    assert f"call themselves {listed}, and do not know what that means" in own.message


def test_names_that_one_server_does_not_know_have_one_cause(ward):
    """Its name server, or its /etc/hosts."""
    patients = ward(4)
    for name in ("h1", "h2", "h3"):
        patients.means(3, name)
    found = patients.only()
    assert (found.servers, found.message) == ((0, 1, 2, 3), "h1, h2, h3 are known, but not on server h4")


def test_of_a_name_server_that_does_not_answer_it_is_not_said_that_it_knows_nothing(ward):
    """It would have taken longer than it was given."""
    patients = ward(3)
    patients.means(0, "h3", seconds=15.0, answered=False)
    patients.cut(0, 2, Outcome.UNKNOWN_NAME)
    found = patients.only()
    assert (found.code, found.servers) == ("unknown-name", (0, 2))
    assert found.message == "what h3 means: no answer within 15 s on server h1"


def test_a_name_that_nobody_has_said_to_know_is_not_called_known(ward):
    """One server knows nothing of it, its own neither; the name server of the other says nothing."""
    patients = ward(3)
    for server in (0, 2):
        patients.means(server, "h3")
    patients.means(1, "h3", seconds=15.0, answered=False)
    messages = [one.message for one in patients.findings() if one.code == "unknown-name"]
    assert messages == ["h3 means nothing on servers h1, h3", "what h3 means: no answer within 15 s on server h2"]


def test_only_servers_that_had_no_answer_are_named(ward):
    """Not the one that knows itself."""
    patients = ward(3)
    for server in (0, 2):
        patients.means(server, "h2", seconds=15.0, answered=False)
    found = patients.only()
    assert (found.servers, found.message) == ((0, 1, 2), "what h2 means: no answer within 15 s on servers h1, h3")


def test_the_time_to_judge_grows_with_the_pairs_of_servers(ward):
    """And not with their cube: agents of 500 servers would not wait for it."""

    def seconds(count):
        patients = ward(count)
        for server in range(count):
            patients.cut(server, (server + 1) % count)
        taken = []
        for _ in range(3):
            begun = time.process_time()
            patients.findings()
            taken.append(time.process_time() - begun)
        return min(taken)

    assert seconds(200) < 50 * seconds(40)  # 25 times as many pairs; 125 times are cubes


def test_debians_own_name_is_risky_where_it_is_its_own(ward):
    """Gloo would listen at 127.0.1.1."""
    patients = ward(2)
    patients.means(1, "h2", "127.0.1.1")
    assert patients.said() == [("own-name-is-loopback", "risky", (1,))]


def test_another_servers_name_that_is_loopback_breaks_a_run(ward):
    """Every server would reach itself."""
    patients = ward(3)
    patients.means(0, "h2", "127.0.0.1")
    assert patients.said() == [("name-is-loopback", "breaks", (0, 1))]


def test_what_all_servers_have_in_common_is_one_finding(ward):
    """In the same words; what differs in its numbers is told apart."""
    patients = ward(6)
    for server in range(6):
        patients.change(server, limits=(Limit("nofile", 200 if server < 5 else 201, 200),), hostname=f"node-{server}")
        patients.means(server, f"node-{server}", "127.0.1.1")
    assert patients.said() == [
        ("own-name-is-loopback", "risky", (0, 1, 2, 3, 4, 5)),
        ("few-open-files", "risky", (0, 1, 2, 3, 4)),
        ("few-open-files", "risky", (5,)),
    ]
    messages = [one.message for one in patients.findings()]
    assert messages[0].startswith(
        "servers h1, h2, h3, h4 and 2 more take their own names for loopback, node-0 for 127.0.1.1"
    )
    assert messages[1].startswith("a process may open 200 files on servers h1, h2, h3, h4 and 1 more; a rank")


@pytest.mark.parametrize(("variables", "expected"), [((), 1), ((("GLOO_SOCKET_IFNAME", "eth0"),), 0)])
def test_a_hostname_that_the_table_does_not_have_may_be_loopback_too(ward, variables, expected):
    """Unless somebody has chosen an interface."""
    patients = ward(2)
    patients.change(0, hostname="node-17", interface_variables=variables)
    patients.means(0, "node-17", "127.0.1.1")
    assert len(patients.said()) == expected


def test_a_hostname_without_a_meaning_is_risky(ward):
    """As in containers that were given another network."""
    patients = ward(2)
    patients.change(0, hostname="3f2a")
    patients.means(0, "3f2a")
    assert patients.said() == [("own-name-unknown", "risky", (0,))]


def test_a_name_that_means_different_servers_is_told_with_both_addresses(ward):
    """Some address in common is enough to be the same."""
    patients = ward(3)
    patients.means(1, "h1", "10.0.0.1", "192.168.0.1")
    assert patients.said() == []
    patients.means(2, "h1", "192.168.0.7")
    assert patients.only().message == "h1 is 10.0.0.1 on server h1, and 192.168.0.7 on server h3"


def test_a_slow_name_server_is_told_with_the_seconds(ward):
    """Five seconds are what resolvers wait before they ask the next one."""
    patients = ward(2)
    patients.means(1, "h1", "10.0.0.1", seconds=5.01)
    assert "takes 5.0 s to find out what h1 means" in patients.only().message


def test_an_address_that_the_server_itself_does_not_have_is_risky(ward):
    """Of a host whose container answers, for instance."""
    patients = ward(2)
    patients.change(1, interfaces=(Interface("eth0", ("172.17.0.2",), 1500),))
    assert patients.said() == [("address-not-own", "risky", (1,))]


def test_an_address_of_ipv6_can_be_written_in_many_ways(ward):
    """In the table, by the resolver, and by the interface."""
    patients = ward(2)
    for server in (0, 1):
        here = Interface("eth0", (f"fd00::{server + 1}",), 1500 if server else 9000)
        patients.change(server, interfaces=(here,), interface_variables=(("HCCL_IF_IP", f"FD00:0::{server + 1}"),))
        for other in (0, 1):
            patients.means(server, f"h{other + 1}", f"FD00:0:0::0{other + 1}")
    assert patients.said() == [("mtu-differs", "risky", (1,))]


# --- interfaces and ports ---


@pytest.mark.parametrize(
    ("variable", "value", "is_wrong"),
    [
        ("GLOO_SOCKET_IFNAME", "eth0", False),
        ("GLOO_SOCKET_IFNAME", "eth", True),
        ("GLOO_SOCKET_IFNAME", "eth0,ib0", True),
        ("NCCL_SOCKET_IFNAME", "eth", False),
        ("NCCL_SOCKET_IFNAME", "=eth", True),
        ("NCCL_SOCKET_IFNAME", "=eth0", False),
        ("NCCL_SOCKET_IFNAME", "^lo,docker", False),
        ("NCCL_SOCKET_IFNAME", "^lo,eth", True),
        ("TP_SOCKET_IFNAME", "eth0", False),
        ("NCCL_SOCKET_IFNAME", "ib", True),
        ("HCCL_SOCKET_IFNAME", "^=eth", False),
        ("HCCL_SOCKET_IFNAME", "eth0:1", False),
        ("HCCL_IF_IP", "10.0.0.1", False),
        ("HCCL_IF_IP", "10.0.0.9", True),
    ],
)
def test_a_variable_that_names_no_interface_breaks_a_run(ward, variable, value, is_wrong):
    """NCCL's and HCCL's names are beginnings unless they say =, and ^ excludes."""
    patients = ward(2)
    patients.change(0, interface_variables=((variable, value),))
    assert patients.said() == ([("no-such-interface", "breaks", (0,))] if is_wrong else [])


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("GLOO_SOCKET_IFNAME", "lo", ("loopback-interface", "breaks", (0,))),
        ("TP_SOCKET_IFNAME", "lo", ("loopback-interface", "breaks", (0,))),
        ("NCCL_SOCKET_IFNAME", "lo", ("loopback-interface", "breaks", (0,))),
        ("NCCL_SOCKET_IFNAME", "^eth,docker", ("loopback-interface", "breaks", (0,))),
        ("HCCL_IF_IP", "127.0.0.1", ("loopback-interface", "breaks", (0,))),
        ("NCCL_SOCKET_IFNAME", "^eth", ("other-interface", "risky", (0,))),
        ("GLOO_SOCKET_IFNAME", "docker0", ("other-interface", "risky", (0,))),
        ("HCCL_IF_IP", "172.17.0.1", ("other-interface", "risky", (0,))),
        ("NCCL_SOCKET_IFNAME", "docker,eth", None),
        ("NCCL_SOCKET_IFNAME", "^docker", None),
    ],
)
def test_an_interface_that_leads_to_no_other_server_is_found(ward, variable, value, expected):
    """Loopback never does; of one that is not the table's nothing is known. Alone, a server may have any."""
    for count in (1, 2):
        patients = ward(count)
        interfaces = (*patients.facts[0].interfaces, Interface("docker0", ("172.17.0.1",), 1500))
        patients.change(0, interfaces=interfaces, interface_variables=((variable, value),))
        assert patients.said() == ([expected] if expected and count == 2 else [])


def test_an_interface_that_is_down_is_none(ward):
    """What listens there is reached by nobody."""
    patients = ward(2)
    down = Interface("ib0", (), 2044, up=False)
    interfaces = (*patients.facts[0].interfaces, down)
    patients.change(0, interfaces=interfaces, interface_variables=(("NCCL_SOCKET_IFNAME", "ib0"),))
    assert patients.said() == [("no-such-interface", "breaks", (0,))]


def test_different_packet_sizes_are_risky(ward):
    """Of the interfaces that are used; others do not matter."""
    patients = ward(3)
    patients.change(1, interfaces=(*patients.facts[1].interfaces, Interface("docker0", ("172.17.0.1",), 9000)))
    assert patients.said() == []
    patients.change(1, interfaces=(Interface("eth0", ("10.0.0.2",), 9000),))
    assert patients.only().message == "the MTU is 1500 on servers h1, h3; 9000 on server h2"


def test_a_port_that_is_taken_breaks_a_run(ward):
    """With the system's words."""
    patients = ward(2)
    patients.change(0, ports=(Port(29500, "Address already in use"), Port(29501)))
    assert patients.only().message == "port 29500 cannot be used on server h1: Address already in use"


def test_a_port_that_any_connection_may_be_given_is_a_note(ward):
    """It is free now."""
    patients = ward(2)
    patients.change(0, ports=(Port(40000),))
    assert patients.said() == [("port-may-be-taken", "note", (0,))]


def test_two_servers_that_are_one_machine_are_found(ward):
    """Where there are accelerators, they would be used twice."""
    patients = ward(3)
    patients.change(2, machine="boot 0")
    assert patients.said() == [("one-machine", "risky", (0, 2))]
    patients.give_devices("ascend", 0, 1)
    assert patients.said() == [("one-machine", "breaks", (0, 2))]


def test_machines_that_do_not_tell_who_they_are_are_not_one(ward):
    """Where /proc is hidden."""
    patients = ward(2)
    patients.change(0, machine="")
    patients.change(1, machine="")
    assert patients.said() == []


# --- what should be alike ---


@pytest.mark.parametrize(("offset_s", "expected"), [(0.9, []), (90.0, [("clock-skew", "risky", (2,))])])
def test_clocks_are_compared_with_the_most(ward, offset_s, expected):
    """The one that is off is named, not all the others; a second is allowed."""
    patients = ward(3)
    patients.offsets_s[2] += offset_s
    assert patients.said() == expected


def test_of_two_clocks_nobody_knows_which_is_wrong(ward):
    """Both are named; the message says which one is ahead."""
    patients = ward(2)
    patients.offsets_s = {0: 0.0, 1: -7.25}
    found = patients.only()
    assert found.servers == (0, 1)
    assert found.message.startswith("clocks are up to 7.2 s apart: h1 is ahead of h2")


@pytest.mark.parametrize(
    ("name", "version", "severity"),
    [
        ("python", "3.11.9", "note"),
        ("python", "3.10.7", "risky"),
        ("torch", "2.6.1+cpu", "note"),
        ("torch", "2.6.0+cu124", "note"),
        ("torch", "2.5.0", "breaks"),
        ("MPI", "Open MPI 4.1.4", "risky"),
        ("MPI", "Open MPI 5.0.9", "note"),
        ("numpy", "2.2.0", "note"),
        ("numpy", "1.26.4", "risky"),
    ],
)
def test_versions_differ_more_or_less(ward, name, version, severity):
    """The servers that differ from most are named, the message says what all have."""
    patients = ward(3)
    versions = dict(patients.facts[1].versions) | {name: version}
    patients.change(1, versions=tuple(versions.items()))
    found = patients.only()
    assert (found.code, found.severity.value, found.servers) == ("version-differs", severity, (1,))
    assert found.message == f"{name}: {patients.facts[0].version(name)} on servers h1, h3; {version} on server h2"


def test_an_mpi_that_does_not_go_with_mpirun_is_a_risk(ward):
    """Alike on several servers, it is told once."""
    patients = ward(3)
    for server in (0, 2):
        patients.change(server, mpi_trouble="mpi4py loads MPICH 5.0.2, which does not go with Open MPI's mpirun")
    found = patients.only()
    assert (found.code, found.severity.value, found.servers) == ("other-mpi", "risky", (0, 2))
    assert found.message == "on servers h1, h3, mpi4py loads MPICH 5.0.2, which does not go with Open MPI's mpirun"


def test_what_one_server_lacks_is_missing(ward):
    """What none has is not asked for."""
    patients = ward(3)
    patients.change(1, versions=tuple(one for one in patients.facts[1].versions if one[0] != "torch"))
    assert patients.only().message == "torch: 2.6.0+cpu on servers h1, h3; missing on server h2"


def test_different_users_and_interpreters_are_told(ward):
    """One is a risk, the other explains much."""
    patients = ward(3)
    patients.change(2, user=1000, executable="/usr/bin/python3")
    assert patients.said() == [("user-differs", "risky", (2,)), ("python-elsewhere", "note", (2,))]


def test_a_table_that_is_missing_or_another_one_breaks_a_run(ward):
    """Each is told once."""
    patients = ward(4)
    patients.change(1, table_digest=None, table_trouble="No such file or directory")
    patients.change(3, table_digest="another")
    assert patients.said() == [("table-differs", "breaks", (3,)), ("table-missing", "note", (1,))]


# --- files ---


@pytest.mark.parametrize(
    ("purpose", "changes", "expected"),
    [
        ("cwd", {"exists": False}, ("cwd-missing", "breaks", (1,))),
        ("runs_dir", {"exists": False}, None),
        ("runs_dir", {"writable": False}, ("not-writable", "breaks", (1,))),
        ("temporary", {"writable": False}, ("not-writable", "breaks", (1,))),
        ("runs_dir", {"free_bytes": 50 * MIB}, ("disk-nearly-full", "breaks", (1,))),
        ("temporary", {"free_bytes": 50 * MIB}, ("disk-nearly-full", "risky", (1,))),
        ("runs_dir", {"free_bytes": 5 * GIB}, ("disk-nearly-full", "risky", (1,))),
        ("runs_dir", {"free_bytes": 5 * GIB, "total_bytes": 20 * GIB}, None),
        ("runs_dir", {"free_bytes": 20 * GIB}, None),
        ("runs_dir", {"free_inodes": 120}, ("few-inodes", "risky", (1,))),
        ("runs_dir", {"free_inodes": 12}, ("few-inodes", "breaks", (1,))),
        ("temporary", {"free_inodes": 12}, ("few-inodes", "risky", (1,))),
        ("runs_dir", {"free_inodes": 0, "total_inodes": 0}, None),
        ("shared_memory", {"total_bytes": 64 * MIB}, ("small-shared-memory", "risky", (1,))),
        ("shared_memory", {"total_bytes": 128 * MIB, "free_bytes": 128 * MIB}, None),
        ("shared_memory", {"free_bytes": 0}, ("shared-memory-full", "risky", (1,))),
        ("shared_memory", {"total_bytes": 64 * MIB, "free_bytes": 0}, ("small-shared-memory", "risky", (1,))),
        ("shared_memory", {"writable": False}, ("shared-memory-closed", "risky", (1,))),
        ("shared_memory", {"writable": False, "total_bytes": 64 * MIB}, ("shared-memory-closed", "risky", (1,))),
        ("shared_memory", {"writable": False, "exists": False}, None),
    ],
)
def test_directories_and_their_space(ward, purpose, changes, expected):
    """Little space is judged by bytes and by share; a file system without inodes has not run out of them."""
    patients = ward(2)
    patients.change_folder(1, purpose, **changes)
    assert patients.said() == ([expected] if expected else [])


def test_a_directory_that_takes_no_file_is_told_with_the_system_s_words(ward):
    """Servers with different reasons apart; one of an older version gives none."""
    patients = ward(4)
    for server, trouble in ((0, "Not a directory"), (1, "Not a directory"), (2, "Read-only file system"), (3, None)):
        patients.change_folder(server, "runs_dir", writable=False, trouble=trouble)
    assert [(one.message, one.servers) for one in patients.findings() if one.code == "not-writable"] == [
        ("no file can be made in the runs directory (/somewhere: Not a directory), on servers h1, h2", (0, 1)),
        ("no file can be made in the runs directory (/somewhere: Read-only file system), on server h3", (2,)),
        ("no file can be made in the runs directory (/somewhere), on server h4", (3,)),
    ]


# --- limits and devices ---


@pytest.mark.parametrize(("soft", "severity"), [(64, "breaks"), (200, "risky"), (1024, None), (None, None)])
def test_open_files_are_compared_with_the_number_of_ranks(ward, soft, severity):
    """Four ranks; each has a connection to every other."""
    patients = ward(2)
    patients.change(0, limits=(Limit("nofile", soft, soft),))
    assert patients.said() == ([("few-open-files", severity, (0,))] if severity else [])


def test_the_usual_limit_of_files_is_too_low_for_many_ranks(ward):
    """1024 files, 2048 ranks: the message has both numbers."""
    patients = ward(2, ranks=1024)
    limits = [one for one in patients.findings() if one.code == "few-open-files"]
    assert [one.severity.value for one in limits] == ["breaks"]
    assert "may open 1,024 files" in limits[0].message
    assert "among 2,048" in limits[0].message
    assert "the hard limit is 4,096" in limits[0].hint
    patients.give_devices("ascend", *range(1024))
    limits = [one for one in patients.findings() if one.code == "few-open-files"]
    assert [one.severity.value for one in limits] == ["risky"]  # gloo is not what they use


@pytest.mark.parametrize(
    ("user", "expected"), [(0, []), (1000, [("few-processes", "risky", (0,)), ("user-differs", "risky", (0,))])]
)
def test_the_limit_of_processes_does_not_bind_root(ward, user, expected):
    """The kernel does not apply it."""
    patients = ward(3)
    patients.change(0, user=user, limits=(Limit("nproc", 100, 100),))
    assert sorted(patients.said()) == expected


def test_locked_memory_matters_where_cards_read_memory_themselves(ward):
    """Elsewhere the same limit is nobody's."""
    patients = ward(2)
    patients.change(0, rdma_devices=("mlx5_0",))
    assert "may lock 64 KiB" in patients.only().message
    patients.change(0, limits=(Limit("memlock", 1 << 40, 1 << 40),))
    assert patients.said() == []


def test_a_limit_to_the_size_of_files_is_told(ward):
    """Of a log as of a checkpoint."""
    patients = ward(2)
    patients.change(1, limits=(Limit("fsize", 200 << 10, None),))
    assert "no file may be larger than 204,800 bytes on server h2" in patients.only().message


def test_little_memory_says_whose_limit_it_is(ward):
    """The control group's, here."""
    patients = ward(2)
    patients.change(0, memory_limit_bytes=256 * MIB)
    assert "256 MiB of memory is allowed by its control group on server h1" in patients.only().message


def test_fewer_processors_than_ranks_are_a_note(ward):
    """By affinity, or by the control group."""
    patients = ward(2)
    patients.change(1, cpu_limit=1.5)
    assert patients.only().message == "fewer processors than ranks on server h2: 1.5 for 2"


def test_devices_that_are_not_there_break_a_run(ward):
    """By their ids where the driver tells them; NVIDIA's are numbered from 0 whichever a container is given."""
    patients = ward(2)
    patients.give_devices("ascend", 0, 1)
    assert patients.said() == []
    patients.change(1, ascend_devices=(1, 2))
    assert patients.only().message == "the table wants device 0 on server h2, where 1-2 are visible"
    patients.give_devices("ascend")
    patients.give_devices("nvidia", 4, 5)
    assert patients.findings() == ()
    patients.change(0, nvidia_devices=())
    assert patients.only().message == "the table wants devices 0-1 on server h1, where none is visible"


def test_ranks_on_the_host_itself_need_no_device(ward):
    """Heterogeneous tables have such."""
    patients = ward(2)
    host = patients.cluster.servers[1]
    host = replace(host, devices=tuple(replace(device, device_id=-1) for device in host.devices))
    patients.cluster = Cluster((patients.cluster.servers[0], host))
    patients.change(0, ascend_devices=(0, 1))
    assert patients.said() == []


def test_the_worst_comes_first(ward):
    """Then by topic, so that a reader may stop."""
    patients = ward(3)
    patients.change(0, ports=(Port(40000),))
    patients.offsets_s[1] = 30.0
    patients.change_folder(2, "runs_dir", writable=False)
    assert [one.severity.value for one in patients.findings()] == ["breaks", "risky", "note", "note"]


# --- by which interface data went ---


def went(patients, *carriers):
    """What is told of interfaces where these have carried the data of each server."""
    evidence = Evidence(patients.cluster, patients.facts, {}, {}, {})
    measured = carried_by(carriers, evidence)
    return measured, [(one.code, one.severity.value, one.servers) for one in elsewhere(measured, evidence)]


def with_fabric(patients, **changes):
    for server in patients.facts:
        more = Interface("ib0", (f"10.88.0.{server + 1}",), 1500)
        patients.change(server, interfaces=(*patients.facts[server].interfaces, more), **changes)
    return patients


def test_data_that_goes_by_another_network_than_the_tables_is_risky(ward):
    """Of each server by itself."""
    assert went(with_fabric(ward(2)), "eth0", "ib0") == (("eth0", "ib0"), [("other-network", "risky", (1,))])


def test_servers_whose_data_goes_the_same_way_are_told_of_together(ward):
    """Of sixty-four there would be as many findings."""
    assert went(with_fabric(ward(3)), "ib0", "ib0", "eth0")[1] == [("other-network", "risky", (0, 1))]


def test_the_interface_that_tlaunch_chooses_is_the_tables(ward):
    """It knows more of addresses than their names."""
    patients = with_fabric(ward(2), ranks_interface="ib0")
    assert went(patients, "ib0", "eth0") == (("ib0", "eth0"), [("other-network", "risky", (1,))])


def test_of_interfaces_that_carry_the_same_the_tables_is_told(ward):
    """A bridge, and the card below it."""
    assert went(with_fabric(ward(2)), "ib0,eth0", "ib0") == (("eth0", "ib0"), [("other-network", "risky", (1,))])


@pytest.mark.parametrize(("variable", "value"), [("GLOO_SOCKET_IFNAME", "ib0"), ("NCCL_SOCKET_IFNAME", "ib")])
def test_data_that_goes_where_the_user_wants_it_is_told_of_once(ward, variable, value):
    """As of a variable that chooses another interface."""
    patients = with_fabric(ward(2), interface_variables=((variable, value),))
    assert went(patients, "ib0", "ib0") == (("ib0", "ib0"), [])
    assert patients.said() == [("other-interface", "risky", (0, 1))]


@pytest.mark.parametrize("carriers", [(), ("", ""), ("ib0",)])
def test_nothing_is_said_where_nobody_knows_what_carried_data(ward, carriers):
    """It went by RDMA, or an older version measured; or the table's address is none of the server's own."""
    patients = with_fabric(ward(2))
    patients.change(0, interfaces=(Interface("ib0", ("172.17.0.2",), 1500),))
    assert went(patients, *carriers) == (carriers, [])


@pytest.mark.parametrize(("chosen", "expected"), [(None, 1), ("eth0", 0)])
def test_a_hostname_that_is_loopback_is_none_of_gloos_where_tlaunch_tells_it_an_interface(ward, chosen, expected):
    """Debian gives it 127.0.1.1, and the table has an address of a card."""
    patients = ward(2)
    patients.change(0, hostname="node-17", ranks_interface=chosen)
    patients.means(0, "node-17", "127.0.1.1")
    assert len(patients.said()) == expected


def with_addresses(patients):
    servers = [replace(one, server_id=f"10.0.0.{index + 1}") for index, one in enumerate(patients.cluster.servers)]
    patients.cluster = replace(patients.cluster, servers=tuple(servers))
    return patients


def test_a_library_that_would_hang_by_names_is_told_with_what_ranks_get(ward):
    """No fault: they get it by themselves. On one server nothing hangs, nor where a table has addresses."""
    patients = ward(3)
    for server in (0, 2):
        patients.change(server, mpi_variables=(("OMPI_MCA_coll", "^han"),))
    found = patients.only()
    assert (found.code, found.severity.value, found.servers) == ("mpi-by-name", "note", (0, 2))
    assert "OMPI_MCA_coll=^han" in found.message
    addressed = with_addresses(ward(2))
    addressed.change(0, mpi_variables=(("OMPI_MCA_coll", "^han"),))
    assert addressed.said() == []
    alone = ward(1)
    alone.change(0, mpi_variables=(("OMPI_MCA_coll", "^han"),))
    assert alone.said() == []
