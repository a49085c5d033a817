"""Where the devices of a new table come from: what was asked for, else what the machine has, as far as it is visible."""

import os

import pytest

from launcher.cli.commands.table.sources import Wanted, gather
from launcher.core.errors import TlaunchError, UnreadableError, UsageError
from launcher.rank_table import discover
from launcher.rank_table import table_reader as read
from launcher.rank_table.devices import FoundDevice

CONF = "".join(f"address_{one}=192.168.{one}.1\nnetmask_{one}=255.255.0.0\n" for one in range(8))
TWO_GPUS = 'echo "GPU 0: A100 (UUID: GPU-1)"; echo "GPU 1: A100 (UUID: GPU-2)"'


@pytest.fixture
def machine(install, tmp_path, monkeypatch):
    """A machine that has the programs, device files and hccn.conf that a test gives it, and no others."""
    devices = tmp_path / "dev"
    devices.mkdir()
    monkeypatch.setattr(discover, "DEVICE_FILES", devices)
    monkeypatch.setattr(discover, "HCCN_TOOL", tmp_path / "no_driver")
    monkeypatch.setattr(discover, "HCCN_CONF", tmp_path / "hccn.conf")

    def furnish(*, davinci=0, conf=None, **scripts):
        for one in range(davinci):
            (devices / f"davinci{one}").touch()
        if conf is not None:
            discover.HCCN_CONF.write_text(conf)
        for name, script in scripts.items():
            install(name.replace("nvidia_smi", "nvidia-smi"), script)

    return furnish


def wanted(**options):
    nothing = dict.fromkeys(
        ("hccn_conf", "devices", "servers", "device_ids", "server_id", "host_ip", "container_ip", "pod_ip")
    )
    return Wanted(**{**nothing, "hccn_tool": False, "nvidia_smi": False, **options})


def ids(gathered):
    return [[device.device_id for device in machine.devices] for machine in gathered.machines]


def test_variables_of_this_machine_do_not_count_for_the_file_of_another(machine, tmp_path):
    machine(conf=CONF)
    copy = tmp_path / "copy.conf"
    copy.write_text(CONF)
    visible = {"ASCEND_RT_VISIBLE_DEVICES": "5,2-3"}
    assert ids(gather(wanted(hccn_conf=copy, server_id="a"), visible)) == [list(range(8))]
    own = gather(wanted(hccn_conf=discover.HCCN_CONF, server_id="a"), visible)
    assert (ids(own), own.notes) == ([[5, 2, 3]], (("ASCEND_RT_VISIBLE_DEVICES: devices 5,2-3 of 8", False),))


def test_confs_that_cannot_be_read(tmp_path, monkeypatch):
    monkeypatch.setattr(read, "PIPE_PATIENCE_S", 0)
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "", "none"):
        with pytest.raises(UnreadableError, match=name or None) as caught:
            gather(wanted(hccn_conf=tmp_path / name), {})
        assert "/etc/hccn.conf" in caught.value.hint or str(discover.HCCN_CONF) in caught.value.hint


def test_gpus_of_this_machine(machine):
    machine(nvidia_smi=TWO_GPUS)
    gathered = gather(wanted(nvidia_smi=True), {"ASCEND_VISIBLE_DEVICES": "7"})
    assert (ids(gathered), gathered.hardware) == ([[0, 1]], "gpu")
    for visible, seen in (("1", [1]), ("GPU-2,GPU-1", [1, 0])):
        assert ids(gather(wanted(nvidia_smi=True), {"CUDA_VISIBLE_DEVICES": visible})) == [seen]
    with pytest.raises(UsageError, match="CUDA_VISIBLE_DEVICES names device 2"):
        gather(wanted(nvidia_smi=True), {"CUDA_VISIBLE_DEVICES": "1,2"})
    # With --servers each server has the GPUs that nvidia-smi lists here, which is said.
    gathered = gather(wanted(nvidia_smi=True, servers="a,b"), {})
    assert ids(gathered) == [[0, 1], [0, 1]]
    assert [note.is_warning for note in gathered.notes] == [False]


def test_hccn_tool_is_asked_for_visible_devices_only(machine):
    machine(hccn_tool='echo "ipaddr:10.0.0.$2"')
    assert ids(gather(wanted(hccn_tool=True, device_ids="0-1"), {})) == [[0, 1]]
    with pytest.raises(UsageError, match="device"):
        gather(wanted(hccn_tool=True), {})
    machine(davinci=8, hccn_tool='echo "ipaddr:10.0.0.$2"')
    gathered = gather(wanted(hccn_tool=True), {"ASCEND_VISIBLE_DEVICES": "6-7"})
    assert gathered.machines[0].devices == (FoundDevice(6, "10.0.0.6"), FoundDevice(7, "10.0.0.7"))
    assert gathered.hardware is None
    assert ids(gather(wanted(hccn_tool=True, device_ids="1"), {"ASCEND_VISIBLE_DEVICES": "6-7"})) == [[1]]
    with pytest.raises(UsageError, match="--device-ids names device 8"):
        gather(wanted(hccn_tool=True, device_ids="7-8"), {})


def test_addresses_that_are_not_set_are_left_out(machine):
    machine(davinci=3, hccn_tool='[ $2 = 1 ] && echo ipaddr:10.0.0.1 || echo "ipaddr:-.-.-.-"')
    gathered = gather(wanted(hccn_tool=True, server_id="a"), {})
    assert gathered.machines[0].devices == (FoundDevice(0), FoundDevice(1, "10.0.0.1"), FoundDevice(2))
    (note,) = gathered.notes
    assert note.is_warning
    assert "devices 0,2" in note.text
    assert "`hccn_tool -i 0 -ip -s address" in note.text
    assert "910" not in note.text


def test_first_source_that_there_is(machine):
    machine(nvidia_smi=TWO_GPUS)
    assert gather(wanted(server_id="a"), {}).hardware == "gpu"
    for source, expected, furniture in (
        ("nvidia-smi", [0, 1], {}),
        (discover.HCCN_CONF, [5], {"conf": "address_5=10.0.0.5\n"}),
        ("hccn_tool", [0], {"davinci": 1, "hccn_tool": "echo ipaddr:10.0.0.1"}),
    ):
        machine(**furniture)
        gathered = gather(wanted(server_id="a"), {})
        assert (ids(gathered), gathered.notes) == ([expected], ((f"devices from {source}", False),))


def test_failing_tool_gives_way_to_the_file(machine):
    machine()
    with pytest.raises(UsageError, match="nvidia-smi") as caught:
        gather(wanted(), {})
    assert "--devices N" in caught.value.hint
    machine(davinci=1, hccn_tool="echo busy; exit 1")
    with pytest.raises(TlaunchError, match="busy"):
        gather(wanted(), {})
    machine(conf="address_0=10.0.0.5\n")
    gathered = gather(wanted(server_id="a"), {})
    assert gathered.machines[0].devices == (FoundDevice(0, "10.0.0.5"),)
    assert ("busy" in gathered.notes[0].text, gathered.notes[0].is_warning) == (True, True)
