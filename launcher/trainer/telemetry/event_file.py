"""Writes scalars to TensorBoard event files.

This uses TensorBoard's protobuf messages, but not torch's SummaryWriter. SummaryWriter writes in a thread: its last
records are lost when a rank exits at once, and it prints a traceback when the disk is full. It also imports TensorFlow
if that is installed, which takes seconds. A record is framed as follows (TFRecord):

    length, 8 bytes | masked CRC-32C of the length, 4 bytes | message | masked CRC-32C of the message, 4 bytes

all little-endian; the mask is in https://github.com/google/leveldb/blob/main/util/crc32c.h.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_VERSION = "brain.Event:2"
_CASTAGNOLI = 0x82F63B78  # the polynomial, lowest power first


def tensorboard_is_installed() -> bool:
    """Return True if TensorBoard is installed, without importing it."""
    return find_spec("tensorboard") is not None


class EventFile:
    """A new TensorBoard event file in `directory`. The file is open only while a record is written.

    `directory` is created if its parent exists. The first instance imports TensorBoard's messages, which takes about
    0.03 s. So create it after the start of the training, and not in the process from which ranks are forked.

    Raises:
        ImportError, OSError: TensorBoard is incomplete, or the directory cannot be created.
    """

    def __init__(self, directory: Path, *, attempt: int, purge_step: int | None) -> None:
        """Create an event file. With `purge_step`, TensorBoard hides older files' records from this step on."""
        self._messages = import_module("tensorboard.compat.proto.event_pb2")
        self._summaries = import_module("tensorboard.compat.proto.summary_pb2")
        directory.mkdir(exist_ok=True)
        # TensorBoard reads files in the order of names.
        name = f"events.out.tfevents.{int(time.time()):010}.{attempt:04}.{socket.gethostname()}.{os.getpid()}"
        self._path = directory / name
        first = {"wall_time": time.time(), "file_version": _VERSION}
        self._append(first if purge_step is None else {**first, "step": purge_step})
        if purge_step is not None:
            start = self._messages.SessionLog(status=self._messages.SessionLog.START)
            self._append({"wall_time": time.time(), "step": purge_step, "session_log": start})

    def scalars(self, time_ns: int, step: int, values: Mapping[str, float]) -> None:
        """Write one float32 value for each tag in `values` as one record, without buffering.

        Raises:
            OSError: the disk is full, for example. The file must not be used afterwards.
        """
        parts = [self._summaries.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        summary = self._summaries.Summary(value=parts)
        self._append({"wall_time": time_ns / 1e9, "step": step, "summary": summary})

    def _append(self, fields: Mapping[str, Any]) -> None:
        message = self._messages.Event(**fields).SerializeToString()
        length = struct.pack("<Q", len(message))
        record = length + _check(length) + message + _check(message)
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            if os.write(descriptor, record) < len(record):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))  # the error of another write
        finally:
            os.close(descriptor)


def _check(content: bytes) -> bytes:
    """Return the masked CRC-32C of `content` (RFC 3720, appendix B.4)."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (_CASTAGNOLI if byte & 1 else 0)
    return byte


_TABLE = tuple(_entry(byte) for byte in range(256))
