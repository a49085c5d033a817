"""`tlaunch table diff`: the verdict, the differences, and the exit code."""

import json

import pytest


@pytest.fixture(name="files")
def _files(launcher, sample_tables):
    """Copies of a table of 16 devices as JSON values, to be written as a.json and b.json."""
    text = (sample_tables / "rank_table_16pcs.json").read_text()

    def write(change=None, *, indent=2, **options):
        (launcher.directory / "a.json").write_text(text)
        table = json.loads(text)
        if change is not None:
            change(table)
        (launcher.directory / "b.json").write_text(json.dumps(table, indent=indent, **options))

    return write


def test_the_same_content_written_differently_matches(launcher, files):
    """White space and the order of keys do not matter to HCCL; that they differ is said."""
    files(indent=None, sort_keys=True)
    done = launcher.run("table", "diff", "a.json", "b.json")
    assert (done.returncode, done.stderr) == (0, "")
    [verdict] = done.stdout.splitlines()
    assert verdict.startswith("a.json and b.json are the same table: the checksums would match")
    assert "white space" in verdict


def test_copies_match_without_a_but(launcher, files):
    """The same bytes differ in nothing."""
    files()
    done = launcher.run("table", "diff", "a.json", "a.json")
    assert done.returncode == 0
    assert "white space" not in done.stdout


def test_a_changed_address_is_found_in_both_files(launcher, files):
    """A changed value is shown with both lines, and so is what it means for the rank."""

    def change(table):
        table["server_list"][1]["device"][1]["device_ip"] = "192.2.40.99"

    files(change)
    done = launcher.run("table", "diff", "a.json", "b.json")
    assert done.returncode == 1
    verdict, count, difference, ranks, rank = done.stdout.splitlines()
    assert "would not match" in verdict
    assert "EI0005" in verdict
    assert count == "1 difference:"
    assert difference.startswith('  changed /server_list/1/device/1/device_ip: "192.2.40.12" (a.json:')
    assert '-> "192.2.40.99" (b.json:' in difference
    assert (ranks, rank) == ("1 change for the ranks:", "  rank 9: device_ip 192.2.40.12 -> 192.2.40.99")


def test_values_that_hccl_ignores_count_all_the_same(launcher, files):
    """host_nic_ip means nothing to HCCL, but is part of the checksum; no rank is concerned."""
    files(lambda table: table["server_list"][0].update(host_nic_ip="10.0.0.9", remark=1))
    done = launcher.run("table", "diff", "a.json", "b.json")
    assert done.returncode == 1
    assert "added /server_list/0/remark: 1 (b.json:" in done.stdout
    assert "nothing changes for any rank" in done.stdout


def test_another_order_is_called_that(launcher, files):
    """Servers in another order are one difference, not one per device."""
    files(lambda table: table["server_list"].reverse())
    done = launcher.run("table", "diff", "a.json", "b.json")
    assert done.returncode == 1
    assert "reordered /server_list: the same 2 entries, only in another order (a.json:4, b.json:4)" in done.stdout
    assert "nothing changes for any rank" in done.stdout


def test_many_differences_are_limited(launcher, files):
    """Only some are shown, and the rest is counted; --limit shows more."""

    def change(table):
        for server in table["server_list"]:
            for device in server["device"]:
                device["device_ip"] = f"2{device['device_ip'][1:]}" if device["device_id"] != "0" else "222.1.1.1"

    files(change)
    done = launcher.run("table", "diff", "a.json", "b.json", "--limit", 3)
    assert "16 differences:" in done.stdout
    assert "... and 13 more (--limit)" in done.stdout
    assert done.stdout.count("  changed ") == 3
    assert launcher.run("table", "diff", "a.json", "b.json").stdout.count("  changed ") == 16


def test_tables_with_errors_are_compared(launcher, files):
    """What HCCL would refuse is still the same or not; what it means for ranks is not known then."""
    files(lambda table: table["server_list"][1]["device"][0].update(rank_id="0"))
    done = launcher.run("table", "diff", "a.json", "b.json")
    assert done.returncode == 1
    assert 'rank_id: "8" (a.json:' in done.stdout
    assert "not known: b.json has" in done.stdout


def test_broken_json_is_shown_instead(launcher, files):
    """Where there is no JSON there is nothing to compare: its problems go to stderr, exit code 1."""
    files()
    (launcher.directory / "b.json").write_text('{"version": "1.0",}')
    done = launcher.run("table", "diff", "a.json", "b.json")
    assert done.returncode == 1
    assert done.stdout.startswith("nothing to compare: HCCL cannot read b.json")
    assert "error[RT103]" in done.stderr
    told = json.loads(launcher.run("table", "diff", "a.json", "b.json", "--json").stdout)
    assert (told["would_match"], told["checksums"]) == (False, None)
    assert "RT103" in {problem["code"] for problem in told["problems"][1]}


def test_unreadable_files_end_with_2(launcher, files):
    """A file that is not there is neither the same nor different, and stdin cannot be both."""
    files()
    assert launcher.run("table", "diff", "a.json", "missing.json").returncode == 2
    assert launcher.run("table", "diff", "-", "-", input="{}").returncode == 2


def test_deep_nesting_has_a_message(launcher, files):
    """Documents that no parser likes end with a message."""
    files()
    (launcher.directory / "b.json").write_text('{"a": ' + "[" * 900 + "]" * 900 + "}")
    done = launcher.run("table", "diff", "b.json", "-", input='{"a": ' + "[" * 900 + "1" + "]" * 900 + "}")
    assert done.returncode in {1, 2}
    assert "Traceback" not in done.stderr


def test_one_may_come_from_stdin(launcher, files):
    """What another node prints is compared with the file here."""
    files()
    text = (launcher.directory / "a.json").read_text()
    assert launcher.run("table", "diff", "a.json", "-", input=text).returncode == 0


def test_json_has_everything(launcher, files):
    """Verdict, checksums, differences and changes for programs."""
    files(lambda table: table["server_list"][0]["device"][0].update(device_ip="192.1.40.99"))
    done = launcher.run("table", "diff", "a.json", "b.json", "--json")
    told = json.loads(done.stdout)
    assert done.returncode == 1
    assert told["would_match"] is False
    assert len(set(told["checksums"])) == 2
    [difference] = told["differences"]
    assert difference == {
        "kind": "changed",
        "pointer": "/server_list/0/device/0/device_ip",
        "before": "192.1.40.10",
        "after": "192.1.40.99",
        "before_line": 8,
        "after_line": difference["after_line"],
    }
    [change] = told["rank_changes"]
    assert change == {"global_rank": 0, "name": "device_ip", "before": "192.1.40.10", "after": "192.1.40.99"}


def test_values_cannot_move_the_cursor(launcher, files):
    """Whatever keys and values hold, each difference stays on its line."""
    files(lambda table: table.update({"\x1b[2J\n": "\x07\nx"}))
    done = launcher.run("table", "diff", "a.json", "b.json")
    assert "\x1b" not in done.stdout
    [line] = [line for line in done.stdout.splitlines() if "added" in line]
    assert line.endswith('/\\u001b[2J\\u000a: "\\u0007\\nx" (b.json:99)')


def test_several_changes_are_counted_in_words(launcher, files):
    """With the plural where it belongs."""

    def change(table):
        for device in table["server_list"][1]["device"][:2]:
            device["device_ip"] += "9"

    files(change)
    lines = launcher.run("table", "diff", "a.json", "b.json").stdout.splitlines()
    assert {"2 differences:", "2 changes for the ranks:"} < set(lines)
