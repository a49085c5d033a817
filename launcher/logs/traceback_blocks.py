"""Find single tracebacks in a text, from "Traceback (most recent call last):" to the exception.

Only headers are searched for; lines are read only around them, so the cost per byte of a long text is small.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from launcher.core.frozen import frozen
from launcher.logs.message_sections import SectionLines
from launcher.preload.frames import LINK_OF_CAUSE, LINK_OF_CONTEXT, innermost

MESSAGE_LINES = 12  # lines of a message after its first
SECTION_LINES = 400  # lines of a message's sections
MESSAGE_CHARS = 2000  # shown of an exception and its message
GROUP_LINES = 200  # lines shown of the exceptions in a group
MAX_TRACEBACKS = 500  # tracebacks examined, from the last: a program may print any number
MAX_TITLE_CHARS = 2000  # characters examined between two tracebacks, or in the line before one
_MAX_HEADERS = 4  # headers in the lines of one traceback: source lines may quote one

HEADER = "Traceback (most recent call last):"
_GROUP_HEADER = re.compile(r"^(.*?)\+ Exception Group $")
_RULE = re.compile(r"={20,}$")  # above and below torchrun's table of failed processes
_MARK = r"(?:\[\w+\]:)?"  # torch's prefix of each line, "[rank0]: "
_IN_GROUP = re.compile(rf"{_MARK}\s+(?:\||\+[-+])")
_END_OF_GROUP = re.compile(rf"{_MARK}\s+\+-+$")
_FRAME_OF_GROUP = "  | "
_INDENTED = re.compile(r"(?:\t|  )[^\r]*$")
FRAME = re.compile(r'\s+File "(?P<file>.+?)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
_NAME = r"(?:(?!\d)\w+|<\w+>)(?:\.(?:\w+|<\w+>))*"  # also for a class in a function: "f.<locals>.Full"
EXCEPTION = re.compile(rf"(?P<type>{_NAME})(?:: (?P<message>.*)|:?)$")
_BEGINS_MESSAGE = re.compile(rf"(?P<prefix>(?:.*: )?){_NAME}: $")
_THREAD = re.compile(r"Exception in thread (?P<name>.+?)(?: \(.*\))?:$")
LINKS = (LINK_OF_CAUSE, LINK_OF_CONTEXT)
END_OF_REMOTE = '"""'  # ends a traceback that multiprocessing shows from another process
# Python prints these for exceptions that change neither the course nor the exit code of a program.
_HARMLESS = ("Exception ignored in", "Exception ignored while", "Error in atexit", "Error in sys.excepthook")


@frozen
class Block:
    """One traceback in a text, from its header to its exception. `start` and `end` are positions in the text."""

    start: int
    end: int
    body: tuple[str, ...]  # without the prefix of each line, such as torch's "[rank0]: "
    prefix: str
    type: str
    message: str
    where: str | None  # the innermost frame in the program's own code, or the innermost of all
    thread: str | None


def blocks_from_first(text: str) -> Iterator[Block]:
    """Yield the complete tracebacks in `text`. Skip tracebacks in exception groups and in messages."""
    header = text.find(HEADER)
    while header >= 0:
        block = _block_of(text, header)
        if block:
            yield block
        header = text.find(HEADER, max(header + len(HEADER), block.end if block else 0))


def blocks_from_last(text: str, end: int) -> Iterator[Block]:
    """Yield the complete tracebacks before position `end`, last one first, up to `MAX_TRACEBACKS`."""
    for _ in range(MAX_TRACEBACKS):
        header = text.rfind(HEADER, 0, end)
        if header < 0:
            return
        block = _block_of(text, header)
        end = _line_start(text, header)
        if block:
            yield block


def _block_of(text: str, header: int) -> Block | None:
    """Return the traceback whose header is at position `header`, or None if it is incomplete or inside another one."""
    start, behind = _line_start(text, header), header + len(HEADER)
    if text[behind : behind + 1] not in {"", "\n", "\r"}:
        return None  # quoted in a source line
    if _IN_GROUP.match(text, start, header):
        return None
    name = _BEGINS_MESSAGE.match(text[start:header]) if header - start <= MAX_TITLE_CHARS else None
    if name and (without_prefix(name["prefix"], _line_before(text, start)) or "")[:1].isspace():
        return None  # the message of an exception: after its name, below the frames
    return _block(text, start)


def _line_start(text: str, place: int) -> int:
    return text.rfind("\n", 0, place) + 1


def lines_of(text: str, start: int, end: int) -> Iterator[tuple[str, int]]:
    """Yield every line from position `start` on, with the position of the next line."""
    while start < end:
        stop = text.find("\n", start, end)
        stop = end if stop < 0 else stop
        yield text[start:stop], min(stop + 1, end)
        start = stop + 1


def _block(text: str, start: int) -> Block | None:
    """Return the traceback whose header line starts at `start`, or None if it is incomplete or can be ignored."""
    header, begin = next(lines_of(text, start, len(text)))
    prefix = prefix_of(header, text[begin : begin + len(header)])
    before = without_prefix(outside_group(prefix), _line_before(text, start)) or ""
    body, end = ([], begin) if before.startswith(_HARMLESS) else _body(text, begin, prefix)
    exception = EXCEPTION.match(body[-1]) if body else None
    if exception is None:
        return None
    more, end = _more_of_message(text, end, prefix, quotes=body[-1].endswith(HEADER))
    group, end = _group(text, end, prefix) if begins_group(header) else ([], end)
    frames = [frame for line in body if (frame := FRAME.match(line))]
    where = None
    if frames:
        frame = innermost(frames, lambda frame: frame["file"])
        name = frame["file"].replace("\\", "/").rpartition("/")[2]
        where = f"{name}:{frame['line']}" + (f" in {frame['function']}" if frame["function"] else "")
    thread = _THREAD.match(before)
    shown = "\n".join([body[-1], *more])
    if len(shown) > MESSAGE_CHARS:
        shown = f"{shown[:MESSAGE_CHARS]}… {len(shown) - MESSAGE_CHARS} more characters"
    return Block(
        start=start,
        end=end,
        body=(HEADER, *body[:-1], shown, *group),
        prefix=prefix,
        type=exception["type"],
        message="\n".join([exception["message"] or "", *more]).strip(),
        where=where,
        thread=thread["name"] if thread else None,
    )


def _line_before(text: str, start: int) -> str:
    begin = text.rfind("\n", 0, max(0, start - 1)) + 1
    return text[begin : max(0, start - 1)][:MAX_TITLE_CHARS]


def _body(text: str, start: int, prefix: str) -> tuple[list[str], int]:
    """Return a traceback's lines after the header, and their end position. If it is incomplete, return no lines."""
    body: list[str] = []
    headers = 0
    for raw, after in lines_of(text, start, len(text)):
        line = without_prefix(prefix, raw)
        headers += HEADER in raw
        if not line or headers > _MAX_HEADERS:
            break
        body.append(line)
        if not line[0].isspace():
            return body, after
    return [], start


def _more_of_message(text: str, start: int, prefix: str, *, quotes: bool) -> tuple[list[str], int]:
    """Return the lines of an exception's message after the first line, and their end position.

    The lines have the same prefix ("[rank0]: ") or are indented. `quotes`: the message begins with a traceback's
    header.
    """
    more, start = _body(text, start, prefix) if quotes else ([], start)
    for raw, after in islice(lines_of(text, start, len(text)), MESSAGE_LINES):
        line = without_prefix(prefix, raw)
        if not line or HEADER in line or line == END_OF_REMOTE or not (prefix or _INDENTED.match(line)):
            break
        more.append(line)
        start = after
    table, start = _table(text, start, prefix)
    sections, start = _sections(text, start, prefix)
    return [*more, *table, *sections], start


def _table(text: str, start: int, prefix: str) -> tuple[list[str], int]:
    """Return the lines of torchrun's table of failed processes, if there is one, and their end position."""
    lines: list[str] = []
    for raw, after in islice(lines_of(text, start, len(text)), SECTION_LINES):
        line = without_prefix(prefix, raw)
        is_rule = line is not None and _RULE.match(line) is not None
        if line is None or not (lines or is_rule):
            break
        lines.append(line)
        if is_rule and len(lines) > 1:
            return lines, after
    return [], start


def _sections(text: str, start: int, prefix: str) -> tuple[list[str], int]:
    """Return the lines of the sections of a MindSpore message, if it has any, and their end position."""
    found = SectionLines()
    lines: list[str] = []
    end = start
    for raw, after in islice(lines_of(text, start, len(text)), SECTION_LINES):
        line = without_prefix(prefix, raw)
        if line is None or not found.holds(line):
            break
        lines.append(line)
        end = after
    return (lines, end) if found.title else ([], start)


def _group(text: str, start: int, prefix: str) -> tuple[list[str], int]:
    indent, mark = prefix.removesuffix("| "), outside_group(prefix)
    frame = GroupFrame()
    lines: list[str] = []
    outside: list[str] = []
    for raw, after in lines_of(text, start, len(text)):
        line = raw.rstrip("\r")
        if frame.holds(line):
            lines += [*outside, line.removeprefix(indent)]
            outside, start = [], after
        elif frame.is_over:
            break
        else:
            outside.append(line.removeprefix(mark))
    left_out = len(lines) - GROUP_LINES
    return (lines if left_out <= 0 else [*lines[:GROUP_LINES], f"… {left_out} more lines"]), start


class GroupFrame:
    """Decides for each line whether it is in the frame of `|` that Python prints around an exception group.

    Up to Python 3.12, all but the first line of a message are outside the frame, which continues after them.
    """

    def __init__(self) -> None:
        self.is_over = False
        self._outside_lines = 0
        self._is_closed = False

    def holds(self, line: str) -> bool:
        """Return True if a line is in the frame. If the frame continues later, lines in between belong to the group."""
        if _IN_GROUP.match(line):
            self._outside_lines, self._is_closed = 0, _END_OF_GROUP.match(line) is not None
            return True
        self._outside_lines += 1
        self.is_over = self._is_closed or self._outside_lines > MESSAGE_LINES or HEADER in line
        return False


def prefix_of(header: str, following: str) -> str:
    """Return the prefix, such as "[rank0]: ", of both a traceback's header and the next line, or "" if they differ."""
    prefix = _before_header(header).removesuffix("Original ")
    if group := _GROUP_HEADER.match(prefix):
        prefix = f"{group[1]}| "
    return prefix if following.startswith(prefix) else ""


def _before_header(line: str) -> str:
    return line.partition(HEADER)[0].rpartition("\r")[2]


def begins_group(header: str) -> bool:
    return _GROUP_HEADER.match(_before_header(header)) is not None


def outside_group(prefix: str) -> str:
    """Return the prefix of the lines directly above and below the frame of an exception group."""
    return prefix.removesuffix(_FRAME_OF_GROUP)


def without_prefix(prefix: str, line: str) -> str | None:
    """Return `line` without `prefix`, or None if `line` does not start with `prefix`."""
    line = line.rstrip("\r")
    if line.startswith(prefix):
        return line[len(prefix) :]
    return "" if line == prefix.rstrip() else None


class TracebackLines:
    """Decides for each line of one rank whether it is part of a traceback. Lines must come in order."""

    def __init__(self) -> None:
        self.continues = False  # the last line belongs to the traceback, message or chain of exceptions before it
        self._header: str | None = None  # the last line if it is a header: the next line shows the common prefix
        self._prefix: str | None = None  # of the current traceback
        self._raised: str | None = None  # prefix of a traceback that has reached its exception and may continue
        self._is_linked = False  # a linking sentence announced another exception
        self._sections = SectionLines()  # of the last exception's message

    def put(self, text: str) -> int | None:
        """Return the column at which traceback text begins in the next line, or None if the line has none."""
        if self._header is not None:
            self._prefix = prefix_of(self._header, text)
            self._header = None
        header = text.find(HEADER)
        if header >= 0 and text.endswith(HEADER):
            self.continues = (
                self._is_linked
                or self._sections.is_traceback
                or (self._raised is not None and _IN_GROUP.match(text) is not None)
            )
            self._sections = SectionLines()
            self._header, self._raised, self._is_linked = text, None, False
            return header
        if self._prefix is None:
            self.continues = self._raised is not None and self._continues(self._raised, text)
            if not self.continues:
                self._raised, self._is_linked = None, False
            return None
        begins = len(self._prefix)
        body = without_prefix(self._prefix, text)
        self.continues = bool(body)
        if not (body and body[0].isspace()):
            self._prefix, self._raised = None, self._prefix if body else None
        return begins if body else None

    @property
    def is_within(self) -> bool:
        """True if the next line may belong to the same traceback as the last line."""
        return self._header is not None or self._prefix is not None or self._raised is not None

    def _continues(self, prefix: str, text: str) -> bool:
        """Return True if a line after an exception still belongs to it, or leads to the next exception of a chain."""
        mark = outside_group(prefix)
        rest = without_prefix(mark, text)
        self._is_linked |= rest in LINKS
        is_blank = not text.strip()
        in_section = rest is not None and self._sections.holds(rest)
        return (
            is_blank or in_section or self._is_linked or _IN_GROUP.match(text) is not None
            or (rest is not None and (bool(mark) or _INDENTED.match(rest) is not None))
        )  # fmt: skip
