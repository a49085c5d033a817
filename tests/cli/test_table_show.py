"""`tlaunch table show`: the tree, the coordinates, and what is refused."""

import json
import re

import pytest

from launcher.cli.commands.table.show import Placement, _as_text
from launcher.core.records import Cluster, Device, Server

BOXES = ("├", "│", "└", "─")


@pytest.fixture(name="shown")
def _shown(launcher, sample_tables):
    """Show a sample table."""

    def show(name, *arguments, **options):
        return launcher.call("table", "show", sample_tables / f"rank_table_{name}.json", *arguments, **options)

    return show


def super_pod_table(servers=2):
    """A v1.2 table with one super pod per server."""
    return {
        "version": "1.2",
        "server_count": str(servers),
        "server_list": [
            {
                "server_id": f"10.0.0.{server + 1}",
                "device": [
                    {
                        "device_id": str(device),
                        "super_device_id": str(device),
                        "device_ip": f"192.{device + 1}.0.{server + 1}",
                        "rank_id": str(server * 2 + device),
                    }
                    for device in range(2)
                ],
            }
            for server in range(servers)
        ],
        "super_pod_list": [
            {"super_pod_id": f"pod{server}", "server_list": [{"server_id": f"10.0.0.{server + 1}"}]}
            for server in range(servers)
        ],
        "status": "completed",
    }


def test_tree(launcher, snapshot):
    """Servers and devices; with a layout each rank's place and the ranks that it talks to, and groups that cross servers."""
    assert (
        launcher.scene(
            "table show rank_tables/rank_table_2pcs.json",
            "table show rank_tables/rank_table_8pcs.json --mp 2 --pp 2",
            "table show rank_tables/rank_table_16pcs.json --pp 2 --dp 8",
            "table show rank_tables/rank_table_16pcs.json --dp 16",
            "table show rank_tables/rank_table_4pcs.json --dp 3 --allow-idle-devices",
            code=0,
        )
        == snapshot
    )


def test_a_layout_that_does_not_fit_is_refused(launcher, snapshot):
    layouts = ("8pcs.json --dp 3", "8pcs.json --mp 16", "8pcs.json --pp 0", "4pcs.json --dp 3")
    assert launcher.refused(3, *(f"table show rank_tables/rank_table_{words}" for words in layouts)) == snapshot


def test_super_pods_hold_their_servers(launcher, snapshot):
    """Above them; their names are shown as they are, whatever they mean elsewhere, but cannot move the cursor."""
    table = super_pod_table()
    table["super_pod_list"][0]["super_pod_id"] = "[red]:smile:\x1b[2J"
    assert launcher.scene("table show -", code=0, input=json.dumps(table)) == snapshot


@pytest.mark.parametrize(("encoding", "boxes"), [("utf-8", True), ("ascii", False), ("latin-1", False)])
def test_tree_is_drawn_in_what_the_stream_can_show(shown, encoding, boxes):
    """Where the encoding has no box characters the tree is ASCII, with the same words."""
    done = shown("2pcs", env={"PYTHONIOENCODING": encoding})
    assert done.returncode == 0
    assert any(box in done.stdout for box in BOXES) is boxes
    assert done.stdout.isascii() is not boxes
    assert "rank 1  device 1" in done.stdout


def test_lines_are_whole_and_plain_in_a_pipe(launcher):
    """However narrow the terminal is said to be, no line is wrapped, cut or coloured."""
    table = super_pod_table()
    table["server_list"][0]["server_id"] = table["super_pod_list"][0]["server_list"][0]["server_id"] = "x" * 60
    env = {"COLUMNS": "20", "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    done = launcher.call("table", "show", "-", "--dp", 4, input=json.dumps(table), env=env)
    lines = done.stdout.splitlines()
    assert (len(lines), "x" * 60 in lines[2], "\x1b" in done.stdout) == (1 + 2 + 2 + 4 + 1, True, False)


def test_what_else_a_table_says_stands_at_the_end():
    """Short options are shown as written, long ones by their size, and a rank without a device as a host."""
    servers = (
        Server("a", (Device(-1, 0, "10.0.0.1", options=(("port", "0"),)),), host_ip="10.0.0.1"),
        Server(
            "b", (Device(3, 1, options=(("level_list", "x" * 5000), ("local_id", "3"))),), options=(("pod_ip", "p"),)
        ),
    )
    drawn = _as_text(Placement(Cluster(servers), None), "t")
    assert [line[4:] for line in drawn.splitlines()[1:]] == [
        "server a: rank 0  host_ip=10.0.0.1",
        "└── rank 0  host      10.0.0.1  port=0",
        "server b: rank 1  pod_ip=p",
        "└── rank 1  device 3            level_list=(5,000 characters)  local_id=3",
    ]


def test_problems_go_to_stderr(launcher, sample_tables):
    """No tree is drawn from a table that HCCL refuses, with 1 as `validate`; a warning does not mix with the tree."""
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


def test_json_has_everything(shown):
    """Servers, devices, coordinates and groups for programs."""
    told = json.loads(shown("8pcs", "--dp", 3, "--mp", 2, "--allow-idle-devices", "--json").stdout)
    assert (told["layout"], told["device_count"]) == ({"dp": 3, "mp": 2, "pp": 1}, 8)
    assert told["groups"]["mp"] == [[0, 1], [2, 3], [4, 5]]
    [server] = told["servers"]
    assert server["server_id"] == "10.0.40.11"
    assert server["devices"][3]["coordinates"] == {"pp": 0, "dp": 1, "mp": 1}
    assert server["devices"][3]["device_ip"] == "192.4.40.10"
    assert [device["idle"] for device in server["devices"]] == [False] * 6 + [True] * 2
    assert server["devices"][7]["coordinates"] is None
    plain = json.loads(shown("8pcs", "--json").stdout)
    assert (plain["layout"], plain["groups"]) == (None, None)


@pytest.mark.parametrize("command", [["show"], ["diff", "-"], ["convert", "--to", "hostfile"], ["merge"], ["fix"]])
@pytest.mark.parametrize("broken", [True, False])
def test_a_file_name_cannot_move_the_cursor(launcher, sample_tables, command, broken):
    """Whatever a file is called, no control character of its name reaches the terminal."""
    name, other = "esc\x1b[31m.json", '"remark": "x", "status"'
    text = (sample_tables / "rank_table_2pcs.json").read_text().replace('"status"', other)
    launcher.write(name, text[: len(text) // 2] if broken else text)
    done = launcher.call("table", *command, name, input=text)
    assert ("\\u001b" in done.stdout + done.stderr, "\x1b" in done.stdout + done.stderr) == (True, False)
