"""`tlaunch table fix`: what it shows, what it writes, and how it ends."""

import json
import os
import pty
import stat
import subprocess

import pytest

VALID = """\
{
  "version": "1.0",
  "server_count": "1",
  "server_list": [
    {"server_id": "a", "device": [
      {"device_id": "0", "rank_id": "0"},
      {"device_id": "1", "rank_id": "1"}
    ]}
  ],
  "status": "completed"
}
"""
BROKEN = VALID.replace('"1"}\n', '"1"}, // the last one\n').replace('"server_count": "1"', '"server_count": 1')
DIFF = """\
--- table.json
+++ table.json
@@ -1,10 +1,10 @@
 {
   "version": "1.0",
-  "server_count": 1,
+  "server_count": "1",
   "server_list": [
     {"server_id": "a", "device": [
       {"device_id": "0", "rank_id": "0"},
-      {"device_id": "1", "rank_id": "1"}, // the last one
+      {"device_id": "1", "rank_id": "1"}
     ]}
   ],
   "status": "completed"
"""


@pytest.fixture
def path(launcher):
    file = launcher.directory / "table.json"
    file.write_text(BROKEN)
    return file


def test_difference_is_shown_and_nothing_is_written(launcher, path):
    """Without --write stdout has the diff, stderr each repair at its line, and the file stays as it is."""
    done = launcher.run("table", "fix", "table.json")
    assert done.stdout == DIFF
    assert done.stderr.splitlines() == [
        'table.json:3: repaired[RT205]: wrote "1" for 1',
        "table.json:7: repaired[RT103]: removed ,",
        "table.json:7: repaired[RT104]: removed // the last one",
        "table.json: 3 repairs, then valid (--write writes it)",
    ]
    assert done.returncode == 0
    assert path.read_text() == BROKEN


def test_file_is_written_with_write(launcher, path):
    """With --write the file is replaced and keeps its mode; a second run has nothing to do and writes nothing."""
    path.chmod(0o640)
    done = launcher.run("table", "fix", "table.json", "--write")
    assert (done.returncode, done.stdout) == (0, DIFF)
    assert "3 repairs written, valid" in done.stderr
    assert path.read_text() == VALID
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    before = path.stat()
    again = launcher.run("table", "fix", "table.json", "--write")
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "table.json: nothing to repair, valid\n")
    assert path.stat() == before


def test_stdin_is_shown_or_passed_on(launcher):
    """From - comes the diff, with --write the repaired table itself, also when there is nothing to repair."""
    assert launcher.run("table", "fix", "-", input=BROKEN).stdout == DIFF.replace("table.json", "-")
    for text in (BROKEN, VALID):
        done = launcher.run("table", "fix", "-", "--write", input=text)
        assert (done.returncode, done.stdout) == (0, VALID)


def test_what_is_left_is_shown_with_code_1(launcher, path):
    """Safe repairs are made also where a person has to decide about the rest, which is then shown."""
    path.write_text(BROKEN.replace('"rank_id": "1"', '"rank_id": "0"'))
    done = launcher.run("table", "fix", "table.json", "--write")
    assert done.returncode == 1
    assert "error[RT302]: rank_id 0 is used twice" in done.stderr
    assert "a person has to decide" in done.stderr
    assert path.read_text() == VALID.replace('"rank_id": "1"', '"rank_id": "0"')


def test_order_is_kept_with_no_sort(launcher, path):
    """--no-sort leaves the entries where they are."""
    swapped = VALID.replace('"rank_id": "0"', '"rank_id": "x"').replace('"rank_id": "1"', '"rank_id": "0"')
    path.write_text(swapped.replace('"rank_id": "x"', '"rank_id": "1"'))
    done = launcher.run("table", "fix", "table.json")
    assert "repaired[order]: put the 2 entries of device in the order of their ranks" in done.stderr
    assert launcher.run("table", "fix", "table.json", "--no-sort").stdout == ""


def test_json_has_everything(launcher, path):
    """--json is one object with the repairs, what is left, and the diff."""
    done = launcher.run("table", "fix", "table.json", "--json")
    shown = json.loads(done.stdout)
    assert shown["diff"] == DIFF
    assert (shown["valid"], shown["changed"], shown["written"]) == (True, True, False)
    assert shown["repairs"][1] == {"code": "RT103", "line": 7, "message": "removed ,"}
    assert shown["offers"] == []
    assert (shown["path"], shown["format"], shown["problems"]) == ("table.json", "v1.0", [])


def test_a_count_that_may_tell_of_a_lost_server_is_only_offered(launcher, path):
    """--write leaves it as it is and says both readings, with code 1; --unsafe writes it."""
    lost = VALID.replace('"server_count": "1"', '"server_count": "2"')
    path.write_text(lost)
    done = launcher.run("table", "fix", "table.json", "--write")
    offer = 'table.json:3: offered[RT312]: write "1" for "2": either the table lost a server, or server_count is stale'
    assert done.stderr.splitlines()[0] == offer
    assert done.stderr.splitlines()[-1].endswith("; --unsafe makes 1 more repair")
    assert (done.returncode, done.stdout, path.read_text()) == (1, "", lost)
    (listed,) = json.loads(launcher.run("table", "fix", "table.json", "--json").stdout)["offers"]
    assert (listed["code"], listed["line"]) == ("RT312", 3)
    done = launcher.run("table", "fix", "table.json", "--write", "--unsafe")
    assert done.returncode == 0
    assert "offered" not in done.stderr
    assert path.read_text() == VALID


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["missing.json"], "missing.json does not exist"),
        (["."], ". is a directory"),
        (["table.json", "--chip", "b2"], "--chip"),
        (["-", "--write", "--json"], "both want stdout"),
    ],
    ids=["missing", "directory", "chip", "stdout"],
)
def test_what_cannot_be_done_ends_with_2(launcher, path, arguments, words):
    """Wrong usage and unreadable files are said in one line."""
    done = launcher.run("table", "fix", *arguments, stdin=subprocess.DEVNULL)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stdout == ""


def test_terminal_gets_no_control_character_of_the_table(launcher, path):
    """A comment that holds an escape sequence is shown as text, on stdout and on stderr."""
    path.write_text(BROKEN.replace("the last one", "the \x1b[2J last one"))
    head, tail = pty.openpty()
    process = launcher.start("table", "fix", "table.json", stdout=tail, stderr=tail)
    os.close(tail)
    shown = b""
    try:
        while piece := os.read(head, 65536):
            shown += piece
    except OSError:  # Linux: the other end is closed
        pass
    os.close(head)
    assert process.wait() == 0
    assert b"\x1b[2J" not in shown
    assert b"\\u001b[2J" in shown


def test_samples_are_read_and_never_written(launcher):
    """rank_tables/... is a sample where no such file is here; --write would change it for everybody."""
    done = launcher.run("table", "fix", "rank_tables/rank_table_2pcs.json")
    assert done.returncode == 0
    assert "nothing to repair, valid" in done.stderr
    refused = launcher.run("table", "fix", "--write", "rank_tables/rank_table_2pcs.json")
    assert refused.returncode == 2
    assert "is a sample" in refused.stderr


def test_a_checksum_that_changes_is_said(launcher, path):
    """HCCL compares all copies of a table: who repairs a valid one has to repair them all, who only moves blanks has not."""
    said = "table.json: HCCL's checksum of this table changes: repair the copies on all servers alike"
    path.write_text(VALID.replace('"server_count": "1"', '"server_count": "+1"'))
    assert said in launcher.run("table", "fix", "table.json").stderr.splitlines()
    path.write_text(BROKEN)
    assert "checksum" not in launcher.run("table", "fix", "table.json").stderr
    path.write_text(VALID)
    assert "checksum" not in launcher.run("table", "fix", "table.json").stderr
    assert "checksum" in launcher.run("table", "fix", "--help").stdout
