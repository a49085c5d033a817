"""What the agents of other servers need to know to do their part: a Request as text, without what is this machine's own."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from launcher.core.codec import decode, encode
from launcher.core.frozen import frozen
from launcher.engines.assemble import Request
from launcher.engines.placement import Machine

EXAMINATION = "examination"  # in place of a run's job: do what an Examinee is asked to do
_OF_THIS_MACHINE = ("inherited_env", "machine", "here")


@frozen
class Job:
    request: Request
    files: Mapping[str, str]  # name: text, wanted in the run directory
    table_text: str | None  # of the rank table, as the coordinator read it
    master_port: int | None  # that the user chose


def to_text(job: Job) -> str:
    """One line for every agent alike. Holds the values of --env: it travels on connections only, never in a file."""
    request = {
        field.name: encode(getattr(job.request, field.name))
        for field in fields(job.request)
        if field.name not in _OF_THIS_MACHINE
    }
    plain = {"files": encode(job.files), "table_text": job.table_text, "master_port": job.master_port}
    return base64.b64encode(zlib.compress(json.dumps({**plain, "request": request}).encode())).decode()


def from_text(text: str, inherited: Mapping[str, str], machine: Machine) -> Job:
    """The inverse, on a `machine` of its own with an environment of its own.

    Raises:
        ValueError: the text is no job of this version.
    """
    try:
        record: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(text)))
        record["request"] |= {"inherited_env": {}, "machine": encode(machine), "here": None}
    except (ValueError, zlib.error, KeyError, TypeError) as error:
        raise ValueError(f"no job: {error}") from error
    job = decode(Job, record)
    return replace(job, request=replace(job.request, inherited_env=inherited, machine=machine))
