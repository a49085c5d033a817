"""`tlaunch table show`: the tree, the coordinates, and what is refused."""

import json
import re

import pytest

from launcher.cli.commands.table.show import Placement, _as_text
from launcher.core.records import Cluster, Device, Server
from tests.rank_table.tables import make_pods

from .transcript import typed_lines

BOXES = ("├", "│", "└", "─")


SHOWN = """
2pcs.json; 8pcs.json --mp 2 --pp 2; 16pcs.json --pp 2 --dp 8; 16pcs.json --dp 16; 4pcs.json --dp 3 --allow-idle-devices
4pcs.json --mp 3 --allow-idle-devices --json; 2pcs.json --json
"""
UNFIT = "8pcs.json --dp 3; 8pcs.json --mp 16; 8pcs.json --pp 0; 4pcs.json --dp 3"


def samples(typed):
    return [f"table show rank_tables/rank_table_{each}" for each in typed_lines(typed)]


def test_tree(launcher, snapshot):
    assert launcher.scene(*samples(SHOWN), code=0) == snapshot


def test_a_layout_that_does_not_fit_is_refused(launcher, snapshot):
    assert launcher.refused(3, *samples(UNFIT)) == snapshot


def test_super_pods_hold_their_servers(launcher, snapshot):
    table = make_pods(2, 1, 2)
    table["super_pod_list"][0]["super_pod_id"] = "[red]:smile:\x1b[2J"
    assert launcher.scene("table show -", code=0, input=json.dumps(table)) == snapshot


@pytest.mark.parametrize(("encoding", "boxes"), [("utf-8", True), ("ascii", False), ("latin-1", False)])
def test_tree_is_drawn_in_what_the_stream_can_show(launcher, encoding, boxes):
    done = launcher.call(*samples("2pcs.json")[0].split(), env={"PYTHONIOENCODING": encoding}, code=0)
    assert any(box in done.stdout for box in BOXES) is boxes
    assert done.stdout.isascii() is not boxes
    assert "rank 1  device 1" in done.stdout


def test_lines_are_whole_and_plain_in_a_pipe(launcher):
    table = make_pods(2, 1, 2)
    table["server_list"][0]["server_id"] = table["super_pod_list"][0]["server_list"][0]["server_id"] = "x" * 60
    env = {"COLUMNS": "20", "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    done = launcher.call("table", "show", "-", "--dp", 4, input=json.dumps(table), env=env)
    lines = done.stdout.splitlines()
    assert (len(lines), "x" * 60 in lines[2], "\x1b" in done.stdout) == (1 + 2 + 2 + 4 + 1, True, False)


def test_what_else_a_table_says_stands_at_the_end():
    second = Device(3, 1, options=(("level_list", "x" * 5000), ("local_id", "3")))
    servers = (
        Server("a", (Device(-1, 0, "10.0.0.1", options=(("port", "0"),)),), host_ip="10.0.0.1"),
        Server("b", (second,), options=(("pod_ip", "p"),)),
    )
    drawn = _as_text(Placement(Cluster(servers), None), "t")
    assert [line[4:] for line in drawn.splitlines()[1:]] == [
        "server a: rank 0  host_ip=10.0.0.1",
        "└── rank 0  host      10.0.0.1  port=0",
        "server b: rank 1  pod_ip=p",
        "└── rank 1  device 3            level_list=(5,000 characters)  local_id=3",
    ]


def test_problems_go_to_stderr(launcher, sample_tables):
    text = (sample_tables / "rank_table_16pcs.json").read_text()
    done = launcher.call("table", "show", "-", input=text.replace("10.0.40.12", "10.0.40.11"))
    assert (done.returncode, done.stdout, "error[RT314]" in done.stderr) == (1, "", True)
    done = launcher.call("table", "show", "-", input=text.replace('"status"', '"remark": "x", "status"'))
    assert (done.returncode, "warning[RT401]: " in done.stderr, "warning" in done.stdout) == (0, True, False)
    assert launcher.call("table", "show", "missing.json").returncode == 2
    # A table without addresses can be shown where nobody needs them, as it can be checked.
    bare = re.sub(r'"device_ip": "[^"]*", ', "", text)
    assert launcher.call("table", "show", "-", input=bare).returncode == 1
    done = launcher.call("table", "show", "--chip", "none", "-", input=bare)
    assert (done.returncode, "warning[RT333]" in done.stderr) == (0, True)


@pytest.mark.parametrize("broken", [True, False])
def test_a_file_name_cannot_move_the_cursor(launcher, sample_tables, broken):
    name, other = "esc\x1b[31m.json", '"remark": "x", "status"'
    text = (sample_tables / "rank_table_2pcs.json").read_text().replace('"status"', other)
    launcher.write(name, text[: len(text) // 2] if broken else text)
    for command in ("show", "diff -", "convert --to hostfile", "merge", "fix"):
        done = launcher.call("table", *command.split(), name, input=text)
        said = done.stdout + done.stderr
        assert ("\\u001b" in said, "\x1b" in said) == (True, False), command
