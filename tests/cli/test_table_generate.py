"""`tlaunch table generate`: every source, what is visible, and what is written where."""

import json
import os
import socket
import subprocess
import sys

import pytest

from launcher.rank_table import discover, load_cluster

CONF = "".join(f"address_{one}=192.168.{one}.1\nnetmask_{one}=255.255.0.0\n" for one in range(8))
NOTHING = {"ASCEND_RT_VISIBLE_DEVICES": None, "ASCEND_VISIBLE_DEVICES": None, "CUDA_VISIBLE_DEVICES": None}


@pytest.fixture(autouse=True)
def _nothing_hidden(monkeypatch):
    for name in NOTHING:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def generate(launcher):
    return lambda *arguments, **options: launcher.run("table", "generate", *arguments, **options)


def table_of(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def device_ids(table):
    return [[device["device_id"] for device in server["device"]] for server in table["server_list"]]


def test_conf_to_a_table_that_validates(launcher, generate, tmp_path):
    """A table from an hccn.conf is valid without a warning, has its addresses, and is readable by group at most."""
    (tmp_path / "hccn.conf").write_text(CONF)
    output = tmp_path / "table.json"
    done = generate("--hccn-conf", "hccn.conf", "--server-id", "10.0.0.1", "--output", "table.json")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "wrote table.json: v1.0, 1 server, 8 devices\n")
    assert output.stat().st_mode & 0o777 == 0o640 & ~_umask()
    cluster, warnings = load_cluster(output)
    assert warnings == ()
    assert [device.device_ip for device in cluster.servers[0].devices] == [f"192.168.{one}.1" for one in range(8)]
    assert launcher.run("validate", "--strict", "table.json").returncode == 0


def _umask():
    value = os.umask(0)
    os.umask(value)
    return value


def test_conf_from_standard_input(generate):
    """`-` reads the text from stdin, the table goes to stdout, everything else to stderr."""
    done = generate("--hccn-conf", "-", "--device-ids", "6,2", "--server-id", "node1", input=CONF)
    (server,) = table_of(done)["server_list"]
    assert [(one["device_id"], one["device_ip"], one["rank_id"]) for one in server["device"]] == [
        ("6", "192.168.6.1", "0"),
        ("2", "192.168.2.1", "1"),
    ]


def test_broken_conf_names_its_lines(generate):
    """Exit 2, nothing on stdout, the line on stderr."""
    done = generate("--hccn-conf", "-", input=CONF + "address_0=10.*.*.*\n")
    assert (done.returncode, done.stdout) == (2, "")
    assert "standard input: line 17: address_0" in done.stderr


def test_device_that_the_conf_does_not_list_has_no_address(generate):
    """A device without an address is in no line of hccn.conf: one that is asked for is taken without, with a warning."""
    done = generate("--hccn-conf", "-", "--device-ids", "9,1", "--server-id", "a", input=CONF)
    (server,) = table_of(done)["server_list"]
    assert server["device"] == [
        {"device_id": "9", "rank_id": "0"},
        {"device_id": "1", "device_ip": "192.168.1.1", "rank_id": "1"},
    ]
    assert "warning: no address is set for device 9," in done.stderr


def test_variables_of_this_machine_do_not_count_for_stdin(generate):
    """What comes from stdin is taken to be another server's."""
    done = generate("--hccn-conf", "-", "--server-id", "a", input=CONF, env={"ASCEND_VISIBLE_DEVICES": "1"})
    assert device_ids(table_of(done)) == [[str(one) for one in range(8)]]


def test_line_written_twice_is_a_note(generate):
    """It is marked as one, like all else that is said."""
    done = generate("--hccn-conf", "-", "--server-id", "a", input=CONF + "address_0=192.168.0.1\n")
    assert done.stderr.startswith("note: standard input, line 17: address_0 stands on line 1 already")


def test_closed_stdin_is_unreadable(launcher):
    """Started without a stdin, the command says so."""
    command = subprocess.list2cmdline(launcher.argv("table", "generate", "--hccn-conf", "-"))
    environment = launcher.environment({})
    done = subprocess.run(
        ["/bin/sh", "-c", f"{command} <&-"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: stdin is closed")


@pytest.mark.parametrize("name", ["127.0.1.1", "localhost"])
def test_loopback_names_are_warned_of(generate, name):
    """Such a table cannot be merged with others, which is said together with a name that can be used."""
    done = generate("--devices", "1", "--server-id", name)
    assert table_of(done)["server_list"][0]["server_id"] == name
    assert f'warning: server_id "{name}" means each server itself' in done.stderr
    assert "--server-id " in done.stderr.split("table: ")[1]


def test_programs_get_the_addresses_that_they_want(launcher, generate):
    """`same` gives each server its own address as container_ip and pod_ip, and `validate` then misses neither."""
    arguments = ("--servers", "10.0.0.1,10.0.0.2", "--devices", "8", "--container-ip", "same", "--pod-ip", "same")
    assert generate(*arguments, "-o", "table.json").returncode == 0
    for consumer in ("mindie", "msrun"):
        done = launcher.run("validate", "table.json", "--for", consumer)
        assert done.returncode == 0, done.stdout
        assert "container_ip" not in done.stdout + done.stderr
        assert "pod_ip" not in done.stdout + done.stderr
    done = generate("--devices", "1", "--server-id", "a", "--container-ip", "10.0.0.7", "--pod-ip", "fd00::7")
    (server,) = table_of(done)["server_list"]
    assert (server["container_ip"], server["pod_ip"]) == ("10.0.0.7", "fd00::7")
    done = generate("--devices", "1", "--server-id", "a", "--host-ip", "10.0.0.9", "--pod-ip", "same")
    assert table_of(done)["server_list"][0]["pod_ip"] == "10.0.0.9"


def test_servers_in_the_notation_of_slurm(generate):
    """A range in brackets names each of its servers."""
    table = table_of(generate("--servers", "node[1-3]", "--devices", "2"))
    assert [server["server_id"] for server in table["server_list"]] == ["node1", "node2", "node3"]


def test_own_address_is_the_server_id(generate):
    """Without --server-id the server is named by an address that is not a loopback's, or by its host name."""
    done = generate("--devices", "2")
    name = table_of(done)["server_list"][0]["server_id"]
    assert not name.startswith("127.")
    assert name == socket.gethostname() or discover.own_server_id() == name
    assert f'note: server_id: "{name}"' in done.stderr


def test_several_servers(generate):
    """--devices gives the counts in the order of --servers; ranks go through."""
    table = table_of(generate("--servers", "10.0.0.1,10.0.0.2,10.0.0.3", "--devices", "8,8,4"))
    assert table["server_count"] == "3"
    assert [len(ids) for ids in device_ids(table)] == [8, 8, 4]
    assert table["server_list"][2]["device"][3] == {"device_id": "3", "rank_id": "19"}
    assert [server["host_ip"] for server in table["server_list"]] == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]


def test_unusual_order_is_a_warning_and_sort_mends_it(generate):
    """Ranks in the order given, with a warning that --sort takes away."""
    arguments = ("--servers", "node2,node1", "--device-ids", "4-5")
    done = generate(*arguments)
    assert [server["server_id"] for server in table_of(done)["server_list"]] == ["node2", "node1"]
    assert "warning: " in done.stderr
    assert "--sort" in done.stderr
    done = generate(*arguments, "--sort")
    table = table_of(done)
    assert [server["server_id"] for server in table["server_list"]] == ["node1", "node2"]
    assert device_ids(table) == [["4", "5"], ["4", "5"]]
    assert "--sort" not in done.stderr


def test_what_is_generated_validates(launcher, generate):
    """Whatever the source, `validate` finds no error in what `generate` wrote."""
    for number, arguments in enumerate(
        (
            ("--devices", "8"),
            ("--devices", "4", "--device-ids", "4-7", "--host-ip", "10.0.0.9"),
            ("--servers", "10.0.0.1,10.0.0.2", "--devices", "8"),
            ("--servers", "fd00::1,fd00::2", "--devices", "2"),
            ("--servers", "node1,node2", "--devices", "64,2"),
        )
    ):
        name = f"{number}.json"
        assert generate(*arguments, "--output", name).returncode == 0
        done = launcher.run("validate", name)
        assert done.returncode == 0, done.stdout + done.stderr


def test_nothing_is_overwritten_unasked(generate, tmp_path):
    """A file that exists is kept without --force, and replaced with it."""
    output = tmp_path / "table.json"
    output.write_text("precious")
    done = generate("--devices", "1", "-o", "table.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--force" in done.stderr
    assert output.read_text() == "precious"
    assert generate("--devices", "1", "-o", "table.json", "--force").returncode == 0
    assert json.loads(output.read_text())["version"] == "1.0"
    assert [path.name for path in tmp_path.iterdir()] == ["table.json"]


def test_place_that_cannot_be_written(generate):
    """A directory that does not exist is an error with exit code 2."""
    done = generate("--devices", "1", "-o", "nowhere/table.json")
    assert done.returncode == 2
    assert "nowhere/table.json cannot be written: No such file or directory" in done.stderr


def test_name_that_hccl_refuses_is_a_warning(generate):
    """HCCL reads files whose names end in .json: another name is said while it can be changed."""
    done = generate("--devices", "1", "-o", "table.txt")
    assert done.returncode == 0
    assert "warning[RT406]" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--devices", "8", "--nvidia-smi"), "--nvidia-smi and --devices"),
        (("--hccn-conf", "x", "--hccn-tool"), "--hccn-conf and --hccn-tool"),
        (("--servers", "a,b"), "how many devices"),
        (("--servers", "a,b", "--devices", "8,8,8"), "3 counts, and there are 2 servers"),
        (("--servers", "a,b", "--hccn-tool"), "--hccn-tool speaks of this server alone"),
        (("--servers", "a,b", "--devices", "1", "--server-id", "c"), "--server-id speaks of this server alone"),
        (("--servers", "a,b", "--devices", "1", "--host-ip", "10.0.0.1"), "--host-ip speaks of this server alone"),
        (("--servers", "a,a", "--devices", "1"), '"a" twice'),
        (("--devices", "0"), "--devices 0"),
        (("--devices", "33", "--server-id", "a"), "device 32"),
        (("--devices", "3", "--device-ids", "0-3"), "--devices 3 and --device-ids with 4 ids differ"),
        (
            ("--servers", "a,b", "--devices", "1", "--pod-ip", "10.0.0.1"),
            "--pod-ip with an address speaks of one server",
        ),
        (("--servers", "10.0.0.1,b", "--devices", "1", "--pod-ip", "same"), '--pod-ip same: the server "b"'),
        (("--devices", "1", "--container-ip", "node1"), '--container-ip: "node1" is not an IP address'),
        (("--servers", "node[1-", "--devices", "1"), "--servers: a bracket is not closed"),
        (("--device-ids", "[0,8)"), '--device-ids: "[0,8)" stands in brackets'),
        (("--devices", "1", "--host-ip", "node1"), '"node1" is not an IP address'),
        (("--devices", "1", "--server-id", ""), "name is empty"),
    ],
)
def test_options_that_make_no_sense(generate, arguments, words):
    """Exit 2, nothing written, and a message with what was given."""
    done = generate(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert "hint: " in done.stderr


def test_visible_devices_of_a_plain_count(generate):
    """--devices takes the first of what is visible, keeps physical ids, and cannot take more."""
    environment = {"ASCEND_RT_VISIBLE_DEVICES": "4-6"}
    done = generate("--devices", "2", env=environment)
    assert device_ids(table_of(done)) == [["4", "5"]]
    assert "ASCEND_RT_VISIBLE_DEVICES: devices 4-5" in done.stderr
    done = generate("--devices", "4", env=environment)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--devices 4, but ASCEND_RT_VISIBLE_DEVICES lets 3 be seen" in done.stderr


def test_help_has_examples(generate):
    """The help shows how each source is used, which variables count, what is written, and how it ends."""
    text = generate("--help").stdout
    assert text.count("tlaunch table generate") >= 4
    assert all(
        words in " ".join(text.split()) for words in ("convert --to v1.2", "Exit codes: 0", "No variable counts")
    )


def test_help_loads_nothing_heavy(tmp_path):
    """The help of `tlaunch table` needs no reader of tables and no pydantic."""
    code = (
        "import sys\n"
        "from launcher.cli.main import main\n"
        "try: main(['table', '--help'])\n"
        "except SystemExit: print([name for name in sys.modules if name.startswith(('pydantic', 'launcher.rank_table'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
