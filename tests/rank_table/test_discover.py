"""What this machine says: real programs on PATH that print what the drivers' tools print."""

import ipaddress
import socket

import pytest

from launcher.core.errors import TlaunchError, UnreadableError
from launcher.rank_table import discover
from launcher.rank_table.devices import FoundDevice
from launcher.rank_table.discover import ask_hccn_tool, ask_nvidia_smi, davinci_ids, own_server_id

HANGS = "exec /bin/sleep 600"  # never answers; the test ends it
HANGS_WITH_A_CHILD = "/bin/sleep 600 & wait"


@pytest.fixture(autouse=True)
def _no_driver(tmp_path, monkeypatch):
    monkeypatch.setattr(discover, "HCCN_TOOL", tmp_path / "no_driver")


def test_addresses_come_from_hccn_tool(install):
    """Each device is asked for by its id, and gets the address behind the label."""
    install("hccn_tool", '[ "$1 $3 $4" = "-i -ip -g" ] && echo "ipaddr:192.168.$2.10" && echo "netmask:255.255.0.0"')
    assert ask_hccn_tool([4, 7]) == (FoundDevice(4, "192.168.4.10"), FoundDevice(7, "192.168.7.10"))


@pytest.mark.parametrize("label", ["ipaddr:", "ipaddr: ", "IPv6 addr : ", "ipv6 address:"])
@pytest.mark.parametrize(
    "ipv4", ["echo ipaddr:-.-.-.-", "echo ipaddr:0.0.0.0", "echo no IPv4", "echo ipaddr:", "exit 1"]
)
def test_ipv6_is_asked_for_where_there_is_no_ipv4(install, label, ipv4):
    """An IPv6 address is not cut at its colons, and loses the length of its prefix."""
    install("hccn_tool", f'case "$*" in *-inet6*) echo "{label}fd00:1::a:$2/64";; *) {ipv4};; esac')
    assert ask_hccn_tool([3]) == (FoundDevice(3, "fd00:1::a:3"),)


@pytest.mark.parametrize("ipv6", ["echo ipaddr:-.-.-.-", "exit 3", "echo unknown option"])
def test_unset_address_is_none(install, ipv6):
    """An address that is not set is never made up, whatever the answer about IPv6 is."""
    install("hccn_tool", f'case "$*" in *-inet6*) {ipv6};; *) echo ipaddr:-.-.-.-; echo netmask:-.-.-.-;; esac')
    assert ask_hccn_tool([0]) == (FoundDevice(0),)


def test_failing_hccn_tool_is_quoted(install):
    """Its exit code and its first words are in the message."""
    install("hccn_tool", 'echo "hccn_tool is busy, please try again" >&2; exit 17')
    with pytest.raises(TlaunchError, match=r"-i 5 -ip -g` exited with 17: hccn_tool is busy, please try again\n"):
        ask_hccn_tool([5])


@pytest.mark.parametrize(("said", "shown"), [("hello", "exited with 0: hello"), ("ipaddr:10.*", '"10.*"')])
def test_answers_that_are_no_address_are_refused(install, said, shown):
    """Neither a line without an address nor a placeholder becomes a device_ip."""
    install("hccn_tool", f'echo "{said}"')
    with pytest.raises(TlaunchError) as caught:
        ask_hccn_tool([0])
    assert shown in caught.value.message


@pytest.mark.parametrize("script", [HANGS, HANGS_WITH_A_CHILD])
def test_hanging_program_is_given_up_and_ended(install, script):
    """A driver that never answers costs the patience that was set, and leaves no process."""
    install("hccn_tool", script)
    with pytest.raises(TlaunchError, match=r"did not exit within 0\.2 s"):
        ask_hccn_tool([0], patience_s=0.2)


@pytest.mark.parametrize("to", ["", " >&2"])
def test_a_program_that_prints_without_end_is_ended(install, to):
    """More than an answer can have is refused, whether it comes on stdout or on stderr."""
    install("nvidia-smi", f"while :; do echo {'GPU' * 10_000}{to}; done")
    with pytest.raises(TlaunchError, match="`nvidia-smi -L` printed more than 1,048,576 bytes and was killed"):
        ask_nvidia_smi()


def test_an_answer_longer_than_a_pipe_is_whole(install):
    """What a program says in one go, and more than a pipe holds, is read to its end."""
    install("nvidia-smi", f"echo {'x' * 100_000}; echo {'y' * 100_000} >&2; echo 'GPU 7: last'")
    assert ask_nvidia_smi() == (FoundDevice(7),)


def test_an_answer_counts_although_a_child_lives_on(install):
    """A program that has ended has said all; what it left behind with its stdout is not waited for."""
    install("hccn_tool", "/bin/sleep 600 & echo ipaddr:10.0.0.1")
    assert ask_hccn_tool([0], patience_s=10) == (FoundDevice(0, "10.0.0.1"),)


def test_missing_programs_say_what_to_do(install):
    """Without the tools, the error says so and names another way."""
    for ask, name in ((lambda: ask_hccn_tool([0]), "hccn_tool"), (ask_nvidia_smi, "nvidia-smi")):
        with pytest.raises(UnreadableError, match=name) as caught:
            ask()
        assert "--" in caught.value.hint


def test_program_that_cannot_be_started(install, tmp_path):
    """A file that is executable and no program is an error of its own."""
    install("nvidia-smi", "")
    (tmp_path / "bin" / "nvidia-smi").write_bytes(b"\x00\x01")
    with pytest.raises(UnreadableError, match="nvidia-smi cannot be started: Exec format error"):
        ask_nvidia_smi()


def test_gpus_are_counted_and_their_parts_are_not(install):
    """Two GPUs, one of them cut into two MIG parts, are two devices with UUIDs and without addresses."""
    install(
        "nvidia-smi",
        """[ "$1" = -L ] || exit 2
echo "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)"
echo "  MIG 3g.20gb     Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)"
echo "  MIG 3g.20gb     Device  1: (UUID: MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb)"
echo "GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-6d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)\"""",
    )
    end = "d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77"
    assert ask_nvidia_smi() == (FoundDevice(0, uuid=f"GPU-5{end}"), FoundDevice(1, uuid=f"GPU-6{end}"))


def test_gpus_are_found_where_no_uuid_is_shown(install):
    """A line without a UUID, and a name with parentheses, is a GPU all the same."""
    install("nvidia-smi", 'echo "GPU 0: Tesla (old)"; echo "GPU 1: H (UUID: x) (UUID: GPU-1)"')
    assert ask_nvidia_smi() == (FoundDevice(0), FoundDevice(1, uuid="GPU-1"))


@pytest.mark.parametrize("script", ["echo No devices found.", "echo no driver; exit 9", "echo 'GPU 0: x'; exit 9"])
def test_nvidia_smi_without_gpus_is_an_error(install, script):
    """No GPU, or a driver that fails, is an error with the program's own words."""
    install("nvidia-smi", script)
    with pytest.raises(TlaunchError, match=r"`nvidia-smi -L` exited with [09]: "):
        ask_nvidia_smi()


def test_device_files_are_counted_by_their_numbers(tmp_path, monkeypatch):
    """davinci10 comes after davinci2, and the manager is no device."""
    for name in ("davinci10", "davinci2", "davinci_manager", "davinci0x", "null"):
        (tmp_path / name).touch()
    monkeypatch.setattr(discover, "DEVICE_FILES", tmp_path)
    assert davinci_ids() == (2, 10)


def test_own_name_is_never_a_loopback_address():
    """It is an address that other servers could reach, or the host name."""
    name = own_server_id()
    if name != socket.gethostname():
        address = ipaddress.ip_address(name)
        assert not address.is_loopback
        assert not address.is_unspecified
