"""What this machine says: real programs on PATH that print what the drivers' tools print."""

import ipaddress
import socket

import pytest

from launcher.core.errors import TlaunchError, UnreadableError
from launcher.rank_table import discover
from launcher.rank_table.devices import FoundDevice
from launcher.rank_table.discover import ask_hccn_tool, ask_nvidia_smi, davinci_ids, own_server_id


@pytest.fixture(autouse=True)
def _no_driver(tmp_path, monkeypatch):
    monkeypatch.setattr(discover, "HCCN_TOOL", tmp_path / "no_driver")


UUIDS = [f"GPU-{first}d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77" for first in (5, 6)]
SAID = {
    "each device by its id": (
        '[ "$1 $3 $4" = "-i -ip -g" ] && echo "ipaddr:192.168.$2.10" && echo "netmask:255.255.0.0"',
        [FoundDevice(4, "192.168.4.10"), FoundDevice(7, "192.168.7.10")],
    ),
    "a child lives on with its stdout": (
        "/bin/sleep 600 & echo ipaddr:10.0.0.1", [FoundDevice(4, "10.0.0.1"), FoundDevice(7, "10.0.0.1")],
    ),
    **{f"no IPv6 either: {ipv6}": (
        f'case "$*" in *-inet6*) {ipv6};; *) echo ipaddr:-.-.-.-; echo netmask:-.-.-.-;; esac',
        [FoundDevice(4), FoundDevice(7)],
    ) for ipv6 in ("echo ipaddr:-.-.-.-", "exit 3", "echo unknown option")},
    # An IPv6 address is not cut at its colons, and loses the length of its prefix.
    **{f"IPv6 for want of IPv4: {ipv4}, {label}": (
        f'case "$*" in *-inet6*) echo "{label}fd00:1::a:$2/64";; *) {ipv4};; esac',
        [FoundDevice(4, "fd00:1::a:4"), FoundDevice(7, "fd00:1::a:7")],
    ) for label in ("ipaddr:", "ipaddr: ", "IPv6 addr : ", "ipv6 address:")
      for ipv4 in ("echo ipaddr:-.-.-.-", "echo ipaddr:0.0.0.0", "echo no IPv4", "echo ipaddr:", "exit 1")},
}  # fmt: skip


@pytest.mark.parametrize("case", SAID)
def test_addresses_come_from_hccn_tool(install, case):
    script, found = SAID[case]
    install("hccn_tool", script)
    assert ask_hccn_tool([4, 7], patience_s=10) == tuple(found)


@pytest.mark.parametrize(("script", "found"), [
    (f"echo {'x' * 100_000}; echo {'y' * 100_000} >&2; echo 'GPU 7: last'", [FoundDevice(7)]),
    (f"""[ "$1" = -L ] || exit 2
echo "GPU 0: NVIDIA A100-SXM4-40GB (UUID: {UUIDS[0]})"
echo "  MIG 3g.20gb     Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)"
echo "  MIG 3g.20gb     Device  1: (UUID: MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb)"
echo "GPU 1: NVIDIA A100-SXM4-40GB (UUID: {UUIDS[1]})\"""", [FoundDevice(0, uuid=UUIDS[0]), FoundDevice(1, uuid=UUIDS[1])]),
    ('echo "GPU 0: Tesla (old)"; echo "GPU 1: H (UUID: x) (UUID: GPU-1)"', [FoundDevice(0), FoundDevice(1, uuid="GPU-1")]),
], ids=["more than a pipe holds", "parts of a GPU do not count", "no UUID and a name with parentheses"])  # fmt: skip
def test_gpus_come_from_nvidia_smi(install, script, found):
    install("nvidia-smi", script)
    assert ask_nvidia_smi() == tuple(found)


FAILURES = [
    *(("nvidia-smi", script, r"`nvidia-smi -L` exited with [09]: ")
      for script in ("echo No devices found.", "echo no driver; exit 9", "echo 'GPU 0: x'; exit 9")),
    ("hccn_tool", 'echo "hccn_tool is busy, please try again" >&2; exit 17',
     r"-i 5 -ip -g` exited with 17: hccn_tool is busy, please try again\n"),
    ("hccn_tool", 'echo "hello"', "exited with 0: hello"),
    ("hccn_tool", 'echo "ipaddr:10.*"', r'"10\.\*"'),
    *(("nvidia-smi", f"while :; do echo {'GPU' * 10_000}{to}; done",
       "`nvidia-smi -L` printed more than 1,048,576 bytes and was killed") for to in ("", " >&2")),
]  # fmt: skip


@pytest.mark.parametrize(("program", "script", "words"), FAILURES)
def test_a_program_that_fails_is_quoted(install, program, script, words):
    install(program, script)
    with pytest.raises(TlaunchError, match=words):
        ask_nvidia_smi() if program == "nvidia-smi" else ask_hccn_tool([5])


@pytest.mark.parametrize("script", ["exec /bin/sleep 600", "/bin/sleep 600 & wait"], ids=["alone", "with a child"])
def test_hanging_program_is_given_up_and_ended(install, script):
    install("hccn_tool", script)
    with pytest.raises(TlaunchError, match=r"did not exit within 0\.2 s"):
        ask_hccn_tool([0], patience_s=0.2)


def test_program_that_cannot_be_started(install, tmp_path):
    install("nvidia-smi", "")
    (tmp_path / "bin" / "nvidia-smi").write_bytes(b"\x00\x01")
    with pytest.raises(UnreadableError, match="nvidia-smi cannot be started: Exec format error"):
        ask_nvidia_smi()


def test_missing_programs_say_what_to_do(install):
    for ask, name in ((lambda: ask_hccn_tool([0]), "hccn_tool"), (ask_nvidia_smi, "nvidia-smi")):
        with pytest.raises(UnreadableError, match=name) as caught:
            ask()
        assert "--" in caught.value.hint


def test_device_files_are_counted_by_their_numbers(tmp_path, monkeypatch):
    for name in ("davinci10", "davinci2", "davinci_manager", "davinci0x", "null"):
        (tmp_path / name).touch()
    monkeypatch.setattr(discover, "DEVICE_FILES", tmp_path)
    assert davinci_ids() == (2, 10)


def test_own_name_is_never_a_loopback_address():
    name = own_server_id()
    if name != socket.gethostname():
        address = ipaddress.ip_address(name)
        assert not address.is_loopback
        assert not address.is_unspecified
