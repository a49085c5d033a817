"""The plan that the coordinator of a run over several servers gets, and the job that agents of other servers get as text."""

from __future__ import annotations

import base64
import json
import socket
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

from launcher.core.codec import decode, encode
from launcher.core.frozen import frozen
from launcher.engines.assemble import Request
from launcher.engines.engine_command import EngineCommand
from launcher.engines.placement import Machine

COMMAND = "command"  # in what servers must have alike


@frozen
class Plan:
    listener: socket.socket
    token: str  # of agents that the engine starts: they get everything, values of --env too
    shared_token: str  # of agents that are started by hand; empty if none was chosen
    silence_s: float  # the silence after which a server is lost
    join_timeout_s: float  # in which all servers have to join
    engine: EngineCommand  # starts an agent on every server, or the one of this server where others are started by hand
    brings_all: bool  # whether that engine starts all agents
    job: str  # for agents that have none of their own (launcher/cluster/job.py)
    agreement: Mapping[str, str]  # what agents that have one of their own must have alike
    engine_anew: bool = False  # whether an attempt needs the engine's processes anew, and not just its ranks
    resolved: tuple[tuple[str, frozenset[str]], ...] = ()  # what names of servers mean here
    same_program: bool = True  # whether all servers must have it
    key: str = ""  # of those who ask where ranks are (launcher/cluster/coordinator_files.py)


lzma: Any = None
with suppress(ImportError):  # some builds of Python lack it
    import lzma

PRESET = 3  # 2,000 servers of 8 devices: 66 KB in 0.2 s, which zlib makes 420 KB
_OF_LZMA = b"\xfd7zXZ\x00"  # its texts begin so
EXAMINATION = "examination"  # in place of a run's job: do what a ProbeHandler is asked to do
_OF_THIS_MACHINE = ("inherited_env", "machine", "here", "interfaces")


@frozen
class Job:
    request: Request
    files: Mapping[str, str]  # name: text, wanted in the run directory
    table_text: str | None  # of the rank table, as the coordinator read it
    table_format: str
    master_port: int | None  # that the user chose


def to_text(job: Job) -> str:
    """Return a job as one line, the same for every agent. It holds the values of --env, so it travels on connections only, never in a file."""
    request = {
        field.name: encode(getattr(job.request, field.name))
        for field in fields(job.request)
        if field.name not in _OF_THIS_MACHINE
    }
    plain = {
        "files": encode(job.files),
        "table_text": job.table_text,
        "table_format": job.table_format,
        "master_port": job.master_port,
    }
    data = json.dumps({**plain, "request": request}).encode()
    # It holds a table up to three times, farther apart than zlib looks back, and every agent gets it.
    packed = zlib.compress(data) if lzma is None else lzma.compress(data, preset=PRESET)
    return base64.b64encode(packed).decode()


def from_text(text: str, inherited: Mapping[str, str], machine: Machine) -> Job:
    """Return the job of `text` for another `machine`, with the environment `inherited` there.

    Raises:
        ValueError: the text is not a job of this version.
    """
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
        raise ValueError("Python has no lzma here; where the run was started, it has")
    try:
        return bytes(lzma.decompress(packed))
    except lzma.LZMAError as error:
        raise ValueError(f"it is damaged: {error}") from error
