"""The coordinator's plan for a run on several servers, and the job that it sends to agents as text."""

from __future__ import annotations

import base64
import json
import socket
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from launcher.core.codec import decode, encode
from launcher.core.frozen import frozen
from launcher.engines.assemble import Request
from launcher.engines.engine_command import EngineCommand
from launcher.engines.placement import Machine

COMMAND = "command"  # a key of `Plan.agreement`


@frozen
class Plan:
    listener: socket.socket
    token: str  # for agents that the engine starts; they get all settings, including values of --env
    shared_token: str  # for agents that are started by hand; empty if none was chosen
    silence_s: float  # the silence after which a server is lost
    join_timeout_s: float  # for all servers to join
    engine: EngineCommand  # starts an agent on every server, or only on this one if the others are started by hand
    brings_all: bool  # the engine starts all agents
    job: str  # for agents that the engine starts
    agreement: Mapping[str, str]  # settings that must be equal on manually started agents
    engine_anew: bool = False  # a new attempt needs a new engine, not only new ranks
    resolved: tuple[tuple[str, frozenset[str]], ...] = ()  # addresses of the servers' names on this machine
    same_program: bool = True  # all servers must have the same program
    key: str = ""  # for clients of `tlaunch stacks` (launcher/cluster/coordinator_files.py)


lzma: Any = None
with suppress(ImportError):  # some builds of Python lack it
    import lzma

PRESET = 3  # 2,000 servers with 8 devices: 66 KB in 0.2 s; zlib takes 420 KB
_OF_LZMA = b"\xfd7zXZ\x00"  # magic bytes
EXAMINATION = "examination"  # sent in place of a run's job: answer a ProbeHandler's questions
_OF_THIS_MACHINE = ("inherited_env", "machine", "here", "interfaces")


@frozen
class Job:
    request: Request
    files: Mapping[str, str]  # text by name, for the run directory
    table_text: str | None  # the rank table that the coordinator read
    table_format: str
    master_port: int | None  # chosen by the user


def to_text(job: Job) -> str:
    """Encode a job as one line of text. Do not write it to a file, since it contains the values of --env."""
    record = encode(job)
    for name in _OF_THIS_MACHINE:
        del record["request"][name]
    data = json.dumps(record).encode()
    # It has the table up to three times, at distances beyond zlib's window, and is sent to every agent.
    packed = zlib.compress(data) if lzma is None else lzma.compress(data, preset=PRESET)
    return base64.b64encode(packed).decode()


def from_text(text: str, inherited: Mapping[str, str], machine: Machine) -> Job:
    """Parse a job and add the environment and resources of this machine. Raise ValueError for an invalid job."""
    try:
        record: dict[str, Any] = json.loads(_unpacked(base64.b64decode(text)))
        record["request"] |= {"inherited_env": {}, "machine": encode(machine), "here": None, "interfaces": {}}
    except (ValueError, zlib.error, KeyError, TypeError) as error:
        raise ValueError(f"not a valid job: {error}") from error
    job = decode(Job, record)
    return replace(job, request=replace(job.request, inherited_env=inherited, machine=machine))


def _unpacked(packed: bytes) -> bytes:
    if not packed.startswith(_OF_LZMA):
        return zlib.decompress(packed)
    if lzma is None:
        raise ValueError("the job is compressed with LZMA, but Python on this machine has no lzma module")
    try:
        return bytes(lzma.decompress(packed))
    except lzma.LZMAError as error:
        raise ValueError(f"the data is damaged: {error}") from error
