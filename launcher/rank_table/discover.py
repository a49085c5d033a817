"""Find this machine's devices, their addresses, and its own address. Every program run for this has a timeout."""

from __future__ import annotations

import ipaddress
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from launcher.core.errors import TlaunchError, UnreadableError
from launcher.core.frozen import frozen
from launcher.core.machine import proc
from launcher.core.machine.proc import DEVICE_FILES
from launcher.core.text import printable
from launcher.rank_table.devices import FoundDevice
from launcher.rank_table.ip import UNSET, address_family

HCCN_CONF = Path("/etc/hccn.conf")
PATIENCE_S = 20.0  # for one answer, because drivers may hang
MAX_ANSWER_BYTES = 1024 * 1024  # of one answer, so that endless output does not fill the disk
_LOOK_AGAIN_S = 0.01  # interval of checks for a program's exit
# MIG devices are listed below their GPU, indented.
_GPU = re.compile(r"^GPU ([0-9]{1,6}): (?:.*\(UUID: (GPU-[^\s)]+)\))?", re.MULTILINE)
# The label ends at the first colon, the address at the next blank: an IPv6 address contains colons.
_ADDRESS = re.compile(
    r"^[ \t]*(?:(?:ipv6|inet6)[ _]?)?(?:ip[ _]?)?addr(?:ess)?[ \t]*:[ \t]*(\S*)", re.IGNORECASE | re.MULTILINE
)
_FAR_AWAY = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))  # reserved for documentation
HCCN_TOOL = Path("/usr/local/Ascend/driver/tools/hccn_tool")  # installed by the driver, often not on PATH


@frozen
class Answer:
    status: int
    output: str
    complaint: str  # its stderr

    def address(self) -> str | None:
        """Return the address in the output as text, even if it is invalid, or None if the output has no address."""
        match = _ADDRESS.search(self.output) if self.status == 0 else None
        return None if match is None else match[1].partition("/")[0]  # an IPv6 address may have a prefix length

    def how_it_ended(self) -> str:
        """Return the exit code and the first output line, for a message."""
        lines = (self.complaint + "\n" + self.output).split("\n")
        words = next((line.strip() for line in lines if line.strip()), "no output")
        return f"exited with {self.status}: {printable(words[:200])}"


def hccn_tool() -> str | None:
    return shutil.which("hccn_tool") or shutil.which(HCCN_TOOL)


def has_nvidia_smi() -> bool:
    return shutil.which("nvidia-smi") is not None


def davinci_ids() -> tuple[int, ...]:
    """Return the ids of this machine's Ascend devices, in ascending order."""
    return proc.davinci_ids(DEVICE_FILES)


def ask_hccn_tool(ids: Sequence[int], *, patience_s: float = PATIENCE_S) -> tuple[FoundDevice, ...]:
    """Ask hccn_tool for the address of each device, preferably IPv4. Each call may take up to `patience_s` seconds.

    Raises:
        UnreadableError: hccn_tool is missing.
        TlaunchError: hccn_tool fails, hangs, or prints no address.
    """
    tool = hccn_tool()
    if tool is None:
        hint = (
            "install the Ascend driver, which includes hccn_tool; in a container, mount the tool, or use --hccn-conf "
            f"with the host's {HCCN_CONF}"
        )
        raise UnreadableError(f"hccn_tool is not on PATH, and {HCCN_TOOL} does not exist", hint=hint)
    devices = []
    for device_id in ids:
        command = (tool, "-i", str(device_id), "-ip", "-g")
        answer = _ask(command, patience_s)
        written = answer.address()
        # IPv6 only if there is no IPv4 address; old versions do not support it.
        if written is None or written in UNSET:
            written = _ask((*command[:-1], "-inet6", "-g"), patience_s).address() or written
        if written is None:
            hint = "list the devices with `npu-smi info`; hccn_tool often needs root"
            raise TlaunchError(f"`{' '.join(command)}` {answer.how_it_ended()}", hint=hint)
        if written not in UNSET and address_family(written) is None:
            message = f'`{" ".join(command)}` printed "{printable(written[:45])}", which is not an IP address'
            raise TlaunchError(message, hint="provide the addresses by --hccn-conf")
        devices.append(FoundDevice(device_id, None if written in UNSET else written))
    return tuple(devices)


def ask_nvidia_smi(*, patience_s: float = PATIENCE_S) -> tuple[FoundDevice, ...]:
    """Ask nvidia-smi for this machine's GPUs. Wait at most `patience_s` seconds. MIG devices are not listed separately.

    Raises:
        UnreadableError: nvidia-smi is missing.
        TlaunchError: nvidia-smi fails, hangs, or lists no GPU.
    """
    if not has_nvidia_smi():
        hint = "install the NVIDIA driver, which includes nvidia-smi, or use --devices N"
        raise UnreadableError("nvidia-smi is not on PATH", hint=hint)
    answer = _ask(("nvidia-smi", "-L"), patience_s)
    found = tuple(FoundDevice(int(gpu[1]), uuid=gpu[2]) for gpu in _GPU.finditer(answer.output))
    if answer.status != 0 or not found:
        raise TlaunchError(f"`nvidia-smi -L` {answer.how_it_ended()}", hint="use --devices N, which needs no driver")
    return found


def own_server_id() -> str:
    """Return the address that this machine uses on its default route. If it has none, return its host name.

    Loopback addresses are skipped, because they are the same on every server. No packet is sent, and no name is looked
    up.
    """
    for family, far in _FAR_AWAY:
        # Connecting a datagram socket only selects a route and a source address.
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((far, 9))
            address = str(probe.getsockname()[0])
            parsed = ipaddress.ip_address(address.partition("%")[0])
            if not (parsed.is_loopback or parsed.is_unspecified or parsed.is_link_local):
                return address
    return socket.gethostname()


def _ask(command: Sequence[str], patience_s: float) -> Answer:
    """Run a program in its own process group, and kill the group at the end, so that no child processes remain.

    Raises:
        UnreadableError: the program cannot be started.
        TlaunchError: it does not exit within `patience_s`, or prints more than `MAX_ANSWER_BYTES`.
    """
    try:
        process = subprocess.Popen(
            command,
            bufsize=0,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,
        )
    except OSError as error:
        raise UnreadableError(f"{command[0]} cannot be started: {error.strerror}") from None
    with process:
        try:
            said = _await_end(process, " ".join(command), patience_s)
        finally:
            # The program is not reaped yet, so the group id is still valid.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return Answer(process.returncode, *(text.decode(errors="replace") for text in said))


def _await_end(process: subprocess.Popen[bytes], asked: str, patience_s: float) -> list[bytearray]:
    deadline = time.monotonic() + patience_s
    said = {pipe: bytearray() for pipe in (process.stdout, process.stderr) if pipe}
    for pipe in said:
        os.set_blocking(pipe.fileno(), False)
    while True:
        # Look for the end before reading, since children may keep the pipes open. WNOWAIT keeps the process id reserved.
        has_ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        for pipe, text in said.items():
            while piece := pipe.read(MAX_ANSWER_BYTES):
                text.extend(piece)
                if len(text) > MAX_ANSWER_BYTES:
                    raise TlaunchError(
                        f"`{asked}` printed more than {MAX_ANSWER_BYTES:,} bytes and was killed",
                        hint="run the command by hand to see the output, or use --devices N, which needs no driver",
                    )
        if has_ended:
            return list(said.values())
        if time.monotonic() > deadline:
            raise TlaunchError(
                f"`{asked}` did not exit within {patience_s:g} s",
                hint="check `dmesg` for a driver hang, or use --devices N, which needs no driver",
            )
        time.sleep(_LOOK_AGAIN_S)
