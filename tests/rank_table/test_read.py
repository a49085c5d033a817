"""From a file to a cluster: formats, shape, records, errors, and what a person sees."""

import json
import os
import subprocess
import sys

import pytest
from rich.cells import cell_len

from launcher.core.errors import RefusedTableError, UnreadableError
from launcher.core.records import Device, Server
from launcher.core.resources import data_dir
from launcher.rank_table import Profile, load_cluster, read_rank_table, render_table

from .tables import DROP, MAKERS, backwards, find, pointer_of, servers, steps


def codes(report):
    return [problem.code for problem in report.problems]


def test_cluster_has_devices_by_rank_and_servers_in_file_order(report):
    found = report(servers(2, 2).make({"s0/device": backwards, "s1/device": backwards, "server_list": backwards}))
    assert [server.server_id for server in found.cluster.servers] == ["10.0.0.2", "10.0.0.1"]
    assert found.cluster.servers[0] == Server(
        "10.0.0.2", (Device(0, 2, "192.1.0.2"), Device(1, 3, "192.2.0.2")), "reserve"
    )
    assert found.cluster.source == found.path.absolute()


@pytest.mark.parametrize("count", [2, 4, 8, 16])
def test_samples_are_valid_for_every_chip_and_canonical(count):
    path = data_dir("rank_tables") / f"rank_table_{count}pcs.json"
    for chip in ("auto", "910", "a2", "a3", "300i", "none"):
        cluster, warnings = load_cluster(path, Profile(chip))
        assert warnings == ()
        assert cluster.device_count == count
    assert render_table(cluster) == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("broken", [1, 1.5, True, None, ["1"], {"1": "1"}])
@pytest.mark.parametrize("key", ["version", "status", "server_count"])
def test_strings_are_strings(key, broken, table, report):
    found = report({**table(), key: broken})
    assert codes(found) == ["RT205"]
    assert found.problems[0].pointer == f"/{key}"
    assert key in found.problems[0].message


@pytest.mark.parametrize("key", ["device_id", "rank_id", "device_port"])
def test_number_for_a_string_has_the_value_to_write(key, report):
    found = report(servers(1, 2).make({f"d0.1/{key}": 1}))
    assert codes(found) == ["RT205"]
    assert found.problems[0].pointer == f"/server_list/0/device/1/{key}"
    assert found.problems[0].hint.startswith('write "1"')


MISSING = [
    ("servers", "", "version status server_list"),
    ("servers", "s0", "server_id device"),
    ("servers", "d0.1", "device_id rank_id"),
    ("nodes", "", "version status collective_id node_list"),
    ("nodes", "n0", "node_addr ranks"),
    ("nodes", "r0.0", "rank_id"),
    ("ranks", "", "version rank_count rank_list"),
    ("ranks", "r0", "rank_id device_id local_id level_list"),
    ("ranks", "r0/control_plane", "addr_type addr listen_port"),
    ("ranks", "l0.0", "net_layer net_instance_id rank_addr_list"),
    ("ranks", "a0.0.0", "addr_type addr ports"),
]


@pytest.mark.parametrize(
    ("kind", "holder", "key"), [(kind, holder, key) for kind, holder, keys in MISSING for key in keys.split()]
)
def test_missing_key_is_shown_where_it_should_be(kind, holder, key, report):
    wrong, pointer = MAKERS[kind](1, 2), pointer_of(holder)
    if kind == "ranks":
        wrong["rank_list"][0]["control_plane"] = {"addr_type": "IPV4", "addr": "10.0.0.1", "listen_port": 8000}
    del find(wrong, steps(pointer))[key]
    (problem,) = report(wrong).problems
    assert (problem.code, problem.message, problem.pointer) == ("RT204", f"{key} is missing here", pointer)
    assert problem.hint.startswith(f'add "{key}": ')


def test_other_entries_are_checked_beside_one_that_is_no_object(report):
    assert {"RT205", "RT331"} <= set(codes(report(servers(2, 1).make({"d1.0/device_ip": "10.*.*.*", "s0": 3}))))


def test_problems_come_in_file_order_and_all_at_once(report):
    wrong = servers(2, 2).make({"d0.1/rank_id": "7", "s1/server_id": "10.0.0.1", "status": "waiting"})
    found = report(json.dumps(wrong, indent=2).replace("\n  ],", ",\n  ],"))
    assert codes(found) == ["RT301", "RT314", "RT103", "RT311"]
    assert [problem.line for problem in found.problems] == sorted(problem.line for problem in found.problems)
    assert found.cluster is None


def test_repeated_key_is_a_warning_and_the_last_one_counts(table, report):
    found = report(json.dumps(table(1, 1), indent=2).replace('"server_id"', '"server_id": "other",\n      "server_id"'))
    assert codes(found) == ["RT405"]
    assert found.cluster.servers[0].server_id == "10.0.0.1"
    assert found.problems[0].pointer == "/server_list/0/server_id"


def test_rendered_problem_has_place_source_caret_and_hint(report):
    found = report(servers(1, 2).make({"d0.1/rank_id": "5"}))
    line = next(n for n, text in enumerate(found.document.text.split("\n"), 1) if '"rank_id": "5"' in text)
    source = '          "rank_id": "5"'
    column = source.index('"5"') + 1
    gutter = " " * 5
    assert found.render() == (
        f"{found.path}:{line}:{column}: error[RT301]: rank_id 5 is outside 0 .. 1 (2 devices in this table)\n"
        f"{line:>5} | {source}\n"
        f"{gutter} | {' ' * (column - 1)}^^^\n"
        f'{gutter} hint: write "1", which no device has\n'
        f"{found.path}: 1 error"
    )


def test_terminal_controls_in_a_table_stay_harmless(report):
    wrong = servers(1, 1).make({"d0.0/device_ip": "\x1b[2J\u202e"})
    for ascii_only in (True, False):
        shown = report(json.dumps(wrong, ensure_ascii=ascii_only)).render()
        assert all(char.isprintable() or char == "\n" for char in shown)


@pytest.mark.parametrize("columns", [None, 80, 40])
@pytest.mark.parametrize(
    "filler", ["a", "字", "e\u0301", "\t", "\u202e"], ids=["narrow", "wide", "combining", "tab", "control"]
)
@pytest.mark.parametrize(("before", "after"), [(200, 200), (0, 200), (200, 0), (1, 1)])
def test_a_long_line_is_cut_to_the_terminal_around_its_fault(report, columns, filler, before, after):
    fillers = [filler * count if filler == "\t" else f'{{"x":"{filler * count}"}}' for count in (before, after)]
    comma = "" if filler == "\t" else ","
    _, source, caret, *_ = report(f"[{fillers[0]}{comma}nosuch{comma}{fillers[1]}]").render(columns).split("\n")
    assert cell_len(source) <= (columns or 120)
    assert cell_len(source.partition("nosuch")[0]) == caret.index("^")
    assert caret.endswith(" ^^^^^^")
    assert (source[8] == "…", source.endswith("…")) == (before == 200, after == 200)
    assert "\t" not in source


def test_the_first_of_two_in_one_line_is_told_by_its_column(report):
    found = report(json.dumps(servers(1, 2).make({"d0.1/rank_id": "0"})))
    [problem] = [problem for problem in found.problems if problem.code == "RT302"]
    first = found.document.text.index('"rank_id": ') + len('"rank_id": ')
    assert problem.message.endswith(f", first in column {first + 1}")


def test_caret_stands_under_its_character_after_wide_ones(report, table):
    text = json.dumps(table(1, 1)).replace('"status"', '"状态": "x", "status"').replace("completed", "no")
    found = report(text.replace('"version"', '\n"version"').replace('"状态"', '\n"状态"'))
    problem = next(problem for problem in found.problems if problem.code == "RT311")
    rendered = found.render().split("\n")
    at = next(n for n, line in enumerate(rendered) if "RT311" in line)
    assert rendered[at + 2].index("^") == rendered[at + 1].index('"no"') + 2
    assert problem.width == len('"no"')


def test_many_problems_are_shown_up_to_a_limit_and_counted(report):
    found = report(servers(1, 1).make({"s0/device": [{"device_id": 1, "rank_id": 1}] * 600}))
    shown = found.render()
    assert "more like it" in found.problems[-1].message
    assert len(found.problems) == 1000
    assert "... and 950 more" in shown
    assert shown.endswith("1000 errors")


def test_load_cluster_raises_with_everything_shown(table, tmp_path):
    path = tmp_path / "table.json"
    path.write_text(json.dumps({**table(), "status": "no", "server_count": "9"}))
    with pytest.raises(RefusedTableError) as raised:
        load_cluster(path)
    assert "RT311" in str(raised.value)
    assert "RT312" in str(raised.value)
    assert raised.value.exit_code == 3


def test_missing_file_names_the_tables_beside_it(tmp_path):
    (tmp_path / "rank_table_8pcs.json").write_text("{}")
    with pytest.raises(UnreadableError) as raised:
        read_rank_table(tmp_path / "rank_table_8pc.json")
    assert "rank_table_8pcs.json" in raised.value.hint
    assert raised.value.exit_code == 2


def test_directory_and_file_in_place_of_one_are_unreadable(tmp_path):
    with pytest.raises(UnreadableError, match="is a directory"):
        read_rank_table(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(UnreadableError, match="Not a directory"):
        read_rank_table(tmp_path / "file" / "table.json")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_file_without_permission_is_unreadable(tmp_path, table):
    path = tmp_path / "table.json"
    path.write_text(json.dumps(table()))
    path.chmod(0)
    with pytest.raises(UnreadableError, match="Permission denied"):
        read_rank_table(path)


def test_table_may_come_through_a_pipe(tmp_path, table):
    pipe = tmp_path / "table.json"
    os.mkfifo(pipe)
    text = json.dumps(table(2, 2))
    writer = subprocess.Popen([sys.executable, "-c", f"open({str(pipe)!r}, 'w').write({text!r})"])
    try:
        assert read_rank_table(pipe).cluster.device_count == 4
    finally:
        assert writer.wait(timeout=60) == 0


def test_a_table_without_faults_loads_no_pydantic(tmp_path, table):
    """Its import takes longer than all the rest. It is loaded for a table whose shape is not evidently right."""
    (tmp_path / "sound.json").write_text(json.dumps(table(2, 2)))
    (tmp_path / "faulty.json").write_text(json.dumps({**table(2, 2), "status": 1}))
    program = (
        "import sys; from pathlib import Path; from launcher.rank_table import read_rank_table\n"
        "for name in ('sound', 'faulty'): print(read_rank_table(Path(f'{name}.json')).valid, 'pydantic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["True False", "False True"]


def test_an_empty_file_without_the_json_ending_is_refused_like_any_other(tmp_path):
    (tmp_path / "table").touch()
    with pytest.raises(RefusedTableError):
        load_cluster(tmp_path / "table")


def test_a_pipe_without_a_writer_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("launcher.rank_table.table_reader.PIPE_PATIENCE_S", 0)
    os.mkfifo(tmp_path / "table.json")
    with pytest.raises(UnreadableError, match="no data arrived within"):
        load_cluster(tmp_path / "table.json")


@pytest.mark.parametrize("device", ["/dev/ptmx", "/dev/kmsg", "/proc/kmsg"])
def test_a_device_that_never_ends_is_refused(tmp_path, monkeypatch, device):
    monkeypatch.setattr("launcher.rank_table.table_reader.PIPE_PATIENCE_S", 0)
    (tmp_path / "table.json").symlink_to(device)
    with pytest.raises(UnreadableError, match="cannot be read"):
        load_cluster(tmp_path / "table.json")


@pytest.mark.parametrize(("right", "wrong", "column", "word"), [
    ('"device_ip": "192.1.27.6", "rank', '"device_ip": "192.1.27.6, "rank', 43, "do not pair up"),
    ('"device_id": "0"', '"device_id": 0"', 25, "opening quote"),
    ('"device_id": "0"', '"device_id: "0"', 12, "do not pair up"),
])  # fmt: skip
def test_a_missing_quote_is_shown_where_it_is_missing(right, wrong, column, word, report):
    text = '{"version": "1.0", "status": "completed", "server_count": "1", "server_list": [{"server_id": "a", "device": [\n'
    text += '          {"device_id": "0", "device_ip": "192.1.27.6", "rank_id": "0"}]}]}'
    assert report(text).valid
    (problem,) = report(text.replace(right, wrong)).errors
    assert (problem.code, problem.line, problem.column) == ("RT106", 2, column)
    assert word in problem.message
    assert problem.hint.startswith("write ")


@pytest.mark.parametrize("tail", ["}", "[]", "hello", "# eof", "```", "// end"])
def test_text_after_the_table_is_a_warning_whatever_it_is(tail, table, report):
    found = report(json.dumps(table(1, 2)) + "\n" + tail + "\n")
    assert codes(found) == ["RT109"]
    assert found.valid


def test_a_table_that_was_only_begun_is_not_to_be_completed_by_hand(report):
    assert codes(report({"status": "initializing"})) == ["RT311"]
    assert "RT311" in codes(report({"status": "initializing", "version": "1.0", "server_list": []}))
    assert "RT206" not in codes(report({"status": "initializing", "version": "1.0", "server_list": []}))
    misspelt = report({"status": "complete", "version": "1.0", "server_count": 1, "server_list": []})
    assert {"RT205", "RT311"} <= set(codes(misspelt))


def test_ranks_are_not_judged_where_a_list_is_missing(report):
    assert codes(report(servers(2, 4).make({"s0/devices": [], "s0/device": DROP}))) == ["RT204", "RT401"]


@pytest.mark.parametrize(
    ("name", "target", "is_fine"),
    [("a.json.bak.json", None, False), ("b.json", "b.txt", False), ("c.txt", "c.json", True), ("d.json", None, True)],
)
def test_the_name_that_hccl_looks_at_is_that_of_the_real_file(name, target, is_fine, table, tmp_path):
    """HCCL resolves links and wants the first .json of the path to be its end."""
    real = tmp_path / (target or name)
    real.write_text(json.dumps(table(1, 1)))
    if target is not None:
        (tmp_path / name).symlink_to(real)
    found = read_rank_table(tmp_path / name)
    assert [problem.code for problem in found.problems] == ([] if is_fine else ["RT406"])
