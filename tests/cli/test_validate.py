"""`tlaunch validate`: what it says about each file, where it says it, and its exit code; as the documentation shows it."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from rich.cells import cell_len

from launcher.cli.options.run import CHIP_NAMES, CONSUMER_NAMES
from launcher.logs.terminal import without_colours
from launcher.rank_table.profile import CHIPS, CONSUMERS


@pytest.fixture(name="table")
def _table(sample_tables):
    def text(*replacements):
        content = (sample_tables / "rank_table_8pcs.json").read_text()
        for old, new in replacements:
            assert old in content
            content = content.replace(old, new, 1)
        return content

    return text


@pytest.fixture(name="files")
def _files(launcher, table):
    """A clean table, one with a warning, one with an error."""
    launcher.write("clean.json", table())
    launcher.write("noted.json", table(('"status"', '"remark": "x",\n  "status"')))
    launcher.write("wrong.json", table(('"device_id": "7"', '"device_id": "6"')))


def test_names_are_those_of_the_rank_table_room():
    assert list(CHIP_NAMES) == list(CHIPS)
    assert list(CONSUMER_NAMES) == list(CONSUMERS)


def test_problems_are_shown_at_their_lines(launcher, files, snapshot):
    valid = ("validate clean.json noted.json", "validate --strict clean.json", "validate -q clean.json noted.json")
    assert launcher.scene(*valid, code=0) == snapshot(name="valid")
    assert launcher.scene("validate wrong.json", "validate --strict noted.json", code=1) == snapshot(name="invalid")


def test_an_unreadable_file_outweighs_an_invalid_one(launcher, files, snapshot):
    (launcher.directory / "empty").mkdir()
    (launcher.directory / "gone.json").symlink_to("nowhere")
    commands = ("validate -q missing.json wrong.json", "validate empty clean.json", "validate -q .")
    assert launcher.scene(*commands, code=2) == snapshot


def test_stdin_is_a_file_too(launcher, table, snapshot):
    assert launcher.scene("validate -", code=0, input=table()) == snapshot(name="valid")
    assert launcher.call("validate", "-", input="{").returncode == 1
    assert launcher.refused(2, "validate - -", input=table()) == snapshot(name="twice")
    done = launcher.shell('exec "$@" <&-', "validate", "-")
    assert launcher.transcript(done) == snapshot(name="closed")


def test_json_has_one_element_per_file(launcher, files, snapshot):
    assert launcher.scene("validate --json clean.json wrong.json missing.json", code=2) == snapshot(name="files")
    assert launcher.scene("validate --json --strict noted.json", code=1) == snapshot(name="strict")


def test_text_that_is_no_json_is_an_invalid_table(launcher):
    for text in ("not json", "word", "version: 1.0\nstatus: completed", "12,", "<html>", "a,b", "0x"):
        [element] = json.loads(launcher.call("validate", "--json", "-", input=text).stdout)
        assert (element["format"], "error" in element, bool(element["problems"])) == (None, False, True), text
        assert "RT202" not in {problem["code"] for problem in element["problems"]}, text


def test_the_chip_decides(launcher, table, snapshot):
    text = table(('"device_id": "7"', '"device_id": "12"'))
    codes = {chip: launcher.call("validate", "--chip", chip, "-", input=text).returncode for chip in ("a2", "910")}
    assert codes == {"a2": 0, "910": 1}
    wrong = ("--chip 911 -", "", "other", "rank_table_8pcs.json")
    # Nothing to check is no success; a sample is offered for its bare name.
    launcher.write("other/package.json", "{}")
    assert launcher.refused(2, *(f"validate {words}" for words in wrong)) == snapshot


def test_colour_marks_heads_only(launcher, files):
    plain = launcher.call("validate", "wrong.json", "noted.json").stdout
    coloured = launcher.call("validate", "--color", "wrong.json", "noted.json").stdout
    assert "\x1b" not in plain
    marked = [line for line in coloured.splitlines() if "\x1b" in line]
    assert [("\x1b[31m" in line, "\x1b[33m" in line) for line in marked] == [(True, False), (False, True)]


@pytest.mark.parametrize(("variables", "expected"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_colour_is_for_terminals(launcher, files, variables, expected):
    shown = launcher.seen("validate", "wrong.json", **variables)
    assert "RT323" in shown
    assert ("\x1b[" in shown) is expected


def test_a_reader_that_leaves_changes_nothing(launcher, files):
    done = launcher.shell('"$@" | true; exit ${PIPESTATUS[0]}', "validate", *["wrong.json"] * 20)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_table_cannot_move_the_cursor(launcher, table):
    text = table(("10.0.40.11", "\\u001b[2J"), ('"device_id": "7"', '"x\x1b": "7"'))
    done = launcher.call("validate", "-", input=text)
    assert (done.returncode, "\x1b" in done.stdout) == (1, False)
    names = (b"esc\x1b[2J.json", b"not\xffutf8.json")
    for name in names:
        launcher.write(name, table(('"device_id": "7"', '"device_id": "6"')))
    done = launcher.call("validate", ".")
    assert (done.returncode, "\x1b" in done.stdout) == (1, False)
    assert "esc\\u001b[2J.json: " in done.stdout
    assert "not\\udcffutf8.json: " in done.stdout
    told = json.loads(launcher.call("validate", "--json", ".").stdout)
    assert [os.fsencode(element["path"]) for element in told] == list(names)


def test_directories_are_searched_in_order(launcher, table, snapshot):
    contents = {
        **dict.fromkeys(("b/z.json", "a.json", "b/a/deep.json", "b/notes.txt", "hccl.json"), table()),
        ".git/hccl.json": "{",
        "web/node_modules/x/package.json": "{",
        "package.json": '{"name": "x", "version": "1.0"}',
        "settings.json": "{ // no table\n}",
        "list.json": "[1, 2]",
    }
    for name, text in contents.items():
        launcher.write(f"work/{name}", text)
    for number in range(30):
        launcher.write(f"many/{number:02}.json", "{}")
    launcher.write("many/hccl.json", table())
    assert launcher.scene("validate work", "validate many", code=0) == snapshot
    assert launcher.call("validate", "-q", "work").stderr == ""
    assert launcher.call("validate", "work/package.json").returncode == 1


CUT = '{"version": "1.0", "server_count": "1", "server_list": [{"server_id": '


MAYBE_TABLES = [
    # Text that is no JSON, but mentions what tables consist of.
    ("cut.json", CUT.encode()),
    ("cut.json", CUT.encode("utf-16")),
    # What is called a table counts whatever is in it, as what a full disk leaves of one.
    *(("rank_table_node1.json", text) for text in (b"", b"{", b"\0" * 100, b"null", b"{}", b'{"server_list": ')),
    # What is no JSON counts whatever it is called: it may have been a table.
    *(("node1.json", text) for text in (b"", b'{"name": ', b"\0\0")),
]


def test_what_may_have_been_a_table_is_no_other_file(launcher, table):
    for number, (name, content) in enumerate(MAYBE_TABLES):
        path = launcher.write(f"{number}/good.json", table()).with_name(name)
        path.write_bytes(content)
        done = launcher.call("validate", str(number))
        assert (done.returncode, done.stderr, f"{number}/{name}:" in done.stdout) == (1, "", True), content


@pytest.mark.parametrize(("kind", "text"), [
    ("hostfile", "# hosts\nnode1 slots=8\nnode2 slots=8\n"),
    ("hostfile", "10.0.0.1\n10.0.0.2\n"),
    ("rankfile", "rank 0=node1 slot=0\nrank 1=node1 slot=1\n"),
    ("nodelist", "node[01-04],login1\n"),
])  # fmt: skip
def test_lists_of_hosts_are_named_and_can_be_converted(launcher, kind, text):
    launcher.write("hosts", text)
    [element] = json.loads(launcher.call("validate", "--json", "hosts").stdout)
    [problem] = element["problems"]
    assert (problem["code"], kind in problem["message"]) == ("RT202", True)
    command = (
        problem["hint"].replace("--devices N", "--devices 2").removeprefix("convert it: `tlaunch ").rstrip("`").split()
    )
    made = launcher.call(*command)
    assert launcher.call("validate", "-", input=made.stdout).returncode == 0


HERE = Path(__file__).resolve().parent
PAGE = (HERE.parents[1] / "docs" / "rank-tables.md").read_text(encoding="utf-8")
SCREENS = dict(re.findall(r"^\$ tlaunch validate (\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
TABLES = sorted(path.name for path in (HERE / "readme_tables").iterdir())


def test_every_screen_has_its_table():
    assert sorted(SCREENS) == TABLES


@pytest.mark.parametrize("name", TABLES)
def test_validate_prints_the_screen(name, launcher):
    shutil.copy(HERE / "readme_tables" / name, launcher.directory)
    assert launcher.call("validate", name, code=1).stdout == SCREENS[name]


def test_what_can_be_repaired_is_counted(launcher):
    table = '{"version": "1.0", "server_count": "1", "server_list": [{"server_id": "10.0.0.1", "device": [%s]}], "status": "completed"}'
    device = '{"device_id": 0, "device_ip": "192.168.1.1", "rank_id": %s},'
    path = launcher.write("a table.json", table % (device % "0"))
    done = launcher.call("validate", "--chip", "910", path.name, code=1)
    *_, last = done.stdout.splitlines()
    assert last == "3 of 3 can be repaired by `tlaunch table fix --chip 910 --write 'a table.json'`"
    assert "can be repaired" not in launcher.call("validate", "-", input=path.read_text(), code=1).stdout
    assert "can be repaired" not in launcher.call("validate", "--json", path.name, code=1).stdout
    launcher.call("table", "fix", "--chip", "910", "--write", path.name, code=0)
    assert "can be repaired" not in launcher.call("validate", "--chip", "910", path.name, code=0).stdout
    path.write_text(table.replace("10.0.0.1", "no address") % (device % '"seven"'))
    *_, last = launcher.call("validate", path.name, code=1).stdout.splitlines()
    of_all = last.partition(" of ")[2].partition(" ")[0]
    assert last.startswith("2 of ")
    assert int(of_all) > 2


def test_no_word_is_broken_on_a_narrow_terminal(launcher):
    device = {"device_id": "0", "device_ip": "10.0.0.300", "rank_id": "0"}
    table = {"version": "1.0", "server_count": "1", "server_list": [{"server_id": "10.0.0.1", "device": [device]}], "status": "completed"}  # fmt: skip
    launcher.write("a.json", table)
    words = launcher.call("validate", "a.json").stdout
    shown = without_colours(launcher.seen("validate", "a.json", COLUMNS="60"))
    assert shown.split() == words.split()
    assert max(map(len, shown.splitlines())) <= 60


def test_the_source_fits_the_terminal(launcher, table):
    wrong = json.loads(table(("192.4.40.10", "192.4.40.1000"), ("10.0.40.11", "字" * 20)))
    launcher.write("a.json", json.dumps(wrong, ensure_ascii=False))
    lines = without_colours(launcher.seen("validate", "a.json", COLUMNS="60")).splitlines()
    sources = [line for line in lines if line.startswith("    1 | ")]
    assert sources
    assert all("…" in line and cell_len(line) <= 60 for line in sources)
