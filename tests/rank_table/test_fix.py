"""What is repaired, what is left to a person, and that no repair changes what a table means."""

import codecs
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.core.records import Cluster, Device, Server
from launcher.rank_table import Profile, parse_rank_table, render_table
from launcher.rank_table.document import parse_document
from launcher.rank_table.fix import fix_table

from .tables import cloud, lab, mangled, ranks, servers

CORPUS = Path(__file__).resolve().parents[3] / "shared" / "rank_table_corpus"
PATH = Path("table.json")


def fix(content, consumer="hccl", **options):
    if not isinstance(content, str | bytes):
        content = json.dumps(content, indent=2)
    return fix_table(
        content if isinstance(content, bytes) else content.encode(), PATH, Profile(consumer=consumer), **options
    )


# --- the text ---

REPAIRED = {
    "trailing comma in a list": ("RT103", '["x",\n]', '["x"\n]'),
    "trailing comma in an object": ("RT103", '{"a": 1, }', '{"a": 1 }'),
    "trailing comma on a line of its own": ("RT103", '["x"\n  ,\n]', '["x"\n]'),
    "comma twice": ("RT103", "[1, , 2]", "[1, 2]"),
    "comma three times": ("RT103", "[1,,,2]", "[1,2]"),
    "comma first": ("RT103", "[, 2]", "[2]"),
    "comma alone": ("RT103", "[,]", "[]"),
    "comment at the end of a line": ("RT104", "[1, // one\n 2]", "[1,\n 2]"),
    "comment on lines of its own": ("RT104", "[\n  # one\n  // two\n 2]", "[\n 2]"),
    "comment before a value": ("RT104", "[\n  /* one */ 1]", "[\n  1]"),
    "comment between values": ("RT104", "[1, /* two\n lines */ 2]", "[1, 2]"),
    "comment without blanks": ("RT104", "[1/* one */]", "[1]"),
    "comment with Windows' line end": ("RT104", "[1, // one\r\n 2]\r\n", "[1,\r\n 2]\r\n"),
    "single quotes": ("RT107", "{'a': 'x y'}", '{"a": "x y"}'),
    "bare key and word": ("RT107", "{version: completed}", '{"version": "completed"}'),
    "bare address": ("RT107", '{"a": 10.0.0.1}', '{"a": "10.0.0.1"}'),
    "missing opening quote": ("RT107", '{"a": x"}', '{"a": "x"}'),
    "missing comma between lines": ("RT105", '{"a": "x"\n "b": {}}', '{"a": "x",\n "b": {}}'),
    "missing comma between objects": ("RT105", "[{}{}]", "[{},{}]"),
    "missing comma before a comment": ("RT105", '["a" // one\n "b"]', '["a",\n "b"]'),
    "missing colon": ("RT105", '{"a" "x"}', '{"a": "x"}'),
    "word processor's quotes": ("RT102", "{“a”: ‘x’}", '{"a": "x"}'),  # noqa: RUF001
    "marks of a Chinese keyboard": ("RT102", '{"a"：1，"b"：2}', '{"a":1,"b":2}'),  # noqa: RUF001
    "blank that is none": ("RT102", '{"a":\u00a01}', '{"a": 1}'),
    "everything at once": (None, "{'a': [1, 2,], // x\n b: {“c”： 4,}\n}", '{"a": [1, 2],\n "b": {"c": 4}\n}'),  # noqa: RUF001
}  # fmt: skip


@pytest.mark.parametrize("name", REPAIRED)
def test_text_is_repaired_and_keeps_its_layout(name):
    code, before, after = REPAIRED[name]
    fixed = fix(before)
    assert fixed.after == after
    assert fixed.data == after.encode()
    assert code is None or code in {repair.code for repair in fixed.repairs}
    assert not parse_document(fixed.data).faults


LEFT_ALONE = {
    "closing quote only, misread": '{"device_id": 0", "rank_id": "1", // x\n}',
    "string that swallows a comma": '{"a: "http://x", "b": 1,}',
    "Python's words": '{"a": True}',
    "not a number": '{"a": NaN}',
    "template": '{"a": <address>}',
    "number with a zero before it": '{"a": 01}',
    "quote within a string, perhaps": '["x""y"]',
    "stray letter and quote": '["x", a" {}]',
    "ellipsis": '["x", ...]',
    "cut off": '{"a": [1,, 2',
    "wrong bracket": '{"a": [1, 2}]',
    "wrong bracket behind another fault": '{"a": ["x" "y", b}}',
    "bad escape": '["C:\\data",]',
    "text after the table": '{"a": 1}\n}',
    "half a surrogate pair": '["\\ud800"]',
    "missing comma in a table that ends too early": '{"a": []"b": "x"}]}',
    "nothing": "",
}


BRACKETS = {
    '{"a": [{"b": 1}}': '{"a": [{"b": 1}]}',
    '{"a": [{"b": 1]}': '{"a": [{"b": 1}]}',
    '{"a": [{"b": 1}}, {"c": 2}]}': '{"a": [{"b": 1}, {"c": 2}]}',
    '{"a": [{"b": 1}, {"c": 2}}]}': '{"a": [{"b": 1}, {"c": 2}]}',
    '{"a": [1, 2}}': '{"a": [1, 2]}',
    '{"a": [1, 2,}}': '{"a": [1, 2]}',
    '{"a": [1, 2,\n}': '{"a": [1, 2\n]}',
    '{"a": [1, "b": 2}': '{"a": [1], "b": 2}',
    '{"a": [{"b": 1},\n "c": [2]}': '{"a": [{"b": 1}],\n "c": [2]}',
    '{"a": [}, 1]}': '{"a": [1]}',
}


@pytest.mark.parametrize("text", BRACKETS)
def test_a_bracket_is_mended_where_the_rest_of_the_text_matches_then(text):
    fixed = fix(text)
    assert json.loads(fixed.after) == json.loads(BRACKETS[text])
    assert {repair.code for repair in fixed.repairs} <= {"RT112", "RT103"}


@pytest.mark.parametrize(
    ("before", "after"),
    [('"device": [', '"device": '), ('"device": [', '"device": [['), ('"server_list": [', '"server_list": [[')],
)
def test_a_bracket_is_left_alone_where_another_one_is_at_fault(before, after):
    assert not fix(json.dumps(servers(2, 2), indent=2).replace(before, after, 1)).changed


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_text_that_leaves_a_doubt_is_left_alone(name):
    fixed = fix(LEFT_ALONE[name])
    assert fixed.after == fixed.before == LEFT_ALONE[name]
    assert not fixed.changed
    assert fixed.repairs == ()
    assert not fixed.report.valid


@pytest.mark.parametrize(
    ("before", "after"), [("[..., /* more */ 1]", "[..., 1]"), ("[1/**/2]", "[1, 2]"), ("[1/**/...]", "[1 ...]")]
)
def test_certain_repairs_are_made_beside_doubtful_ones(before, after):
    assert fix(before).after == after


@pytest.mark.parametrize("codec", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
def test_wide_encodings_become_utf_8(codec, table):
    text = json.dumps(table(), indent=1)
    fixed = fix(text.encode(codec))
    assert fixed.data == text.encode()
    assert fixed.changed
    assert fixed.report.valid
    assert [repair.code for repair in fixed.repairs] == ["RT101"]
    assert fixed.diff("x") == ""


@pytest.mark.parametrize("data", [b'{"a": "\xff", /* x */ }', b"\0\1\2\3\4\5\6\7", b"\xff\xfe\0", b"\xff\xfe\0\xd8"])
def test_bytes_of_no_encoding_are_left_alone(data):
    fixed = fix(data)
    assert fixed.data == data
    assert [problem.code for problem in fixed.report.errors].count("RT101") == 1


def test_byte_order_mark_is_kept(table):
    """HCCL reads over a byte order mark, so it is part of the layout."""
    text = json.dumps(table())
    assert fix(codecs.BOM_UTF8 + text[:-1].encode() + b",}").data == codecs.BOM_UTF8 + text.encode()


# --- single values ---


@pytest.mark.parametrize(
    ("code", "key", "written"),
    [("RT205", "rank_id", 1), ("RT205", "device_id", 1), ("RT404", "device_id", " +01"), ("RT404", "rank_id", "01")],
)
def test_number_is_rewritten_as_the_same_number(code, key, written, table):
    """A number gets its quotes, or loses what only HCCL reads over; nothing else changes."""
    fixed = fix(servers(1, 2).make({f"d0.1/{key}": written}))
    assert json.loads(fixed.after) == table()
    assert [repair.code for repair in fixed.repairs] == [code]
    assert fixed.report.valid


@pytest.mark.parametrize("written", ["1x", "0x1", "1.5", 1.5, -1, True, None, "", [1], {}, 10**30, "²"])
def test_number_that_needs_a_person_is_left_alone(written):
    fixed = fix(servers(1, 2).make({"d0.1/rank_id": written}))
    assert str(json.loads(fixed.after)["server_list"][0]["device"][1]["rank_id"]) == str(written)
    assert fixed.report.problems


@pytest.mark.parametrize(
    ("key", "written"), [("rank_id", "7"), ("device_id", "0"), ("device_ip", "1.2"), ("device_ip", "192.1.0.1")]
)
def test_ranks_ids_and_addresses_are_never_changed(key, written):
    fixed = fix(servers(1, 2).make({f"d0.1/{key}": written}))
    assert not fixed.changed
    assert not fixed.report.valid


LAYOUTS = {
    "first key": ('{"server_list": [', '{"server_count": "1", "server_list": ['),
    "one line": ('{"version": "1.0", "server_list": [', '{"version": "1.0", "server_count": "1", "server_list": ['),
    "compact": ('{"version":"1.0","server_list":[', '{"version":"1.0","server_count":"1","server_list":['),
    "indented": (
        '{\n\t"version": "1.0",\n\t"server_list" : [',
        '{\n\t"version": "1.0",\n\t"server_count" : "1",\n\t"server_list" : [',
    ),
    "Windows": (
        '{\r\n  "version": "1.0",\r\n  "server_list": [',
        '{\r\n  "version": "1.0",\r\n  "server_count": "1",\r\n  "server_list": [',
    ),
}
REST = '{"server_id": "a", "device": [{"device_id": "0", "rank_id": "0"}]}], "status": "completed"}'


@pytest.mark.parametrize("name", LAYOUTS)
def test_missing_server_count_is_added_in_the_layout_of_its_neighbour(name):
    before, after = LAYOUTS[name]
    rest = REST if "version" in before else f'{REST[:-1]}, "version": "1.0"}}'
    fixed = fix(before + rest)
    assert fixed.after == after + rest
    assert fixed.report.problems == ()
    assert [repair.code for repair in fixed.repairs] == ["RT407"]


# --- order ---


def test_entries_move_to_the_order_of_their_ranks_with_their_text():
    late, early = (
        '{"device_id": "0", "rank_id": "3", "device_ip": "10.0.0.1"}',
        '{"rank_id":"2",\n "device_ip":"10.0.0.2","device_id":"1"}',
    )
    last, first = (
        '{"device_id": "0", "device_ip": "10.0.0.3", "rank_id": "1"}',
        '{"device_ip": "10.0.0.4", "device_id":"1","rank_id": "0" }',
    )
    text = (
        '{"version": "1.0", "server_count": "2", "server_list": [\n'
        ' {"server_id": "a", "device": [\n   A,\n  B ]}\t,\n {"device": [C , D], "server_id": "b"}\n], "status": "completed"}\n'
    )
    sorted_text = (
        '{"version": "1.0", "server_count": "2", "server_list": [\n'
        ' {"device": [C , D], "server_id": "b"}\t,\n {"server_id": "a", "device": [\n   A,\n  B ]}\n], "status": "completed"}\n'
    )
    before = filled(text, A=late, B=early, C=last, D=first)
    fixed = fix(before)
    assert fixed.after == filled(sorted_text, A=early, B=late, C=first, D=last)
    assert [(repair.code, repair.line) for repair in fixed.repairs] == [(None, 2), (None, 3), (None, 6)]
    assert fix(before, sort=False).after == before


def filled(text, **parts):
    return re.sub(r"\b[A-D]\b", lambda match: parts[match.group()], text)


def test_order_is_left_alone_where_ranks_are_not_sound():
    for ranks_of_devices, is_sorted in (("210", True), ("211", False)):
        changes = {f"d0.{device}/rank_id": rank for device, rank in enumerate(ranks_of_devices)}
        assert fix(servers(1, 3).make(changes)).changed is is_sorted


def test_order_that_a_reader_asks_for_is_left_alone():
    """For msrun entry i of a server is device i: sorting by ranks would break the table for it, and is not done."""
    wanted = servers(1, 2).make({"s0/pod_ip": "10.0.0.1", "d0.0/rank_id": "1", "d0.1/rank_id": "0"})
    assert fix(wanted).changed
    assert not fix(wanted, "msrun").changed


# --- the whole ---


def test_repairs_are_listed_at_the_lines_of_the_file_as_it_was():
    text = (
        '// a table\n// of mine\n{"version": "1.0",\n "server_count": "5",\n\n /* servers */\n "server_list": [{\n'
        '  "server_id": "a", "device": [\n    {"device_id": 0,\n     "rank_id": "00"},\n  ]}],\n "status": "completed"}\n'
    )
    fixed = fix(text, unsafe=True)
    found = [(repair.code, repair.line) for repair in fixed.repairs]
    assert found == [
        ("RT104", 1), ("RT104", 2), ("RT312", 4), ("RT104", 6), ("RT205", 9), ("RT103", 10), ("RT404", 10)
    ]  # fmt: skip
    assert fixed.report.problems == ()


@pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus of real tables is not beside the project")
def test_valid_tables_keep_their_meaning():
    for path in sorted(CORPUS.glob("*__*.json")):
        report = parse_rank_table(path.read_bytes(), path)
        fixed = fix_table(path.read_bytes(), path)
        if report.cluster is not None:
            assert in_order(fixed.report.cluster) == in_order(report.cluster), path
        assert len(fixed.report.errors) <= len(report.errors), path
        assert not fix_table(fixed.data, path).changed, path


def in_order(cluster):
    """Servers by rank: the order of the file says nothing."""
    servers = sorted(cluster.servers, key=lambda server: server.devices[0].global_rank)
    return replace(cluster, servers=tuple(servers), source=None)


# --- any table, damaged ---


@st.composite
def clusters(draw):
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    ranks = iter(draw(st.permutations(range(sum(sizes)))))
    names = draw(st.lists(st.text("ab.-01é", min_size=1, max_size=8), min_size=3, max_size=3, unique=True))
    servers = []
    for number, (name, size) in enumerate(zip(names, sizes, strict=False)):
        devices = [Device(index, next(ranks), f"10.{number}.0.{index}") for index in range(size)]
        devices.sort(key=lambda device: device.global_rank)
        servers.append(Server(name, tuple(devices), draw(st.none() | st.just("reserve"))))
    return Cluster(tuple(servers))


STRINGS = re.compile(r'"([^"]*)"')
BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*|10\.[0-9]\.0\.[0-9]")


def damaged(text, random):
    """The text with faults of which none leaves a doubt."""
    text = STRINGS.sub(lambda match: _damaged_string(match.group(1), random), text)
    text = re.sub(r",(?=\n)", lambda _: random.choice([",", ",", ",", ",,", "，", " ,"]), text)  # noqa: RUF001
    text = re.sub(r",(?=\n\s*[\"'“{])", lambda _: random.choice([",", ",", ""]), text)
    text = re.sub(r"(?<=[^\[{,\s])(?=\n *[\]}])", lambda _: random.choice(["", "", ","]), text)
    return re.sub(r"\n", lambda _: random.choice(["\n"] * 6 + [' // x, "y": {\n', "\n# 'z'\n", " /* [\n*/\n"]), text)


def _damaged_string(value, random):
    choices = [f'"{value}"'] * 6 + [f"'{value}'", f"“{value}”"] + ([value] if BARE.fullmatch(value) else [])
    return random.choice(choices)


def damaged_values(table, random):
    for server in table["server_list"]:
        for device in server["device"]:
            for key in ("device_id", "rank_id"):
                number = device[key]
                device[key] = random.choice([number, number, int(number), f"0{number}", f" +{number}"])
        random.shuffle(server["device"])
    random.shuffle(table["server_list"])
    table["server_count"] = random.choice([table["server_count"], "9", 1])
    if random.random() < 0.3:
        del table["server_count"]
    return table


@given(
    cluster=clusters(),
    random=st.randoms(use_true_random=False),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
    windows=st.booleans(),
)
def test_damaged_table_is_valid_again_and_says_the_same(cluster, random, encoding, windows):
    table = damaged_values(json.loads(render_table(cluster)), random)
    text = damaged(json.dumps(table, indent=2, ensure_ascii=False) + "\n", random)
    fixed = fix((text.replace("\n", "\r\n") if windows else text).encode(encoding), unsafe=True)
    assert fixed.report.valid, fixed.report.render()
    assert in_order(fixed.report.cluster) == in_order(cluster)
    assert not fix(fixed.data).changed
    if windows:
        assert fixed.after.count("\n") == fixed.after.count("\r\n")


TABLE = (
    '{"version": "9", "server_list": [{"server_id": "a", "device": [{"device_id": "0"}, 12, -1.5e3]}], // x\n'
    ' "x": [true, null, {}, []], \'y\': "\\n\\"\\\\", z: 1,}'
)
PIECES = st.sampled_from(list("{}[],:\"'/*#.\n\r 0-eE+\x00\x7fé…“”，ab"))  # noqa: RUF001


@given(mangled(TABLE, PIECES), st.binary(max_size=100))
def test_mangled_text_is_never_made_worse(text, data):
    fixed = fix(data)
    assert fixed.changed or fixed.data == data
    before, fixed = parse_document(text.encode()), fix(text)
    after = parse_document(fixed.data)
    certain = sum(fault.repair is not None for fault in before.faults)
    # Besides what is repaired, another may have become certain. A bracket that is closed may reveal one.
    closed = sum(fault.repair is not None and fault.code == "RT112" for fault in before.faults)
    assert len(after.faults) <= len(before.faults) - certain + closed
    assert fixed.changed is (certain > 0)
    if before.checkable:
        # Where mangling has made a table of it, what that lacks is added.
        kept = {name: after.value.get(name) for name in before.value} if isinstance(before.value, dict) else after.value
        assert kept == before.value
    assert not fix(fixed.data).changed


@pytest.mark.parametrize("written", [r'"rank_id": "+\1"', r'"rank_id": \1'])
def test_thousands_of_repairs_of_one_kind_are_all_made(written):
    devices = tuple(Device(index, index) for index in range(8))
    servers = (
        Server(f"node-{number:04}", tuple(replace(one, global_rank=8 * number + one.device_id) for one in devices))
        for number in range(250)
    )
    sound = render_table(Cluster(tuple(servers)))
    fixed = fix_table(re.sub(r'"rank_id": "(\d+)"', written, sound).encode(), Path("t.json"), Profile("none"))
    assert len(fixed.repairs) == 2000
    assert fixed.after == sound


def test_no_comma_is_written_where_an_entry_may_have_lost_its_end():
    device = '{"device_id": "0", "rank_id": "0", "device_ip": "192.1.0.1"\n"device_ip": "192.1.0.2"}'
    servers = f'"server_count": "1", "server_list": [{{"server_id": "a", "device": [{device}]}}]'
    fixed = fix(f'{{"version": "1.0", "status": "completed", {servers}}}')
    assert [problem.code for problem in fixed.report.errors] == ["RT105"]
    assert not fixed.changed


# --- counts that differ from their lists: what agrees is written plainly, what differs is offered ---


@pytest.mark.parametrize("written", ["2", "02", 2, "2x", " +2"])
def test_server_count_that_agrees_is_written_plainly(written, table):
    fixed = fix({**table(2, 2), "server_count": written})
    assert json.loads(fixed.after) == table(2, 2)
    assert fixed.offers == ()
    assert fixed.changed is bool(fixed.repairs) is (written != "2")


@pytest.mark.parametrize(
    ("written", "lost", "stale"),
    [("7", "the table lost 5 servers", True), ("1", "a server too many", True), ("x", "may have lost a server", False)],
)
def test_server_count_that_differs_is_only_offered(written, lost, stale, table):
    """Either the count is stale or the list lost a server: both is said, and nothing done but with `unsafe`."""
    broken = {**table(2, 2), "server_count": written}
    fixed = fix(broken)
    assert not fixed.changed
    assert fixed.repairs == ()
    ((code, line, message),) = fixed.offers
    assert (code, line) == ("RT312", 3)
    assert lost in message
    assert ("is out of date" in message) is stale
    done = fix(broken, unsafe=True)
    assert json.loads(done.after) == table(2, 2)
    assert [repair.code for repair in done.repairs] == ["RT312"]
    assert done.offers == ()
    assert done.report.valid


def test_lost_server_is_not_hidden_by_other_repairs():
    text = (
        '{"version": "1.0", "server_count": 2, "server_list": [\n'
        '  {"server_id": "a", "device": [{"device_id": 0, "rank_id": "0"}]},\n'
        '], "status": "completed"}'
    )
    fixed = fix(text)
    assert json.loads(fixed.after)["server_count"] == "2"
    assert [repair.code for repair in fixed.repairs] == ["RT205", "RT103", "RT205"]
    assert [(offer.code, offer.line) for offer in fixed.offers] == [("RT312", 1)]
    assert not fixed.report.valid


@pytest.mark.parametrize(("code", "table", "short", "wrong"), [
    ("RT371", ranks(1, 2), "rank_count", 3), ("RT601", lab(1, 2), "group_count", "2"),
    ("RT602", lab(1, 2), "g0/instance_count", "3"),
    ("RT603", lab(1, 2), "g0/device_num", "3"), ("RT604", lab(1, 2), "g0/server_num", "2"),
    ("RT412", lab(1, 2), "para_plane_nic_num", "3"),
    ("RT602", cloud(1, 2), "g0/instance_count", "3"),
    ("RT603", cloud(1, 2), "g0/device_count", "3"),
])  # fmt: skip
def test_every_count_that_differs_is_only_offered(code, table, short, wrong):
    broken = table.make({short: wrong})
    fixed = fix(broken)
    assert not fixed.changed
    assert [offer.code for offer in fixed.offers] == [code]
    assert json.loads(fix(broken, unsafe=True).after) == table.make()
