"""Hostfiles, rankfiles and Slurm's node lists as people and programs write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.core.errors import TlaunchError, UsageError
from launcher.core.records import Cluster, Device, Server
from launcher.rank_table.detect import certainly_plain, read_plain, recognise_plain
from launcher.rank_table.hostfiles import Place, is_host_name, parse_hostfile, parse_rankfile
from launcher.rank_table.nodelists import compress, expand, order_of_slurm, parse_nodelist

AT = Place("hosts", 1)


def counts(cluster):
    return {server.server_id: len(server.devices) for server in cluster.servers}


@pytest.mark.parametrize(("text", "expected"), [
    ("a slots=8\nb slots=4\n", {"a": 8, "b": 4}),
    ("a slots=8 max_slots=16\n", {"a": 8}), ("a max-slots=16\n", {"a": 1}),
    ("a slots = 2\r\n\r\n# all\nb slots=2 # half\r\n", {"a": 2, "b": 2}),
    ("a:8\nb:8\n", {"a": 8, "b": 8}), ("a\na\nb\na\n", {"a": 3, "b": 1}),
    ("fe80::1 slots=2\n[fe80::2]:3\n[fe80::3]\n", {"fe80::1": 2, "fe80::2": 3, "fe80::3": 1}),
    ("b\na", {"b": 1, "a": 1}),
])  # fmt: skip
def test_hostfile_dialects(text, expected):
    found = counts(parse_hostfile(text, "hosts")[0])
    assert found == expected
    assert list(found) == list(expected)


def test_hostfile_ranks_run_from_host_to_host():
    cluster, notes = parse_hostfile("a slots=2\nb slots=1", "hosts")
    assert notes == ()
    assert [server.devices for server in cluster.servers] == [(Device(0, 0), Device(1, 1)), (Device(0, 2),)]


def test_devices_count_for_hosts_without_a_count():
    assert counts(parse_hostfile("a\nb slots=2\na", "hosts", 8)[0]) == {"a": 8, "b": 2}
    with pytest.raises(UsageError, match="every host in hosts already has a count"):
        parse_hostfile("a slots=2", "hosts", 8)


@pytest.mark.parametrize(("parse", "text", "message"), [
    (parse_hostfile, "a slots=2\nb slots=x\n", "hostfile:2: slots is 'x'"),
    (parse_hostfile, "a slots=0\n", "hostfile:1: slots is '0'"),
    (parse_hostfile, "a slots=\n", "hostfile:1: unknown setting 'slots='"),
    (parse_hostfile, "a slots=99999999999999999999\n", "hostfile:1: slots is '9999"),
    (parse_hostfile, "a slots=²\n", "hostfile:1: slots is '²'"),
    (parse_hostfile, "\n\na prot=3\n", "hostfile:3: unknown setting 'prot=3'"),
    (parse_hostfile, "a port=\n", "hostfile:1: unknown setting 'port='"),
    (parse_hostfile, "a slots=auto\n", "hostfile:1: slots is auto, which only the host itself can resolve"),
    (parse_hostfile, "a\n-x slots=2\n", "hostfile:2: '-x' is not a valid host name"),
    (parse_hostfile, "<html><body>\n", "hostfile:1: '<html><body>' is not a valid host name"),
    (parse_hostfile, "[a:1]:2\n", "hostfile:1: 'a:1' is not a valid host name"),
    (parse_hostfile, "a:\n", "hostfile:1: the count is ''"),
    (parse_hostfile, "[fe80::1\n", "hostfile:1: '[fe80::1': the bracket is not closed"),
    (parse_hostfile, "a slots=2\nb\na slots=2\n", "hostfile:3: 'a' has a count here and on line 1"),
    (parse_hostfile, "a\na slots=2\n", "hostfile:2: 'a' has a count here and on line 1"),
    (parse_hostfile, "+n0 slots=2\n", "hostfile:1: '+n0' is a host relative to an allocation"),
    (parse_hostfile, "me@a slots=2\n", "hostfile:1: 'me@a' names a user"),
    (parse_hostfile, "# nothing\n\n", "hostfile: the file names no host"),
    (parse_rankfile, "rank 0=a\n", "rankfile:1: 'rank 0=a' assigns no rank"),
    (parse_rankfile, "rank 0=a slot=0\nrank 0=b slot=1\n", "rankfile:2: rank 0 is assigned twice, first on line 1"),
    (parse_rankfile, "rank 0=a slot=0\nrank 2=a slot=1\n", "rankfile:2: rank 2 is assigned, but rank 1 is not"),
    (parse_rankfile, "rank 0=a slot=x\n", "rankfile:1: slot=x is not a slot"),
    (parse_rankfile, "rank 0=a slot=0;\n", "rankfile:1: slot=0; is not a slot"),
    (parse_rankfile, "rank 0=-a slot=0\n", "rankfile:1: '-a' is not a valid host name"),
    (parse_rankfile, "rank 99999999999=a slot=0\n", "rankfile:1: rank 99999999999 is too large"),
    (parse_rankfile, "\n", "rankfile: the file assigns no rank"),
    (parse_nodelist, "a[1-2", "nodelist:1: a bracket is not closed"),
    (parse_nodelist, "a1-2]", "nodelist:1: nested or unmatched brackets"),
    (parse_nodelist, "a[1-2[3-4]]", "nodelist:1: nested or unmatched brackets"),
    (parse_nodelist, "a\nb[3-1]", "nodelist:2: the range 3-1 in 'b[3-1]' runs backwards"),
    (parse_nodelist, "a[x]", "nodelist:1: 'x' in 'a[x]' is not a number or a range"),
    (parse_nodelist, "a[]", "nodelist:1: '' in 'a[]' is not a number"),
    (parse_nodelist, "a[1-70000]", "nodelist:1: 1-70000 in 'a[1-70000]' names more than 65,536 hosts"),
    (parse_nodelist, "a[1-999]b[1-999]", "nodelist:1: 'a[1-999]b[1-999]' names more than 65,536 hosts"),
    (parse_nodelist, "a[1-60000]\nb[1-60000]", "nodelist:2: 1-60000 in 'b[1-60000]' names more than"),
    (parse_nodelist, "a[1-999999999999999999]", "names more than 65,536 hosts"),
    (parse_nodelist, "a[1-99999999999999999999]", "is not a number or a range"),
    (parse_nodelist, "a1\nb,a1", "nodelist:2: 'a1' is listed twice, first on line 1"),
    (parse_nodelist, "a=b", "nodelist:1: 'a=b' is not a valid host name"),
    (parse_nodelist, "a,-[1-2]", "nodelist:1: '-[1-2]' is not a valid host name"),
    (parse_nodelist, "a:8,b:8", "nodelist:1: 'a:8' is not a valid host name"),
    (parse_nodelist, "# none", "nodelist: the file names no host"),
])  # fmt: skip
def test_faults_are_reported_with_their_line(parse, text, message):
    name = parse.__name__.removeprefix("parse_")
    with pytest.raises(TlaunchError) as caught:
        parse(text, name)
    assert message in caught.value.message
    assert caught.value.hint


def test_rankfile_slots_are_devices():
    text = "# placed by hand\nrank 1=b slot=5\nrank 0 = a slot = 4\nRANK 2=[fe80::1] slots=0\nrank 3=b slot=2\n"
    cluster, notes = parse_rankfile(text, "ranks")
    assert notes == ()
    assert [(server.server_id, server.devices) for server in cluster.servers] == [
        ("b", (Device(5, 1), Device(2, 3))),
        ("a", (Device(4, 0),)),
        ("fe80::1", (Device(0, 2),)),
    ]


@pytest.mark.parametrize("slot", ["0-3", "0,2", "1:0", "1:0-2", "0:1;1:0-2", "0:*", "p3", "0"])
def test_rankfile_cores_are_no_devices(slot):
    cluster, notes = parse_rankfile(f"rank 0=a slot={slot}\nrank 1=a slot={slot}\n", "ranks")
    assert cluster.servers[0].devices == (Device(0, 0), Device(1, 1))
    assert "slots are cores" in notes[0]


def test_how_a_host_is_reached_is_ignored_and_said():
    text = "a slots=2 port=22 username=me\nb:2 binding=user:0,1 ifname = ib0 port=23\n"
    cluster, notes = parse_hostfile(text, "hosts")
    assert counts(cluster) == {"a": 2, "b": 2}
    assert notes == ("ignored, because it does not concern ranks: port, username, binding, ifname",)
    assert read_plain(text.encode(), "hostfile", "hosts")[1] == notes


@pytest.mark.parametrize(("text", "expected"), [
    ("node[01-03,7]", ["node01", "node02", "node03", "node7"]),
    ("a,b , c", ["a", "b", "c"]),
    ("r[1-2]n[08-10]", ["r1n08", "r1n09", "r1n10", "r2n08", "r2n09", "r2n10"]),
    ("n[1,3]-ib", ["n1-ib", "n3-ib"]), ("n[9-11]", ["n9", "n10", "n11"]), ("10.0.0.[1-2]", ["10.0.0.1", "10.0.0.2"]),
    ("n[ 1 , 2 ]", ["n1", "n2"]), ("", []),
])  # fmt: skip
def test_node_lists_are_expanded_as_slurm_does(text, expected):
    assert list(expand(text, AT)) == expected


@pytest.mark.parametrize(("names", "expected"), [
    (["node01", "node02", "node03", "node07"], "node[01-03,07]"),
    (["n9", "n10"], "n[9-10]"), (["n3", "n1", "n2"], "n[3,1-2]"), (["n1", "login", "n2"], "n1,login,n2"),
    (["n1-ib", "n2-ib"], "n[1-2]-ib"), (["n09", "n1"], "n[09,1]"), (["r1n1", "r1n2", "r2n1"], "r1n[1-2],r2n1"),
    (["only"], "only"),
])  # fmt: skip
def test_node_lists_are_compressed_in_order(names, expected):
    assert compress(names) == expected


@given(
    st.lists(
        st.from_regex(r"[a-c]{0,1}[0-9]{0,3}[a-c.-]{0,1}[0-9]{0,20}", fullmatch=True).filter(is_host_name), min_size=1
    )
)
def test_compressing_and_expanding_is_the_identity(names):
    assert list(expand(compress(names), AT)) == names


def test_no_count_fills_the_memory():
    many = "".join(f"h{number} slots=1000000\n" for number in range(1000))
    with pytest.raises(TlaunchError, match="1,000,000,000 devices are more than the limit"):
        parse_hostfile(many, "hosts")
    with pytest.raises(TlaunchError, match="268,435,456 devices are more"):
        parse_nodelist("n[1-65536]", "nodes", 4096)


@given(
    text=st.text(st.sampled_from("ab01:[],-=# \n+p") | st.characters(), max_size=40)
    | st.lists(st.sampled_from(["rank ", "0", "1", "=", "a", " slot=", "0-1", "1:0", "\n", "slots", "[", "]"])).map(
        "".join
    ),
    kind=st.sampled_from(["hostfile", "rankfile", "nodelist"]),
)
def test_no_text_crashes_the_parsers(text, kind):
    try:
        cluster, _ = read_plain(text.encode("utf-8", "surrogatepass"), kind, "hosts")
    except TlaunchError as refused:
        hint = refused.hint
    else:
        hint = "none needed"
        ranks = [device.global_rank for server in cluster.servers for device in server.devices]
        assert sorted(ranks) == list(range(len(ranks)))
    assert hint


@pytest.mark.parametrize(("text", "kind"), [
    ("a slots=8\n", "hostfile"),
    ("# hosts\n\nrank 0=a slot=0\n", "rankfile"),
    ("node[01-04]\n", "nodelist"), ("a,b", "nodelist"), ("a\nb\n", "hostfile"), ("hello\n", None),
    ("<html><body>\n", None), ("a few words\n", None), ("-x slots=2\n", None), ("x = 3\n", None),
    ("node1\n", "nodelist"), ("10.0.0.1\n", "nodelist"), ("fe80::1\n", "nodelist"), ("fe80::[1-2]\n", "nodelist"),
    ("[0-1]\n", "nodelist"), ("[0,2]n\n", "nodelist"), ("node1\nnode2\n", "hostfile"), ("node1:8\n", "hostfile"),
    ("a slots=x\n", "hostfile"), ("::1 slots=2\n", "hostfile"), ("[fe80::1]:8", "hostfile"),
    ("[fe80::1] slots=8", "hostfile"), ("rank 0=a slot=0:1;1:0-2\n", "rankfile"), ('["a:1"]', None), ("[\n1]", None),
    ('{"version": "1.0"}', None), ("  [1]", None), ("", None), ("a\0b", None),
])  # fmt: skip
def test_plain_texts_are_distinguished(text, kind):
    assert recognise_plain(text.encode()) == kind


@pytest.mark.parametrize(("text", "kind"), [
    ("[0-1]\n", "nodelist"), ("[fe80::1]:2\n[fe80::2]:2\n", "hostfile"), ("rank 0=a slot=0:1;1:0-2\n", "rankfile"),
    ("node1\n", "nodelist"), ("hello\n", None), ("node1\n<b>\n", None),
])  # fmt: skip
def test_what_can_hardly_be_anything_else(text, kind):
    assert certainly_plain(text.encode()) == kind


@pytest.mark.parametrize(("names", "is_sorted"), [
    (["node1", "node2", "node10"], True), (["node1", "node10", "node2"], False), (["b1", "a1"], False),
    (["a", "1", "a1b2", "a1b03"], False), (["1", "a", "a1b2", "a1b03"], True), (["only"], True),
])  # fmt: skip
def test_an_order_that_slurm_would_not_keep_is_noted(names, is_sorted):
    advice = list(order_of_slurm(Cluster(tuple(Server(name, (Device(0, 0),)) for name in names))))
    assert len(advice) == (not is_sorted)
    assert all("SLURM_HOSTFILE" in text and "-m arbitrary" in text for text in advice)


def test_a_text_that_is_not_utf_8_is_refused_and_its_byte_order_mark_read_over():
    with pytest.raises(TlaunchError, match="hosts is not UTF-8"):
        read_plain(b"\xff slots=2", "hostfile", "hosts")
    assert counts(read_plain("\ufeffa slots=2".encode(), "hostfile", "hosts")[0]) == {"a": 2}


@pytest.mark.parametrize("text", ["me@a slots=2\nb slots=2\n", "me@a:2\n", "me@a\nme@b\n", "a\nme@b\n"])
def test_a_host_with_a_user_is_read_as_one(text):
    assert recognise_plain(text.encode()) == "hostfile"
    with pytest.raises(TlaunchError, match="names a user"):
        parse_hostfile(text, "hosts")
