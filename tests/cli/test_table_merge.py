"""`tlaunch table merge` as a person types it."""

import json

import pytest

from launcher.core.records import Cluster, Device, Server
from launcher.rank_table import load_cluster, render_table


@pytest.fixture
def tables(launcher):
    def write(*numbers):
        for number in numbers:
            devices = (Device(0, 0, f"192.0.0.{number}"), Device(1, 1, f"192.1.0.{number}"))
            launcher.write(f"host{number}.json", render_table(Cluster((Server(f"10.0.0.{number}", devices),))))
        return [f"host{number}.json" for number in numbers]

    return write


@pytest.fixture
def bare(launcher):
    """Two tables without addresses, a.json and b.json: no cluster for HCCL, and one of GPUs."""
    for name in "ab":
        launcher.write(f"{name}.json", render_table(Cluster((Server(name, (Device(0, 0),)),))))


def test_servers_are_joined(launcher, tables, snapshot):
    tables(1, 2)
    command = "table merge host1.json host2.json --output all.json"
    assert launcher.scene(command, code=0) == snapshot(name="written")
    cluster, warnings = load_cluster(launcher.directory / "all.json")
    assert warnings == ()
    assert [server.server_id for server in cluster.servers] == ["10.0.0.1", "10.0.0.2"]
    assert launcher.refused(2, command) == snapshot(name="exists")


def test_what_is_noted(launcher, tables, snapshot):
    ordered = launcher.call("table", "merge", *tables(2, 10))
    assert [server["server_id"] for server in json.loads(ordered.stdout)["server_list"]] == ["10.0.0.2", "10.0.0.10"]
    assert "note" not in launcher.call("table", "merge", *tables(1, 2)).stderr
    for name, key in (("host1.json", "job"), ("host2.json", "rack")):
        path = launcher.directory / name
        path.write_text(path.read_text().replace("{", f'{{"my": "", "{key}": "x",', 1))
    unread = launcher.call("table", "merge", "host1.json", "host2.json")
    assert [each.stderr.splitlines() for each in (ordered, unread)] == snapshot


def test_faulty_tables_show_all_their_problems(launcher, tables):
    broken = [launcher.write(f"broken{number}.json", "{") for number in (1, 2)]
    done = launcher.call("table", "merge", *tables(1), *broken)
    assert (done.returncode, done.stdout) == (1, "")
    assert all(f"{path.name}:1:" in done.stderr for path in broken)


def test_what_is_refused(launcher, tables, bare, snapshot):
    tables(1)
    launcher.write("copy.json", (launcher.directory / "host1.json").read_text())
    launcher.write("local.json", render_table(Cluster((Server("127.0.1.1", (Device(0, 0, "192.9.9.9"),)),))))
    whole = ("table merge host1.json copy.json", "table merge a.json b.json", "table merge host1.json local.json")
    assert launcher.refused(3, *whole) == snapshot(name="3")
    wrong = ("table merge --chip abacus a.json b.json", "table merge host1.json none.json", "table merge")
    assert launcher.refused(2, *wrong) == snapshot(name="2")


def test_tables_for_gpus_are_marked_and_valid_for_everybody(launcher, bare, snapshot):
    """With --chip none the result says that it needs no addresses, so HCCL's opinion is not asked, here or later."""
    assert launcher.scene("table merge --chip none a.json b.json -o both.json", code=0) == snapshot
    assert launcher.call("validate", "both.json").returncode == 0
