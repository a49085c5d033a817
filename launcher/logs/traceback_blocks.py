"""Single tracebacks in a text, as Python prints them: from "Traceback (most recent call last):" to the exception.

Headers are looked for, and lines are read only where one was found: little is done for each byte of a long text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from launcher.core.frozen import frozen

MESSAGE_LINES = 12  # of a message, after its first
MESSAGE_CHARS = 2000  # of an exception and its message that are shown
GROUP_LINES = 200  # of the exceptions in a group that are shown
MOST_TRACEBACKS = 500  # that are looked at, the last ones: a program may print them without end
LONGEST_TITLE = 2000  # characters between two tracebacks, or in the line before one, that are looked at

HEADER = "Traceback (most recent call last):"
_GROUP_HEADER = re.compile(r"^(\s*)\+ Exception Group $")
IN_GROUP = re.compile(r"\s+(?:\||\+[-+])")
_INDENTED = re.compile(r"(?:\t|  )[^\r]*$")
FRAME = re.compile(r'\s+File "(?P<file>.+?)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
_EXCEPTION = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(?:: ?(?P<message>.*))?$")
_THREAD = re.compile(r"Exception in thread (?P<name>.+?)(?: \(.*\))?:$")
# What Python prints of exceptions that change neither the course nor the exit code of a program.
_HARMLESS = ("Exception ignored in", "Exception ignored while", "Error in atexit", "Error in sys.excepthook")


@frozen
class Block:
    """One "Traceback (most recent call last):" up to its exception. `start`, `end`: positions in the text, of lines."""

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


def blocks_from_first(text: str) -> Iterator[Block]:
    """Those that are whole and matter. The exceptions in a group are part of it, and no tracebacks of their own."""
    header = text.find(HEADER)
    while header >= 0:
        following = text.find(HEADER, header + len(HEADER))
        limit = len(text) if following < 0 else text.rfind("\n", 0, following) + 1
        start = text.rfind("\n", 0, header) + 1
        in_group = IN_GROUP.match(text, start, header) is not None
        block = _block(text, start, limit) if start < limit and not in_group else None
        if block:
            yield block
        header = following


def blocks_from_last(text: str, end: int) -> Iterator[Block]:
    """As `blocks_from_first`, of what begins before `end`, the last one first, up to `MOST_TRACEBACKS`."""
    for _ in range(MOST_TRACEBACKS):
        header = text.rfind(HEADER, 0, end)
        if header < 0:
            return
        start = text.rfind("\n", 0, header) + 1
        block = None if IN_GROUP.match(text, start, header) else _block(text, start, end)
        end = start
        if block:
            yield block


def lines_of(text: str, start: int, end: int) -> Iterator[tuple[str, int]]:
    """Every line from `start` on, and where the next one begins."""
    while start < end:
        stop = text.find("\n", start, end)
        stop = end if stop < 0 else stop
        yield text[start:stop], min(stop + 1, end)
        start = stop + 1


def _block(text: str, start: int, limit: int) -> Block | None:
    """The traceback whose header's line is at `start`, if it is a whole one that matters; `limit`: the next one's."""
    header, begin = next(lines_of(text, start, limit))
    prefix = prefix_of(header, text[begin : begin + len(header)])
    before = without_prefix(prefix, _line_before(text, start)) or ""
    body, end = ([], begin) if before.startswith(_HARMLESS) else _body(text, begin, limit, prefix)
    exception = _EXCEPTION.match(body[-1]) if body else None
    if exception is None:
        return None
    more, end = _more_of_message(text, end, limit, prefix)
    group, end = _group(text, end, prefix) if _GROUP_HEADER.match(header[: header.find(HEADER)]) else ([], end)
    frames = [frame for line in body if (frame := FRAME.match(line))]
    thread = _THREAD.match(before)
    return Block(
        start=start,
        end=end,
        body=(HEADER, *body[:-1], _shortened("\n".join([body[-1], *more])), *group),
        prefix=prefix,
        type=exception["type"],
        message="\n".join([exception["message"] or "", *more]).strip(),
        where=_place(frames[-1]) if frames else None,
        thread=thread["name"] if thread else None,
    )


def _line_before(text: str, start: int) -> str:
    """Without the end of a line that is far too long."""
    begin = text.rfind("\n", 0, max(0, start - 1)) + 1
    return text[begin : max(0, start - 1)][:LONGEST_TITLE]


def _body(text: str, start: int, limit: int, prefix: str) -> tuple[list[str], int]:
    """The frames, which are indented, and the line after them, which tells the exception. Empty if it is cut off."""
    body: list[str] = []
    for raw, after in lines_of(text, start, limit):
        line = without_prefix(prefix, raw)
        if not line:
            break
        body.append(line)
        if not line[0].isspace():
            return body, after
    return [], start


def _more_of_message(text: str, start: int, limit: int, prefix: str) -> tuple[list[str], int]:
    """Further lines of a message can be told from other output only if they begin alike ("[rank0]: "), or are indented."""
    more: list[str] = []
    for raw, after in islice(lines_of(text, start, limit), MESSAGE_LINES):
        line = without_prefix(prefix, raw)
        if not line or not (prefix or _INDENTED.match(line)):
            break
        more.append(line)
        start = after
    return more, start


def _group(text: str, start: int, prefix: str) -> tuple[list[str], int]:
    """The exceptions in a group, as they are printed below it, in a frame."""
    indent = prefix.removesuffix("| ")
    lines: list[str] = []
    for raw, after in lines_of(text, start, len(text)):
        if not IN_GROUP.match(raw):
            break
        lines.append(raw.rstrip("\r").removeprefix(indent))
        start = after
    left_out = len(lines) - GROUP_LINES
    return (lines if left_out <= 0 else [*lines[:GROUP_LINES], f"… {left_out} more lines"]), start


def _shortened(exception: str) -> str:
    left_out = len(exception) - MESSAGE_CHARS
    return exception if left_out <= 0 else f"{exception[:MESSAGE_CHARS]}… {left_out} more characters"


def prefix_of(header: str, following: str) -> str:
    """What the header's line, and with it every line of its traceback, begins with."""
    prefix = header.partition(HEADER)[0].rpartition("\r")[2].removesuffix("Original ")
    if group := _GROUP_HEADER.match(prefix):
        prefix = f"{group[1]}| "
    return prefix if following.startswith(prefix) else ""


def without_prefix(prefix: str, line: str) -> str | None:
    """None for a line that does not begin so."""
    line = line.rstrip("\r")
    if line.startswith(prefix):
        return line[len(prefix) :]
    return "" if line == prefix.rstrip() else None


def _place(frame: re.Match[str]) -> str:
    name = frame["file"].replace("\\", "/").rpartition("/")[2]
    return f"{name}:{frame['line']} in {frame['function']}" if frame["function"] else f"{name}:{frame['line']}"
