"""`tlaunch table diff`: the verdict, the differences, and the exit code."""

import json

import click
import pytest

from launcher.logs.terminal import without_colours


@pytest.fixture(name="files")
def _files(launcher, sample_tables):
    """Write a table of 16 devices as a.json, and with a change as b.json."""
    text = (sample_tables / "rank_table_16pcs.json").read_text()

    def write(change=None, *, indent=2, **options):
        launcher.write("a.json", text)
        table = json.loads(text)
        if change is not None:
            change(table)
        launcher.write("b.json", json.dumps(table, indent=indent, **options))

    return write


def device_of(table, server, device):
    return table["server_list"][server]["device"][device]


def change_addresses(table):
    for server in table["server_list"]:
        for device in server["device"]:
            device["device_ip"] = f"2{device['device_ip'][1:]}" if device["device_id"] != "0" else "222.1.1.1"


CHANGES = {
    "a changed address": lambda table: device_of(table, 1, 1).update(device_ip="192.2.40.99"),
    "two changed addresses": lambda table: [
        device_of(table, 1, one).update(device_ip=f"{device_of(table, 1, one)['device_ip']}9") for one in range(2)
    ],
    # host_nic_ip means nothing to HCCL, but is part of the checksum.
    "values HCCL ignores": lambda table: table["server_list"][0].update(host_nic_ip="10.0.0.9", remark=1),
    "another order": lambda table: table["server_list"].reverse(),
    "a table with errors": lambda table: device_of(table, 1, 0).update(rank_id="0"),
    "control characters": lambda table: table.update({"\x1b[2J\n": "\x07\nx"}),
}


def test_the_same_content_matches(launcher, files, snapshot):
    files(indent=None, sort_keys=True)
    assert launcher.scene("table diff a.json b.json", "table diff a.json a.json", code=0) == snapshot
    text = (launcher.directory / "a.json").read_text()
    assert launcher.call("table", "diff", "a.json", "-", input=text).returncode == 0


@pytest.mark.parametrize("name", CHANGES)
def test_differences(launcher, files, name, snapshot):
    files(CHANGES[name])
    assert launcher.scene("table diff a.json b.json", code=1) == snapshot


def test_many_differences_are_limited(launcher, files, snapshot):
    files(change_addresses)
    assert launcher.scene("table diff a.json b.json --limit 3", code=1) == snapshot
    assert launcher.call("table", "diff", "a.json", "b.json").stdout.count("  changed ") == 16


def test_broken_json_is_shown_instead(launcher, files, snapshot):
    files()
    launcher.write("b.json", '{"version": "1.0",}')
    assert launcher.scene("table diff a.json b.json", code=1) == snapshot
    told = json.loads(launcher.call("table", "diff", "a.json", "b.json", "--json").stdout)
    assert (told["would_match"], told["checksums"]) == (False, None)
    assert "RT103" in {problem["code"] for problem in told["problems"][1]}


def test_unreadable_files_end_with_2(launcher, files, snapshot):
    files()
    assert launcher.refused(2, "table diff a.json missing.json", "table diff - -", input="{}") == snapshot
    # Deep nesting has a message.
    launcher.write("b.json", f'{{"a": {"[" * 900}{"]" * 900}}}')
    done = launcher.call("table", "diff", "b.json", "-", input=f'{{"a": {"[" * 900}1{"]" * 900}}}')
    assert done.returncode in {1, 2}
    assert "Traceback" not in done.stderr


def test_json_has_everything(launcher, files, snapshot):
    files(CHANGES["a changed address"])
    told = json.loads(launcher.scene("table diff a.json b.json --json", code=1).partition("\n")[2].rpartition("\n")[0])
    assert len(set(told.pop("checksums"))) == 2
    assert told == snapshot


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_was_and_what_is_have_colours_of_their_own(launcher, files, change):
    files(change)
    plain = launcher.call("table", "diff", "a.json", "b.json").stdout
    coloured = launcher.call("table", "diff", "a.json", "b.json", env={"FORCE_COLOR": "1"}).stdout
    assert "\x1b" not in plain
    assert without_colours(coloured) == plain
    assert coloured.startswith(click.style("a.json and b.json differ", fg="red", bold=True, reset=False))
    no_colour = {"FORCE_COLOR": "1", "NO_COLOR": "1"}
    assert launcher.call("table", "diff", "a.json", "b.json", env=no_colour).stdout == plain
