"""`tlaunch table generate`: every source, what is visible, and what is written where."""

import json
import os
import socket
import subprocess
import sys

import pytest

from launcher.cli.table.sources import Wanted, gather
from launcher.core.errors import TlaunchError, UsageError
from launcher.rank_table import discover, load_cluster
from launcher.rank_table.generate import FoundDevice

CONF = "".join(f"address_{one}=192.168.{one}.1\nnetmask_{one}=255.255.0.0\n" for one in range(8))
TWO_GPUS = 'echo "GPU 0: A100 (UUID: GPU-1)"; echo "GPU 1: A100 (UUID: GPU-2)"'
NOTHING = {"ASCEND_RT_VISIBLE_DEVICES": None, "ASCEND_VISIBLE_DEVICES": None, "CUDA_VISIBLE_DEVICES": None}


@pytest.fixture(autouse=True)
def _nothing_hidden(monkeypatch):
    for name in NOTHING:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def generate(launcher):
    return lambda *arguments, **options: launcher.run("table", "generate", *arguments, **options)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine that has the programs, device files and hccn.conf that a test gives it, and no others."""
    programs, devices = tmp_path / "bin", tmp_path / "dev"
    programs.mkdir()
    devices.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr(discover, "DEVICE_FILES", devices)
    monkeypatch.setattr(discover, "HCCN_TOOL", tmp_path / "no_driver")
    monkeypatch.setattr(discover, "HCCN_CONF", tmp_path / "hccn.conf")

    def furnish(*, davinci=0, conf=None, **scripts):
        for one in range(davinci):
            (devices / f"davinci{one}").touch()
        if conf is not None:
            discover.HCCN_CONF.write_text(conf)
        for name, script in scripts.items():
            program = programs / name.replace("nvidia_smi", "nvidia-smi")
            program.write_text(f"#!/bin/sh\n{script}\n")
            program.chmod(0o755)

    return furnish


def wanted(**options):
    nothing = dict.fromkeys(("hccn_conf", "devices", "servers", "device_ids", "server_id", "host_ip"))
    return Wanted(**{**nothing, "hccn_tool": False, "nvidia_smi": False, **options})


def ids(gathered):
    return [[device.device_id for device in machine.devices] for machine in gathered.machines]


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
    assert (done.returncode, done.stdout, done.stderr) == (0, "table.json\n", "")
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
        (("--devices", "1", "--host-ip", "node1"), '"node1" is no IP address'),
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


def test_gpus_of_this_machine(machine):
    """nvidia-smi's GPUs, narrowed by CUDA_VISIBLE_DEVICES, are of hardware_type gpu."""
    machine(nvidia_smi=TWO_GPUS)
    gathered = gather(wanted(nvidia_smi=True), {"ASCEND_VISIBLE_DEVICES": "7"})
    assert (ids(gathered), gathered.hardware) == ([[0, 1]], "gpu")
    assert ids(gather(wanted(nvidia_smi=True), {"CUDA_VISIBLE_DEVICES": "1"})) == [[1]]
    with pytest.raises(UsageError, match="CUDA_VISIBLE_DEVICES names device 2, which this machine does not have"):
        gather(wanted(nvidia_smi=True), {"CUDA_VISIBLE_DEVICES": "1,2"})


def test_servers_like_this_one(machine):
    """With --servers each server has the GPUs that nvidia-smi lists here, which is said."""
    machine(nvidia_smi=TWO_GPUS)
    gathered = gather(wanted(nvidia_smi=True, servers="a,b"), {})
    assert ids(gathered) == [[0, 1], [0, 1]]
    assert "every server is taken to have the same 2" in gathered.notes[0]


def test_hccn_tool_is_asked_for_visible_devices_only(machine):
    """Devices come from /dev, narrowed by the variable or, before it, by --device-ids."""
    machine(davinci=8, hccn_tool='echo "ipaddr:10.0.0.$2"')
    gathered = gather(wanted(hccn_tool=True), {"ASCEND_VISIBLE_DEVICES": "6-7"})
    assert gathered.machines[0].devices == (FoundDevice(6, "10.0.0.6"), FoundDevice(7, "10.0.0.7"))
    assert gathered.hardware is None
    assert ids(gather(wanted(hccn_tool=True, device_ids="1"), {"ASCEND_VISIBLE_DEVICES": "6-7"})) == [[1]]
    with pytest.raises(UsageError, match="--device-ids names device 8"):
        gather(wanted(hccn_tool=True, device_ids="7-8"), {})


def test_devices_that_cannot_be_seen_are_named_by_hand(machine):
    """Where /dev shows none, --device-ids says which there are, and without it there is nothing to ask for."""
    machine(hccn_tool='echo "ipaddr:10.0.0.$2"')
    assert ids(gather(wanted(hccn_tool=True, device_ids="0-1"), {})) == [[0, 1]]
    with pytest.raises(UsageError, match="no device is known"):
        gather(wanted(hccn_tool=True), {})


def test_addresses_that_are_not_set_are_left_out(machine):
    """Every device without an address is named, with the command that sets one."""
    machine(davinci=3, hccn_tool='[ $2 = 1 ] && echo ipaddr:10.0.0.1 || echo "ipaddr:-.-.-.-"')
    gathered = gather(wanted(hccn_tool=True, server_id="a"), {})
    assert gathered.machines[0].devices == (FoundDevice(0), FoundDevice(1, "10.0.0.1"), FoundDevice(2))
    (note,) = gathered.notes
    assert note.startswith("warning: no address is set for devices 0,2")
    assert "`hccn_tool -i 0 -ip -s address" in note


def test_first_source_that_there_is(machine):
    """Without a source, nvidia-smi gives way to hccn.conf, and that to hccn_tool; which one was used is said."""
    machine(nvidia_smi=TWO_GPUS)
    gathered = gather(wanted(server_id="a"), {})
    assert (gathered.hardware, gathered.notes) == ("gpu", ("note: devices from nvidia-smi",))
    machine(conf="address_5=10.0.0.5\n")
    gathered = gather(wanted(server_id="a"), {})
    assert (ids(gathered), gathered.notes) == ([[5]], (f"note: devices from {discover.HCCN_CONF}",))
    machine(davinci=1, hccn_tool="echo ipaddr:10.0.0.1")
    gathered = gather(wanted(server_id="a"), {})
    assert (ids(gathered), gathered.notes) == ([[0]], ("note: devices from hccn_tool",))


def test_failing_tool_gives_way_to_the_file(machine):
    """A tool that fails is named, and the file used; without a file its error is the answer."""
    machine(davinci=1, hccn_tool="echo busy; exit 1")
    with pytest.raises(TlaunchError, match="busy"):
        gather(wanted(), {})
    machine(conf="address_0=10.0.0.5\n")
    gathered = gather(wanted(server_id="a"), {})
    assert gathered.machines[0].devices == (FoundDevice(0, "10.0.0.5"),)
    assert "busy" in gathered.notes[0]


def test_machine_without_any_source(machine):
    """There is nothing to ask: the error says what was looked for, and what to give instead."""
    machine()
    with pytest.raises(UsageError, match="nvidia-smi") as caught:
        gather(wanted(), {})
    assert "--devices N" in caught.value.hint


def test_help_has_examples(generate):
    """The help shows how each source is used."""
    text = generate("--help").stdout
    assert text.count("tlaunch table generate") >= 4


def test_help_loads_nothing_heavy(tmp_path):
    """The command's own help needs no reader of tables and no pydantic."""
    code = (
        "import sys\n"
        "from launcher.cli.main import main\n"
        "try: main(['table', 'generate', '--help'])\n"
        "except SystemExit: print([name for name in sys.modules if name.startswith(('pydantic', 'launcher.rank_table'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
