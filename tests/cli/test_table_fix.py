"""`tlaunch table fix`: what it shows, what it writes, and how it ends."""

import json
import os
import pty
import stat

import pytest

from .transcript import typed_lines

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


@pytest.fixture(autouse=True)
def path(launcher):
    return launcher.write("table.json", BROKEN)


@pytest.fixture
def fix(launcher):
    return lambda *arguments, code=0, **options: launcher.call("table", "fix", *arguments, code=code, **options)


def test_file_is_written_with_write(launcher, path, fix, snapshot):
    path.chmod(0o640)
    shown = fix("table.json")
    assert (launcher.transcript(shown), path.read_text()) == (snapshot(name="shown"), BROKEN)
    written = fix("table.json", "--write")
    assert written.stdout == shown.stdout
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == (VALID, 0o640)
    before = path.stat()
    again = fix("table.json", "--write")
    assert (again.stdout, path.stat()) == ("", before)
    assert (written.stderr + again.stderr).splitlines() == snapshot(name="written")


def test_stdin_is_shown_or_passed_on(fix):
    assert fix("-", input=BROKEN).stdout == fix("table.json").stdout.replace("table.json", "-")
    assert [fix("-", "--write", input=text).stdout for text in (BROKEN, VALID)] == [VALID, VALID]


def test_what_is_left_is_shown_with_code_1(launcher, path, fix, snapshot):
    path.write_text(BROKEN.replace('"rank_id": "1"', '"rank_id": "0"'))
    assert fix("table.json", "--write", code=1).stderr.splitlines() == snapshot
    assert path.read_text() == VALID.replace('"rank_id": "1"', '"rank_id": "0"')


def test_order_is_kept_with_no_sort(path, fix):
    swapped = VALID.replace('"rank_id": "0"', '"rank_id": "x"').replace('"rank_id": "1"', '"rank_id": "0"')
    path.write_text(swapped.replace('"rank_id": "x"', '"rank_id": "1"'))
    assert "repaired[order]: " in fix("table.json").stderr
    assert fix("table.json", "--no-sort").stdout == ""


def test_json_has_everything(launcher, fix, snapshot):
    assert launcher.transcript(fix("table.json", "--json")) == snapshot


def test_a_count_that_may_tell_of_a_lost_server_is_only_offered(launcher, path, fix, snapshot):
    lost = VALID.replace('"server_count": "1"', '"server_count": "2"')
    path.write_text(lost)
    assert launcher.refused(1, "table fix table.json --write") == snapshot
    assert path.read_text() == lost
    (listed,) = json.loads(fix("table.json", "--json", code=1).stdout)["offers"]
    assert (listed["code"], listed["line"]) == ("RT312", 3)
    assert "offered" not in fix("table.json", "--write", "--unsafe").stderr
    assert path.read_text() == VALID


def test_what_cannot_be_done_ends_with_2(launcher, snapshot):
    wrong = "missing.json; .; table.json --chip b2; - --write --json; --write rank_tables/rank_table_2pcs.json"
    assert launcher.refused(2, *(f"table fix {words}" for words in typed_lines(wrong))) == snapshot(name="refused")
    assert launcher.scene("table fix rank_tables/rank_table_2pcs.json", code=0) == snapshot(name="read")


def test_terminal_gets_no_control_character_of_the_table(path, fix):
    path.write_text(BROKEN.replace("the last one", "the \x1b[2J last one"))
    head, tail = pty.openpty()
    with os.fdopen(tail, "wb") as terminal, os.fdopen(head, "rb", buffering=0) as screen:
        fix("table.json", stdout=terminal, stderr=terminal)
        shown = screen.read(65536)
        while b"--write" not in shown:
            shown += screen.read(65536)
    assert b"\x1b[2J" not in shown
    assert b"\\u001b[2J" in shown


def test_a_checksum_that_changes_is_said(path, fix):
    """HCCL compares all copies of a table: who repairs a valid one has to repair them all, who only moves blanks has not."""
    path.write_text(VALID.replace('"server_count": "1"', '"server_count": "+1"'))
    assert "checksum" in fix("table.json").stderr
    for text in (BROKEN, VALID):
        path.write_text(text)
        assert "checksum" not in fix("table.json").stderr
