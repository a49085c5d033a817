"""Python tracebacks in the text that a program printed, each with those that it was raised from.

The text is whatever a failing program wrote. Nothing raises, and little is done for each byte: hundreds of ranks fail at
once, each with a long log. So headers are looked for first, and lines are read only where one was found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise

from launcher.core.frozen import frozen

TRACEBACK_CHARS = 8000
MESSAGE_LINES = 12  # of a message, after its first
MESSAGE_CHARS = 2000  # of an exception and its message that are shown
GROUP_LINES = 200  # of the exceptions in a group that are shown
NEAR_BYTES = 16 << 10  # of a log's end, where a traceback mostly is
MOST_TRACEBACKS = 500  # that are looked at, the last ones: a program may print them without end
MOST_LINES_AFTER = 100  # that are counted
LONGEST_TITLE = 2000  # characters between two tracebacks, or in the line before one, that are looked at
LINES_OF_LINK = 4  # between two tracebacks of one chain: empty, the sentence, empty; and the end of the first

HEADER = "Traceback (most recent call last):"
_GROUP_HEADER = re.compile(r"^(\s*)\+ Exception Group $")
_IN_GROUP = re.compile(r"\s+(?:\||\+[-+])")
_INDENTED = re.compile(r"(?:\t|  )[^\r]*$")
_FRAME = re.compile(r'\s+File "(?P<file>.+?)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
_EXCEPTION = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(?:: ?(?P<message>.*))?$")
_THREAD = re.compile(r"Exception in thread (?P<name>.+?)(?: \(.*\))?:$")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# What Python prints of exceptions that change neither the course nor the exit code of a program.
_HARMLESS = ("Exception ignored in", "Exception ignored while", "Error in atexit", "Error in sys.excepthook")
_WORDS = re.compile(r"\S[^\n]*")
_LINKS = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)


@frozen
class FoundTraceback:
    """The last Python traceback of a log."""

    type: str  # as printed: "ValueError", "torch.distributed.DistNetworkError"
    message: str
    where: str | None  # the innermost frame, "train.py:88 in step"
    text: str  # with the exceptions that it was raised from; its last `TRACEBACK_CHARS` characters, messages cut
    first_cause: str | None = None  # of a chain: "KeyError: 'x' at data.py:8 in load", the exception it began with
    thread: str | None = None  # its name where it was not the main thread: the program went on
    lines_after: int = 0  # what the program still wrote, up to `MOST_LINES_AFTER`: many mean that it lived on


def find_traceback(text: str) -> FoundTraceback | None:
    """The last traceback, whether it ended the program or was caught; one of the main thread is preferred."""
    text = _COLOUR.sub("", text)
    chain = _last_chain(text)
    return _found(chain, text) if chain else None


def traceback_in(log: bytes) -> FoundTraceback | None:
    """As `find_traceback`, in the end of a log. Most of it is not decoded where its last part tells enough."""
    if HEADER.encode() not in log:
        return None
    near = _plain(log[-NEAR_BYTES:])
    chain = _last_chain(near)
    if len(log) > NEAR_BYTES and (not chain or chain[-1].thread or _continues(chain, near)):
        return find_traceback(_plain(log))
    return _found(chain, near) if chain else None


def tracebacks_in(text: str) -> Iterator[FoundTraceback]:
    """Every traceback, from the first on, each chain once."""
    text = _COLOUR.sub("", text)
    return (_found(chain, text) for chain in _chains_from_first(text))


def frames_in(traceback: str) -> list[tuple[str, str]]:
    """File and function of every frame, innermost last."""
    lines = ((line, line.find(' File "')) for line in traceback.splitlines())
    found = (_FRAME.match(line, at) for line, at in lines if at >= 0)
    return [(frame["file"], frame["function"] or "") for frame in found if frame]


def _chains_from_first(text: str) -> Iterator[list[_Block]]:
    """As `tracebacks_in`."""
    chain: list[_Block] = []
    for block in _blocks_from_first(text):
        if chain and not _linked(text, chain[-1].end, block.start, block.prefix):
            if not _is_original(text, chain[-1].end, block.start):
                yield chain
            chain = []
        chain.append(block)
    if chain:
        yield chain


def _is_original(text: str, end: int, start: int) -> bool:
    """Whether torch shows there, below an exception that it raised itself, the one of a data worker that it is about."""
    return end == start and f"Original {HEADER}" in next(_lines(text, start, len(text)))[0]


def _blocks_from_first(text: str) -> Iterator[_Block]:
    header = text.find(HEADER)
    while header >= 0:
        following = text.find(HEADER, header + len(HEADER))
        limit = len(text) if following < 0 else text.rfind("\n", 0, following) + 1
        start = text.rfind("\n", 0, header) + 1
        in_group = _IN_GROUP.match(text, start, header) is not None
        block = _block(text, start, limit) if start < limit and not in_group else None
        if block:
            yield block
        header = following


def _plain(data: bytes) -> str:
    return _COLOUR.sub("", data.decode(errors="replace"))


@frozen
class _Block:
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


def _last_chain(text: str) -> list[_Block]:
    """The last traceback, after those that led to it; empty where there is none."""
    of_thread: list[_Block] = []
    for block in _blocks_from_last(text, len(text)):
        if block.thread is None:
            return _chain(block, text)
        of_thread = of_thread or [block]
    return _chain(of_thread[0], text) if of_thread else []


def _blocks_from_last(text: str, end: int) -> Iterator[_Block]:
    """Only headers are looked for in the whole text: lines are read where one was found, and no others."""
    for _ in range(MOST_TRACEBACKS):
        header = text.rfind(HEADER, 0, end)
        if header < 0:
            return
        start = text.rfind("\n", 0, header) + 1
        block = None if _IN_GROUP.match(text, start, header) else _block(text, start, end)
        end = start
        if block:
            yield block


def _lines(text: str, start: int, end: int) -> Iterator[tuple[str, int]]:
    """Every line from `start` on, and where the next one begins."""
    while start < end:
        stop = text.find("\n", start, end)
        stop = end if stop < 0 else stop
        yield text[start:stop], min(stop + 1, end)
        start = stop + 1


def _block(text: str, start: int, limit: int) -> _Block | None:
    """The traceback whose header's line is at `start`, if it is a whole one that matters; `limit`: the next one's."""
    header, begin = next(_lines(text, start, limit))
    prefix = prefix_of(header, text[begin : begin + len(header)])
    before = _without(prefix, _line_before(text, start)) or ""
    body, end = ([], begin) if before.startswith(_HARMLESS) else _body(text, begin, limit, prefix)
    exception = _EXCEPTION.match(body[-1]) if body else None
    if exception is None:
        return None
    more, end = _more_of_message(text, end, limit, prefix)
    group, end = _group(text, end, prefix) if _GROUP_HEADER.match(header[: header.find(HEADER)]) else ([], end)
    frames = [frame for line in body if (frame := _FRAME.match(line))]
    thread = _THREAD.match(before)
    return _Block(
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
    for raw, after in _lines(text, start, limit):
        line = _without(prefix, raw)
        if not line:
            break
        body.append(line)
        if not line[0].isspace():
            return body, after
    return [], start


def _more_of_message(text: str, start: int, limit: int, prefix: str) -> tuple[list[str], int]:
    """Further lines of a message can be told from other output only if they begin alike ("[rank0]: "), or are indented."""
    more: list[str] = []
    for raw, after in islice(_lines(text, start, limit), MESSAGE_LINES):
        line = _without(prefix, raw)
        if not line or not (prefix or _INDENTED.match(line)):
            break
        more.append(line)
        start = after
    return more, start


def _group(text: str, start: int, prefix: str) -> tuple[list[str], int]:
    """The exceptions in a group, as they are printed below it, in a frame."""
    indent = prefix.removesuffix("| ")
    lines: list[str] = []
    for raw, after in _lines(text, start, len(text)):
        if not _IN_GROUP.match(raw):
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


def _without(prefix: str, line: str) -> str | None:
    """None for a line that does not begin so."""
    line = line.rstrip("\r")
    if line.startswith(prefix):
        return line[len(prefix) :]
    return "" if line == prefix.rstrip() else None


def _place(frame: re.Match[str]) -> str:
    name = frame["file"].replace("\\", "/").rpartition("/")[2]
    return f"{name}:{frame['line']} in {frame['function']}" if frame["function"] else f"{name}:{frame['line']}"


def _found(chain: Sequence[_Block], text: str) -> FoundTraceback:
    block = chain[-1]
    whole = "\n".join(_told(chain, text))
    return FoundTraceback(
        type=block.type,
        message=block.message,
        where=block.where,
        text=whole[-TRACEBACK_CHARS:],
        first_cause=chain[0].summary if len(chain) > 1 else None,
        thread=block.thread,
        lines_after=sum(1 for _ in islice(_WORDS.finditer(text, block.end), MOST_LINES_AFTER)),
    )


def _told(chain: Sequence[_Block], text: str) -> Iterator[str]:
    """The exceptions of a chain, with the sentences that link them."""
    for earlier, block in pairwise([None, *chain]):
        between = text[earlier.end : block.start] if earlier and block else ""
        yield from (f"\n{link}\n" for link in _LINKS if link in between)
        yield from block.body if block else ()


def _chain(block: _Block, text: str) -> list[_Block]:
    """The exceptions that led to `block`, the first one first."""
    chain = [block]
    for earlier in _blocks_from_last(text, block.start):
        if not _linked(text, earlier.end, chain[0].start, block.prefix):
            break
        chain.insert(0, earlier)
    return chain


def _linked(text: str, start: int, end: int, prefix: str) -> bool:
    """Whether nothing but one of the sentences that link exceptions stands there."""
    if end - start > LONGEST_TITLE:
        return False
    prefix = "" if _IN_GROUP.match(prefix) else prefix  # the frame of a group does not reach so far
    between = [_without(prefix, line) for line, _ in _lines(text, start, end)]
    return [line for line in between if line] in [[link] for link in _LINKS]


def _continues(chain: Sequence[_Block], text: str) -> bool:
    """Whether what stands before the chain may belong to it, as far as `text` tells, which may be the end of a longer one."""
    before = text[max(0, chain[0].start - LONGEST_TITLE) : chain[0].start]
    return before.count("\n") < LINES_OF_LINK or any(link in before for link in _LINKS)
