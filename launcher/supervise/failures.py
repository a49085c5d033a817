"""What a rank left behind about its failure: the hook's failure.json, and the last traceback in train.log.

Everything here reads files that a failing program wrote: any bytes, any length, perhaps cut off. Nothing raises, and
time and memory are bounded.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from launcher.core.frozen import frozen

TAIL_BYTES = 256 << 10
TRACEBACK_CHARS = 8000
MESSAGE_LINES = 12  # of a message, after its first
RECORD_BYTES = 1 << 20

_HEADER = "Traceback (most recent call last):"
_GROUP_HEADER = re.compile(r"^(\s*)\+ Exception Group $")
_FRAME = re.compile(r'\s+File "(?P<file>.+?)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
_EXCEPTION = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(?:: ?(?P<message>.*))?$")
_THREAD = re.compile(r"Exception in thread (?P<name>.+?)(?: \(.*\))?:$")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# What Python prints of exceptions that change neither the course nor the exit code of a program.
_HARMLESS = ("Exception ignored in", "Exception ignored while", "Error in atexit", "Error in sys.excepthook")
_LINKS = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)


@frozen
class FailureRecord:
    """failure.json, written by the hook inside the rank (launcher/bootstrap/failure.py)."""

    time_ns: int  # wall clock, nanoseconds since 1970, of the exception itself
    pid: int
    kind: str  # "exception", "exit" or "os_exit"
    type: str | None = None
    message: str = ""
    where: str | None = None  # "train.py:88 in step"
    traceback: str | None = None
    status: int = 1
    thread: str = "MainThread"


@frozen
class FoundTraceback:
    """The last Python traceback of a log."""

    type: str  # as printed: "ValueError", "torch.distributed.DistNetworkError"
    message: str
    where: str | None  # the innermost frame, "train.py:88 in step"
    text: str  # with the exceptions that it was raised from; its last `TRACEBACK_CHARS` characters
    first_cause: str | None = None  # of a chain: "KeyError: 'x' at data.py:8 in load", the exception it began with
    thread: str | None = None  # its name where it was not the main thread: the program went on
    lines_after: int = 0  # what the program still wrote: many lines mean that it lived on


def read_failure(path: Path, pid: int | None = None) -> FailureRecord | None:
    """None where there is no such file, or rubbish in it, or (with `pid`) another process wrote it."""
    try:
        fields: Any = json.loads(_tail(path, 0, RECORD_BYTES))
        record = _record(fields) if isinstance(fields, dict) else None
    except (ValueError, RecursionError):
        return None
    return None if record is None or pid not in {None, record.pid} else record


def log_tail(log: Path, offset: int, limit_bytes: int = TAIL_BYTES) -> str:
    """The last `limit_bytes` of a log, nothing from before `offset` (bytes). Empty where it cannot be read."""
    return _tail(log, offset, limit_bytes).decode(errors="replace")


def last_traceback(log: Path, offset: int) -> FoundTraceback | None:
    """The last traceback that a program printed after `offset` (bytes), whether it ended the program or was caught.

    One of the main thread is preferred to those of other threads. Only the log's last `TAIL_BYTES` are looked at.
    """
    return find_traceback(log_tail(log, offset))


def find_traceback(text: str) -> FoundTraceback | None:
    """As `last_traceback`, in a text."""
    lines = [_COLOUR.sub("", line) for line in text.split("\n")]
    of_thread = None
    for block in _blocks_from_last(lines):
        if block.thread is None:
            return _found(block, lines)
        of_thread = of_thread or block
    return _found(of_thread, lines) if of_thread else None


def frames_in(traceback: str) -> list[tuple[str, str]]:
    """File and function of every frame, innermost last."""
    found = (_FRAME.search(line) for line in traceback.splitlines())
    return [(frame["file"], frame["function"] or "") for frame in found if frame]


# --- reading ---


def _tail(path: Path, offset: int, limit_bytes: int) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return b""
        begin = offset if offset <= status.st_size else 0  # it was cut off since: all of it is new
        os.lseek(descriptor, max(begin, status.st_size - limit_bytes), os.SEEK_SET)
        return os.read(descriptor, limit_bytes)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def _record(fields: dict[str, Any]) -> FailureRecord | None:
    time_ns, pid, status = (_whole(fields.get(name)) for name in ("time_ns", "pid", "status"))
    if time_ns is None or pid is None:
        return None
    return FailureRecord(
        time_ns=time_ns,
        pid=pid,
        kind=_text(fields.get("kind")) or "exception",
        type=_text(fields.get("type")),
        message=_text(fields.get("message")) or "",
        where=_text(fields.get("where")),
        traceback=(_text(fields.get("traceback")) or "")[-TRACEBACK_CHARS:] or None,
        status=1 if status is None else status,
        thread=_text(fields.get("thread")) or "MainThread",
    )


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


# --- tracebacks ---


@frozen
class _Block:
    """One "Traceback (most recent call last):" up to its exception. `start` and `end` are line numbers, end excluded."""

    start: int
    end: int
    body: tuple[str, ...]  # without what each line begins with, e.g. "[rank0]: " as torch prints it
    prefix: str
    type: str
    message: str
    where: str | None
    thread: str | None

    @property
    def summary(self) -> str:
        exception = f"{self.type}: {self.message}" if self.message else self.type
        return f"{exception} at {self.where}" if self.where else exception


def _blocks_from_last(lines: Sequence[str]) -> Iterator[_Block]:
    end = len(lines)
    for start in range(len(lines) - 1, -1, -1):
        if _HEADER in lines[start]:
            block = _block(lines, start, end)
            end = start
            if block:
                yield block


def _block(lines: Sequence[str], start: int, limit: int) -> _Block | None:
    """The traceback whose header is line `start`, if it is a whole one that matters; `limit`: the next header."""
    prefix = _prefix(lines, start)
    before = _without(prefix, lines[start - 1]) or "" if start else ""
    body = [] if before.startswith(_HARMLESS) else _body(lines[start + 1 : limit], prefix)
    exception = _EXCEPTION.match(body[-1]) if body else None
    if exception is None:
        return None
    end = start + 1 + len(body)
    more = _more_of_message(lines[end : min(limit, end + MESSAGE_LINES)], prefix)
    frames = [frame for line in body if (frame := _FRAME.match(line))]
    thread = _THREAD.match(before)
    return _Block(
        start=start,
        end=end + len(more),
        body=(_HEADER, *body, *more),
        prefix=prefix,
        type=exception["type"],
        message="\n".join([exception["message"] or "", *more]).strip(),
        where=_place(frames[-1]) if frames else None,
        thread=thread["name"] if thread else None,
    )


def _body(lines: Sequence[str], prefix: str) -> list[str]:
    """The frames, which are indented, and the line after them, which tells the exception. Empty if it is cut off."""
    body: list[str] = []
    for raw in lines:
        line = _without(prefix, raw)
        if not line:
            break
        body.append(line)
        if not line[0].isspace():
            return body
    return []


def _more_of_message(lines: Sequence[str], prefix: str) -> list[str]:
    """Further lines of a message can be told from other output only if they begin alike: "[rank0]: "."""
    more: list[str] = []
    for raw in lines if prefix else ():
        line = _without(prefix, raw)
        if not line:
            break
        more.append(line)
    return more


def _prefix(lines: Sequence[str], start: int) -> str:
    """What the header's line, and with it every line of its traceback, begins with."""
    prefix = lines[start].partition(_HEADER)[0].rpartition("\r")[2].removesuffix("Original ")
    if group := _GROUP_HEADER.match(prefix):
        prefix = f"{group[1]}| "
    following = lines[start + 1] if start + 1 < len(lines) else ""
    return prefix if following.startswith(prefix) else ""


def _without(prefix: str, line: str) -> str | None:
    """None for a line that does not begin so."""
    line = line.rstrip("\r")
    if line.startswith(prefix):
        return line[len(prefix) :]
    return "" if line == prefix.rstrip() else None


def _place(frame: re.Match[str]) -> str:
    name = frame["file"].replace("\\", "/").rpartition("/")[2]
    return f"{name}:{frame['line']} in {frame['function']}" if frame["function"] else f"{name}:{frame['line']}"


def _found(block: _Block, lines: Sequence[str]) -> FoundTraceback:
    chain = _chain(block, lines)
    text = "\n".join("\n".join(link.body) for link in chain)
    return FoundTraceback(
        type=block.type,
        message=block.message,
        where=block.where,
        text=text[-TRACEBACK_CHARS:],
        first_cause=chain[0].summary if len(chain) > 1 else None,
        thread=block.thread,
        lines_after=sum(1 for line in lines[block.end :] if line.strip()),
    )


def _chain(block: _Block, lines: Sequence[str]) -> list[_Block]:
    """The exceptions that led to `block`, the first one first."""
    chain = [block]
    for earlier in _blocks_from_last(lines[: block.start]):
        between = [_without(block.prefix, line) for line in lines[earlier.end : chain[0].start]]
        if [line for line in between if line] not in [[link] for link in _LINKS]:
            break
        chain.insert(0, earlier)
    return chain
