"""`tlaunch table show`: the tree, the coordinates, and what is refused."""

import json
import re
import subprocess

import pytest

from launcher.cli.commands.table.show import Placement, _as_text
from launcher.core.records import Cluster, Device, Server

BOXES = ("├", "│", "└", "─")


@pytest.fixture(name="shown")
def _shown(launcher, sample_tables):
    """Show a sample table; the finished process."""

    def show(name, *arguments, **options):
        return launcher.run("table", "show", sample_tables / f"rank_table_{name}.json", *arguments, **options)

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


def test_tree_has_servers_and_devices(shown):
    """Each server is a branch, each device a leaf with its rank and address."""
    lines = shown("16pcs").stdout.splitlines()
    assert lines[0].endswith("v1.0 table, 2 servers, 16 devices")
    assert lines[1] == "├── server 10.0.40.11: ranks 0-7"
    assert lines[2] == "│   ├── rank 0   device 0  192.1.40.10"
    assert lines[-1] == "    └── rank 15  device 7  192.4.40.13"
    assert len(lines) == 1 + 2 + 16


def test_layout_gives_coordinates_and_groups(shown):
    """With axes each rank has its place and the ranks that it talks to; a missing dp is derived."""
    done = shown("8pcs", "--mp", 2, "--pp", 2)
    lines = done.stdout.splitlines()
    assert lines[0].endswith("dp=2 mp=2 pp=2")
    [rank_5] = [line for line in lines if "rank 5 " in line]
    assert rank_5.split("192.2.40.11")[1].split() == [
        "pp=1",
        "dp=0",
        "mp=1",
        "mp",
        "{4,5}",
        "dp",
        "{5,7}",
        "pp",
        "{1,5}",
    ]
    assert lines[-3:] == [
        "mp: 4 groups of 2 ranks, 0 across servers",
        "dp: 4 groups of 2 ranks, 0 across servers",
        "pp: 4 groups of 2 ranks, 0 across servers",
    ]


def test_groups_that_leave_their_server_are_counted(shown):
    """Two stages on two servers: every pipeline crosses the network."""
    assert "pp: 8 groups of 2 ranks, 8 across servers" in shown("16pcs", "--pp", 2).stdout


def test_a_layout_that_does_not_fit_is_refused(shown):
    """As `run` does: exit code 3, the numbers, and nothing on stdout."""
    for arguments in (["--dp", 3], ["--mp", 16], ["--pp", 0]):
        done = shown("8pcs", *arguments)
        assert (done.returncode, done.stdout) == (3, ""), arguments
    assert "1 device of 4 idle" in shown("4pcs", "--dp", 3).stderr


def test_idle_devices_are_marked(shown):
    """A layout that leaves a device unused, when that is allowed, marks it instead of giving it a place."""
    done = shown("4pcs", "--dp", 3, "--allow-idle-devices")
    assert done.returncode == 0
    assert "1 idle" in done.stdout.splitlines()[0]
    [idle] = [line for line in done.stdout.splitlines() if "rank 3" in line]
    assert idle.endswith("idle")
    assert "dp=" not in idle


def test_long_groups_are_shortened(shown):
    """A group of 16 ranks shows its first two and its last."""
    assert "dp {0,1,...,15}" in shown("16pcs", "--dp", 16).stdout


def test_super_pods_hold_their_servers(launcher):
    """A table with super pods has them above the servers, and its devices have their numbers there."""
    done = launcher.run("table", "show", "-", input=json.dumps(super_pod_table()))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1] == "├── super pod pod0: 1 server, 2 devices"
    assert lines[2] == "│   └── server 10.0.0.1: ranks 0-1"
    assert lines[3].endswith("rank 0  device 0  192.1.0.1  super device 0")
    assert lines[5] == "└── super pod pod1: 1 server, 2 devices"


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
    done = launcher.run(
        *["table", "show", "-", "--dp", 4],
        input=json.dumps(table),
        env={"COLUMNS": "20", "FORCE_COLOR": "1", "TERM": "xterm-256color"},
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 1 + 2 + 2 + 4 + 1
    assert "x" * 60 in lines[2]
    assert "\x1b" not in done.stdout


def test_markup_in_names_is_text(launcher):
    """Names from a table are shown as they are, whatever they mean elsewhere, but cannot move the cursor."""
    table = super_pod_table()
    table["super_pod_list"][0]["super_pod_id"] = "[red]:smile:\x1b[2J"
    done = launcher.run("table", "show", "-", input=json.dumps(table))
    assert done.returncode == 0, done.stderr
    assert "super pod [red]:smile:\\u001b[2J: 1 server" in done.stdout


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


def test_an_invalid_table_shows_its_problems(launcher, sample_tables):
    """No tree is drawn from a table that HCCL refuses: its problems go to stderr, exit code 1 as `validate`."""
    text = (sample_tables / "rank_table_16pcs.json").read_text().replace("10.0.40.12", "10.0.40.11")
    done = launcher.run("table", "show", "-", input=text)
    assert (done.returncode, done.stdout) == (1, "")
    assert "error[RT314]" in done.stderr


def test_warnings_go_to_stderr(launcher, sample_tables):
    """What is merely worth a look does not mix with the tree."""
    text = (sample_tables / "rank_table_2pcs.json").read_text().replace('"status"', '"remark": "x", "status"')
    done = launcher.run("table", "show", "-", input=text)
    assert done.returncode == 0
    assert done.stderr.startswith("-:14:3: warning[RT401]: ")
    assert "warning" not in done.stdout


def test_an_unreadable_file_ends_with_2(launcher):
    """A file that is not there is no invalid table."""
    done = launcher.run("table", "show", "missing.json")
    assert done.returncode == 2
    assert "missing.json does not exist" in done.stderr


def test_json_has_everything(shown):
    """Servers, devices, coordinates and groups for programs."""
    told = json.loads(shown("8pcs", "--dp", 3, "--mp", 2, "--allow-idle-devices", "--json").stdout)
    assert told["layout"] == {"dp": 3, "mp": 2, "pp": 1}
    assert told["device_count"] == 8
    assert told["groups"]["mp"] == [[0, 1], [2, 3], [4, 5]]
    [server] = told["servers"]
    assert server["server_id"] == "10.0.40.11"
    assert server["devices"][3]["coordinates"] == {"pp": 0, "dp": 1, "mp": 1}
    assert server["devices"][3]["device_ip"] == "192.4.40.10"
    assert [device["idle"] for device in server["devices"]] == [False] * 6 + [True] * 2
    assert server["devices"][7]["coordinates"] is None
    plain = json.loads(shown("8pcs", "--json").stdout)
    assert (plain["layout"], plain["groups"]) == (None, None)


def test_a_reader_that_leaves_is_no_trouble(launcher, sample_tables):
    """`| head` ends quietly."""
    command = launcher.argv("table", "show", sample_tables / "rank_table_16pcs.json")
    done = subprocess.run(
        ["sh", "-c", '"$@" | true', "sh", *command], cwd=launcher.directory, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""


def test_chip_decides_what_is_shown(launcher, sample_tables):
    """A table without addresses can be shown where nobody needs them, as it can be checked."""
    text = re.sub(r'"device_ip": "[^"]*", ', "", (sample_tables / "rank_table_16pcs.json").read_text())
    assert launcher.run("table", "show", "-", input=text).returncode == 1
    done = launcher.run("table", "show", "--chip", "none", "-", input=text)
    assert done.returncode == 0
    assert "warning[RT333]" in done.stderr


@pytest.mark.parametrize("command", [["show"], ["diff", "-"], ["convert", "--to", "hostfile"], ["merge"], ["fix"]])
@pytest.mark.parametrize("broken", [True, False])
def test_a_file_name_cannot_move_the_cursor(launcher, sample_tables, command, broken):
    """Whatever a file is called, no control character of its name reaches the terminal."""
    name, other = "esc\x1b[31m.json", '"remark": "x", "status"'
    text = (sample_tables / "rank_table_2pcs.json").read_text().replace('"status"', other)
    (launcher.directory / name).write_text(text[: len(text) // 2] if broken else text)
    done = launcher.run("table", *command, name, input=text)
    assert "\\u001b" in done.stdout + done.stderr
    assert "\x1b" not in done.stdout + done.stderr
