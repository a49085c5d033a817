"""Counts that differ from their lists: what agrees is written plainly, what differs may tell of a loss and is offered."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from launcher.core.records import Cluster, Device, Server
from launcher.rank_table.convert import convert_cluster
from launcher.rank_table.fix import fix_table


def fix(content, **options):
    """Repair JSON values or a text."""
    text = content if isinstance(content, str) else json.dumps(content, indent=2)
    return fix_table(text.encode(), Path("table.json"), **options)


@pytest.mark.parametrize("written", ["02", 2, "2x", " +2"])
def test_server_count_that_agrees_is_written_plainly(written, table):
    """What says the number of servers in an odd way says it plainly afterwards."""
    fixed = fix({**table(2, 2), "server_count": written})
    assert json.loads(fixed.after) == table(2, 2)
    assert fixed.offers == ()


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
    assert ("is stale" in message) is stale
    done = fix(broken, unsafe=True)
    assert json.loads(done.after) == table(2, 2)
    assert [repair.code for repair in done.repairs] == ["RT312"]
    assert done.offers == ()
    assert done.report.valid


def test_lost_server_is_not_hidden_by_other_repairs():
    """A trailing comma and numbers without quotes are repaired, and the count that misses a server stays as it is."""
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


COUNTED = {
    "rank_count": ("RT371", "v2.0", ("rank_count",), 3),
    "group_count": ("RT601", "legacy-lab", ("group_count",), "2"),
    "instance_count of a lab": ("RT602", "legacy-lab", ("group_list", 0, "instance_count"), "3"),
    "device_num": ("RT603", "legacy-lab", ("group_list", 0, "device_num"), "3"),
    "server_num": ("RT604", "legacy-lab", ("group_list", 0, "server_num"), "2"),
    "para_plane_nic_num": ("RT412", "legacy-lab", ("para_plane_nic_num",), "3"),
    "instance_count of a cloud": ("RT602", "legacy-cloud", ("group_list", 0, "instance_count"), "3"),
    "device_count": ("RT603", "legacy-cloud", ("group_list", 0, "device_count"), "3"),
}


@pytest.mark.parametrize("name", COUNTED)
def test_every_count_that_differs_is_only_offered(name):
    """What repeats the length of a list is the only witness of an entry that was lost, in whatever format."""
    code, form, pointer, wrong = COUNTED[name]
    levels = '[{"net_instance_id":"a","net_layer":0,"rank_addr_list":[]}]'
    options = (("level_list", levels), ("local_id", "0")), (("level_list", levels), ("local_id", "1"))
    devices = (
        Device(
            number,
            number,
            None if form == "v2.0" else f"10.0.0.{number}",
            options=options[number] if form == "v2.0" else (),
        )
        for number in range(2)
    )
    sound = json.loads(convert_cluster(Cluster((Server("a", tuple(devices)),)), form).text)
    broken = copy.deepcopy(sound)
    holder = broken
    for part in pointer[:-1]:
        holder = holder[part]
    holder[pointer[-1]] = wrong
    fixed = fix(broken)
    assert not fixed.changed
    assert [offer.code for offer in fixed.offers] == [code]
    assert json.loads(fix(broken, unsafe=True).after) == sound
