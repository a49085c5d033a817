"""`tlaunch validate`: what it says about each file, where it says it, and its exit code."""

import json
import os
import pty
import subprocess
from contextlib import suppress

import pytest

from launcher.cli.options.table import CHIP_NAMES, CONSUMER_NAMES
from launcher.rank_table.chips import CHIPS
from launcher.rank_table.profile import CONSUMERS


@pytest.fixture(name="table")
def _table(sample_tables):
    """The text of a valid table of 8 devices, with replacements."""

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
    (launcher.directory / "clean.json").write_text(table())
    (launcher.directory / "noted.json").write_text(table(('"status"', '"remark": "x",\n  "status"')))
    (launcher.directory / "wrong.json").write_text(table(('"device_id": "7"', '"device_id": "6"')))


def test_names_are_those_of_the_rank_table_room():
    """The choices of --chip and --for are exactly the profiles that exist."""
    assert list(CHIP_NAMES) == list(CHIPS)
    assert list(CONSUMER_NAMES) == list(CONSUMERS)


def test_a_clean_file_gives_one_line(launcher, files):
    """Format and size of a valid table stand on stdout, nothing on stderr."""
    done = launcher.run("validate", "clean.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "clean.json: valid v1.0 table: 1 server, 8 devices\n"


def test_an_error_is_shown_at_its_line(launcher, files):
    """Problems are the data of this command: on stdout, with the source line, and exit code 1."""
    done = launcher.run("validate", "wrong.json")
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("wrong.json:15:23: error[RT323]: ")
    assert lines[1].startswith("   15 | ")
    assert lines[2].endswith("^^^")
    assert lines[-1] == "wrong.json: 1 error"


def test_warnings_are_allowed_but_not_by_strict(launcher, files):
    """A warning is shown before the verdict, which --strict turns around."""
    allowed = launcher.run("validate", "noted.json")
    assert allowed.returncode == 0
    assert "warning[" in allowed.stdout
    assert allowed.stdout.endswith("noted.json: valid v1.0 table: 1 server, 8 devices, 1 warning\n")
    strict = launcher.run("validate", "--strict", "noted.json")
    assert strict.returncode == 1
    assert strict.stdout.endswith("noted.json: 1 warning, and --strict allows none\n")
    assert launcher.run("validate", "--strict", "clean.json").returncode == 0


def test_quiet_leaves_problems_only(launcher, files):
    """--quiet says nothing about a clean file, and of a noted one the warnings only."""
    done = launcher.run("validate", "-q", "clean.json", "noted.json")
    assert done.returncode == 0
    assert done.stdout.startswith("noted.json:")
    assert "valid" not in done.stdout


def test_an_unreadable_file_outweighs_an_invalid_one(launcher, files):
    """All files are checked, whatever becomes of one; what is unreadable is said on stderr and decides the code."""
    done = launcher.run("validate", "missing.json", "wrong.json", "clean.json")
    assert done.returncode == 2
    assert done.stderr.startswith("error: missing.json does not exist\nhint: ")
    assert "wrong.json: 1 error\nclean.json: valid" in done.stdout


def test_stdin_is_a_file_too(launcher, table):
    """- reads stdin, without a complaint about its name; twice is refused."""
    done = launcher.run("validate", "-", input=table())
    assert done.stdout == "-: valid v1.0 table: 1 server, 8 devices\n"
    assert launcher.run("validate", "-", input="{").returncode == 1
    twice = launcher.run("validate", "-", "-", input=table())
    assert twice.returncode == 2
    assert "twice" in twice.stderr


def test_closed_stdin_is_unreadable(launcher):
    """Without any stdin the command ends with a message and the code of unreadable files."""
    closed = ["sh", "-c", 'exec "$@" <&-', "sh", *launcher.argv("validate", "-")]
    done = subprocess.run(closed, cwd=launcher.directory, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "stdin is closed" in done.stderr


def test_directories_are_searched_in_order(launcher, table):
    """Every *.json below a directory is checked, by path; other files are left alone."""
    for name in ("b/z.json", "a.json", "b/a/deep.json", "b/notes.txt"):
        path = launcher.directory / "tables" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(table())
    done = launcher.run("validate", "tables")
    assert done.returncode == 0
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == [
        "tables/a.json",
        "tables/b/a/deep.json",
        "tables/b/z.json",
    ]


def test_a_directory_without_tables_is_an_error(launcher, files):
    """Nothing to check is no success; what else was named is checked all the same."""
    (launcher.directory / "empty").mkdir()
    done = launcher.run("validate", "empty", "clean.json")
    assert done.returncode == 2
    assert "empty holds no *.json file" in done.stderr
    assert done.stdout.startswith("clean.json: valid")


def test_json_has_one_element_per_file(launcher, files):
    """The same findings for programs, an unreadable file included."""
    done = launcher.run("validate", "--json", "clean.json", "wrong.json", "missing.json")
    assert done.returncode == 2
    clean, wrong, missing = json.loads(done.stdout)
    assert clean == {
        "path": "clean.json",
        "format": "v1.0",
        "valid": True,
        "servers": 1,
        "devices": 8,
        "problems": [],
    }
    [problem] = wrong["problems"]
    assert not wrong["valid"]
    assert set(problem) == {"code", "severity", "message", "hint", "pointer", "line", "column"}
    assert (problem["code"], problem["severity"]) == ("RT323", "error")
    assert (problem["pointer"], problem["line"], problem["column"]) == ("/server_list/0/device/7/device_id", 15, 23)
    assert not missing["valid"]
    assert "does not exist" in missing["error"]
    assert "does not exist" in done.stderr


def test_json_knows_strict(launcher, files):
    """With --strict a table with warnings is not valid, and its warnings stay warnings."""
    [element] = json.loads(launcher.run("validate", "--json", "--strict", "noted.json").stdout)
    assert not element["valid"]
    assert [problem["severity"] for problem in element["problems"]] == ["warning"]


def test_text_that_is_no_json_has_no_format(launcher):
    """Broken text is an invalid table, not an unreadable file."""
    [element] = json.loads(launcher.run("validate", "--json", "-", input="not json").stdout)
    assert element["format"] is None
    assert "error" not in element
    assert element["problems"]


def test_the_chip_decides(launcher, table):
    """A device id that an A2 has is refused for a 910."""
    text = table(('"device_id": "7"', '"device_id": "12"'))
    assert launcher.run("validate", "--chip", "a2", "-", input=text).returncode == 0
    assert launcher.run("validate", "--chip", "910", "-", input=text).returncode == 1


def test_an_unknown_chip_is_a_usage_error(launcher, files):
    """Profiles that do not exist are named."""
    done = launcher.run("validate", "--chip", "911", "clean.json")
    assert done.returncode == 2
    assert "911" in done.stderr


def test_no_file_is_a_usage_error(launcher):
    """Without FILE there is nothing to check, and stdin is not waited for."""
    assert launcher.run("validate").returncode == 2


def test_colour_marks_heads_only(launcher, files):
    """--color changes nothing but escape sequences, none of them inside source lines."""
    plain = launcher.run("validate", "wrong.json", "noted.json").stdout
    coloured = launcher.run("validate", "--color", "wrong.json", "noted.json").stdout
    assert "\x1b" not in plain
    marked = [line for line in coloured.splitlines() if "\x1b" in line]
    assert len(marked) == 2
    assert "\x1b[31m" in marked[0]
    assert "\x1b[33m" in marked[1]


@pytest.mark.parametrize(("variables", "expected"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_colour_is_for_terminals(launcher, files, variables, expected):
    """A terminal gets colour, unless NO_COLOR or a dumb terminal speaks against it."""
    parent, child = pty.openpty()
    environment = launcher.environment({"TERM": "xterm", "NO_COLOR": "", **variables})
    command = launcher.argv("validate", "wrong.json")
    subprocess.run(command, cwd=launcher.directory, env=environment, stdout=child, timeout=60, check=False)
    os.close(child)
    shown = b""
    with suppress(OSError):  # Linux: the other end is closed
        while piece := os.read(parent, 65536):
            shown += piece
    os.close(parent)
    assert b"RT323" in shown
    assert (b"\x1b[" in shown) is expected


def test_a_reader_that_leaves_changes_nothing(launcher, files):
    """A closed pipe is no reason to complain, and the verdict stays the exit code."""
    command = launcher.argv("validate", *["wrong.json"] * 20)
    done = subprocess.run(
        ["bash", "-c", '"$@" | true; exit ${PIPESTATUS[0]}', "bash", *command],
        cwd=launcher.directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "")


def test_a_table_cannot_move_the_cursor(launcher, table):
    """Control characters inside a table are shown as something else."""
    done = launcher.run(
        "validate", "-", input=table(("10.0.40.11", "\\u001b[2J"), ('"device_id": "7"', '"x\x1b": "7"'))
    )
    assert done.returncode == 1
    assert "\x1b" not in done.stdout


def test_a_file_name_cannot_move_the_cursor(launcher, table):
    """Control characters and bytes that are no text are shown as something else; the JSON has the name as it is."""
    for name in (b"esc\x1b[2J.json", b"not\xffutf8.json"):
        (launcher.directory / os.fsdecode(name)).write_text(table(('"device_id": "7"', '"device_id": "6"')))
    done = launcher.run("validate", ".")
    assert done.returncode == 1
    assert "\x1b" not in done.stdout
    assert "esc\\u001b[2J.json: 1 error" in done.stdout
    assert "not\\udcffutf8.json: 1 error" in done.stdout
    told = json.loads(launcher.run("validate", "--json", ".").stdout)
    assert [os.fsencode(element["path"]) for element in told] == [b"esc\x1b[2J.json", b"not\xffutf8.json"]


def test_directories_of_others_are_left_alone(launcher, table):
    """Hidden directories and installed packages are not searched, and what is no rank table is named."""
    contents = {
        "hccl.json": table(),
        ".git/hccl.json": "{",
        "web/node_modules/x/package.json": "{",
        "package.json": '{"name": "x", "version": "1.0"}',
        "settings.json": "{ // no table\n}",
        "list.json": "[1, 2]",
    }
    for name, text in contents.items():
        path = launcher.directory / "work" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    done = launcher.run("validate", "work")
    assert (done.returncode, done.stderr) == (
        0,
        "3 other *.json files are no rank tables: work/list.json, work/package.json, work/settings.json\n",
    )
    assert done.stdout == "work/hccl.json: valid v1.0 table: 1 server, 8 devices\n"
    assert launcher.run("validate", "-q", "work").stderr == ""
    assert launcher.run("validate", "work/package.json").returncode == 1


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_broken_table_in_a_directory_is_no_other_file(launcher, table, encoding):
    """Text that is no JSON, but mentions what tables consist of, is checked and refused."""
    (launcher.directory / "tables").mkdir()
    (launcher.directory / "tables" / "cut.json").write_text(table()[:300], encoding=encoding)
    done = launcher.run("validate", "tables")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("tables/cut.json:")


@pytest.mark.parametrize("text", ["", "{", "\0" * 100, "null", "{}", '{"server_list": '], ids=repr)
def test_what_is_called_a_table_counts_whatever_is_in_it(launcher, table, text):
    """As what a full disk leaves of one."""
    (launcher.directory / "tables").mkdir()
    (launcher.directory / "tables" / "good.json").write_text(table())
    (launcher.directory / "tables" / "rank_table_node1.json").write_text(text)
    done = launcher.run("validate", "tables")
    assert (done.returncode, done.stderr) == (1, "")
    assert "tables/rank_table_node1.json: 1 error" in done.stdout


@pytest.mark.parametrize("text", ["", '{"name": ', "\0\0"], ids=["empty", "cut off", "zeros"])
def test_what_is_no_json_counts_whatever_it_is_called(launcher, table, text):
    """It may have been a table."""
    (launcher.directory / "tables").mkdir()
    (launcher.directory / "tables" / "good.json").write_text(table())
    (launcher.directory / "tables" / "node1.json").write_text(text)
    done = launcher.run("validate", "tables")
    assert (done.returncode, done.stderr) == (1, "")
    assert "tables/node1.json:" in done.stdout


def test_an_unreadable_file_in_a_directory_counts(launcher, table):
    """Whatever it is: a link that leads nowhere, for instance."""
    (launcher.directory / "tables").mkdir()
    (launcher.directory / "tables" / "good.json").write_text(table())
    (launcher.directory / "tables" / "gone.json").symlink_to("nowhere")
    done = launcher.run("validate", "tables")
    assert done.returncode == 2
    assert "tables/gone.json" in done.stderr


def test_of_many_other_files_the_first_are_named(launcher, table):
    """The rest are counted."""
    (launcher.directory / "tables").mkdir()
    (launcher.directory / "tables" / "hccl.json").write_text(table())
    for number in range(30):
        (launcher.directory / "tables" / f"{number:02}.json").write_text("{}")
    done = launcher.run("validate", "tables")
    assert done.returncode == 0
    assert done.stderr.startswith("30 other *.json files are no rank tables: tables/00.json, tables/01.json, ")
    assert done.stderr.endswith(" and 22 more\n")


def test_a_directory_of_other_files_is_an_error(launcher):
    """Nothing to check is no success, and the files are named."""
    (launcher.directory / "other").mkdir()
    (launcher.directory / "other" / "package.json").write_text("{}")
    done = launcher.run("validate", "other")
    assert done.returncode == 2
    assert "other holds no rank table, only 1 other *.json file: other/package.json" in done.stderr


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("hostfile", "# hosts\nnode1 slots=8\nnode2 slots=8\n"),
        ("hostfile", "10.0.0.1\n10.0.0.2\n"),
        ("rankfile", "rank 0=node1 slot=0\nrank 1=node1 slot=1\n"),
        ("nodelist", "node[01-04],login1\n"),
    ],
)
def test_lists_of_hosts_are_named_and_can_be_converted(launcher, kind, text):
    """One problem says what the text is, and the command in its hint makes a valid table of it."""
    (launcher.directory / "hosts").write_text(text)
    [element] = json.loads(launcher.run("validate", "--json", "hosts").stdout)
    [problem] = element["problems"]
    assert problem["code"] == "RT202"
    assert f"it looks like a {kind}" in problem["message"]
    command = problem["hint"].replace("--devices N", "--devices 2").split()
    made = launcher.run(*command[1:])
    assert launcher.run("validate", "-", input=made.stdout).returncode == 0


@pytest.mark.parametrize("text", ["not json", "word", "version: 1.0\nstatus: completed", "12,", "<html>", "a,b", "0x"])
def test_other_text_is_no_list_of_hosts(launcher, text):
    """What might be anything is told its faults as JSON."""
    [element] = json.loads(launcher.run("validate", "--json", "-", input=text).stdout)
    assert element["problems"]
    assert "RT202" not in {problem["code"] for problem in element["problems"]}


def test_a_sample_is_offered_for_its_bare_name(launcher):
    """Whoever forgets the directory is told it."""
    done = launcher.run("validate", "rank_table_8pcs.json")
    assert done.returncode == 2
    assert "did you mean rank_tables/rank_table_8pcs.json, a sample?" in done.stderr
