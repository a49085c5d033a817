"""Ask this machine for its devices, their addresses and its own. Every program asked has a deadline."""

from __future__ import annotations

import ipaddress
import os
import re
import selectors
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
PATIENCE_S = 20.0  # for one answer; a driver that hangs never gives one
MAX_ANSWER_BYTES = 1024 * 1024  # of one answer; a program that prints on and on must not fill the memory
_PIECE_BYTES = 64 * 1024
_LOOK_AGAIN_S = 0.01  # whether a program has ended, while it prints nothing
# The parts of a GPU that MIG makes are listed below it, set in.
_GPU = re.compile(r"^GPU ([0-9]{1,6}): (?:.*\(UUID: (GPU-[^\s)]+)\))?", re.MULTILINE)
# The label ends at the first colon, the address at the next blank: an IPv6 address has colons of its own.
_ADDRESS = re.compile(
    r"^[ \t]*(?:(?:ipv6|inet6)[ _]?)?(?:ip[ _]?)?addr(?:ess)?[ \t]*:[ \t]*(\S*)", re.IGNORECASE | re.MULTILINE
)
_FAR_AWAY = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))  # reserved for documentation
HCCN_TOOL = Path("/usr/local/Ascend/driver/tools/hccn_tool")  # where the driver puts it, often not on PATH


@frozen
class Answer:
    """The output of a program, and how it ended."""

    status: int
    output: str
    complaint: str  # its stderr

    def address(self) -> str | None:
        """Return the text where an address should stand, be it one or not; None where there is no such line."""
        match = _ADDRESS.search(self.output) if self.status == 0 else None
        return None if match is None else match[1].partition("/")[0]  # an IPv6 address may carry its prefix's length

    def how_it_ended(self) -> str:
        """Return the exit code and the first line that it printed, for a message."""
        lines = (self.complaint + "\n" + self.output).split("\n")
        words = next((line.strip() for line in lines if line.strip()), "it said nothing")
        return f"ended with {self.status}: {printable(words[:200])}"


def hccn_tool() -> str | None:
    """Find hccn_tool; None where it is missing."""
    return shutil.which("hccn_tool") or shutil.which(HCCN_TOOL)


def has_nvidia_smi() -> bool:
    return shutil.which("nvidia-smi") is not None


def davinci_ids() -> tuple[int, ...]:
    """Return the ids of the Ascend devices of this machine, ascending; empty where there are none."""
    return proc.davinci_ids(DEVICE_FILES)


def ask_hccn_tool(ids: Sequence[int], *, patience_s: float = PATIENCE_S) -> tuple[FoundDevice, ...]:
    """Return the devices `ids` with the addresses that are set, IPv4 before IPv6. Block `patience_s` for each answer.

    Raises:
        UnreadableError: hccn_tool is missing.
        TlaunchError: it fails, hangs, or prints no address where it should.
    """
    tool = hccn_tool()
    if tool is None:
        hint = f"it comes with the Ascend driver; in a container mount it, or give --hccn-conf the host's {HCCN_CONF}"
        raise UnreadableError(f"hccn_tool is not on PATH, and {HCCN_TOOL} does not exist", hint=hint)
    devices = []
    for device_id in ids:
        command = (tool, "-i", str(device_id), "-ip", "-g")
        answer = _ask(command, patience_s)
        written = answer.address()
        # IPv6 is asked for where there is no IPv4 address; old versions do not know it.
        if written is None or written in UNSET:
            written = _ask((*command[:-1], "-inet6", "-g"), patience_s).address() or written
        if written is None:
            hint = "`npu-smi info` shows which devices there are; hccn_tool often needs root"
            raise TlaunchError(f"`{' '.join(command)}` {answer.how_it_ended()}", hint=hint)
        if written not in UNSET and address_family(written) is None:
            message = f'`{" ".join(command)}` says "{printable(written[:45])}", which is not an IP address'
            raise TlaunchError(message, hint="give the addresses with --hccn-conf")
        devices.append(FoundDevice(device_id, None if written in UNSET else written))
    return tuple(devices)


def ask_nvidia_smi(*, patience_s: float = PATIENCE_S) -> tuple[FoundDevice, ...]:
    """Return the GPUs of this machine; one that is cut into MIG parts counts once. Block `patience_s` at most.

    Raises:
        UnreadableError: nvidia-smi is missing.
        TlaunchError: it fails, hangs, or lists no GPU.
    """
    if not has_nvidia_smi():
        hint = "it comes with NVIDIA's driver; --devices N needs no program"
        raise UnreadableError("nvidia-smi is not on PATH", hint=hint)
    answer = _ask(("nvidia-smi", "-L"), patience_s)
    found = tuple(FoundDevice(int(gpu[1]), uuid=gpu[2]) for gpu in _GPU.finditer(answer.output))
    if answer.status != 0 or not found:
        raise TlaunchError(f"`nvidia-smi -L` {answer.how_it_ended()}", hint="--devices N needs no driver")
    return found


def own_server_id() -> str:
    """Return the address that others reach this machine by, as the default route has it; else its host name.

    Never a loopback address, which would be the same on every server. No packet is sent, and no name is looked up.
    """
    for family, far in _FAR_AWAY:
        # Connecting a datagram socket only chooses a route: its address is the one that packets to `far` would carry.
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((far, 9))
            address = str(probe.getsockname()[0])
            parsed = ipaddress.ip_address(address.partition("%")[0])
            if not (parsed.is_loopback or parsed.is_unspecified or parsed.is_link_local):
                return address
    return socket.gethostname()


def _ask(command: Sequence[str], patience_s: float) -> Answer:
    """Run a program in a process group of its own, so that nothing of it is left, whether it ends or hangs."""
    try:
        process = subprocess.Popen(
            command,
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
            output, complaint = _listen(process, " ".join(command), patience_s)
        finally:
            # The program has not been waited for yet, so the group's number is still its own.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return Answer(process.returncode, output.decode(errors="replace"), complaint.decode(errors="replace"))


def _listen(process: subprocess.Popen[bytes], asked: str, patience_s: float) -> tuple[bytes, bytes]:
    """Return what the program prints until it ends. A child of it that lives on is not waited for.

    Raises:
        TlaunchError: it does not end within `patience_s`, or prints more than `MAX_ANSWER_BYTES`.
    """
    deadline = time.monotonic() + patience_s
    pipes = [pipe.fileno() for pipe in (process.stdout, process.stderr) if pipe is not None]
    said = {pipe: bytearray() for pipe in pipes}
    with selectors.DefaultSelector() as selector:
        for pipe in pipes:
            selector.register(pipe, selectors.EVENT_READ)
        has_ended = False
        while not has_ended:
            if time.monotonic() > deadline:
                raise TlaunchError(
                    f"`{asked}` gave no answer within {patience_s:g} s",
                    hint="the driver may hang, `dmesg` may say why; --devices N asks no driver",
                )
            # Asked first: all that it printed by then is in the pipes. It stays to be waited for, so that its number is
            # not given to another process.
            has_ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
            while ready := selector.select(0 if has_ended else _LOOK_AGAIN_S):
                for key, _ in ready:
                    piece = os.read(key.fd, _PIECE_BYTES)
                    said[key.fd] += piece
                    if not piece:
                        selector.unregister(key.fd)
                if max(map(len, said.values())) > MAX_ANSWER_BYTES:
                    raise TlaunchError(
                        f"`{asked}` printed more than {MAX_ANSWER_BYTES:,} bytes, and was ended",
                        hint="run it by hand to see what it says; --devices N asks no driver",
                    )
                if not has_ended:
                    break
    output, complaint = (bytes(said[pipe]) for pipe in pipes)
    return output, complaint
