"""Find what every rank raised first, once for all that raised the same."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import dropwhile

from launcher.core.frozen import frozen
from launcher.logs.lines import Line
from launcher.logs.traceback_blocks import HEADER
from launcher.logs.tracebacks import TRACEBACK_CHARS, FoundTraceback, tracebacks_in

FIRST_BYTES = 256 << 10  # of a log, from the line before a header on, that are read as one text

_HEADER = HEADER.encode()
# What ends a program without a traceback; of a SyntaxError of the script itself the lines before it give the place.
_CRASHES = (
    b"Fatal Python error: ",
    b"terminate called after throwing",
    b"SyntaxError: ",
    b"IndentationError: ",
    b"TabError: ",
)
_LINES_OF_PLACE = 3
_PLACE = b'  File "'
_NUMBER = re.compile(r"0[xX][\da-fA-F]+|\d+")


@frozen
class Folded:
    """An exception that several ranks raised alike."""

    ranks: tuple[int, ...]  # global ranks, ascending
    traceback: FoundTraceback  # of the first of them


def first_tracebacks(lines_of_rank: Mapping[int, Iterable[Line]]) -> list[Folded]:
    """Return the first traceback of each rank, one of the main thread if there is one, in the order of the lowest ranks.

    Where a rank has none, what else Python or C++ print of a crash. Those with the same frames and exception are one,
    though numbers in messages differ. Of every rank's lines as many are read as it takes, and at most `FIRST_BYTES` kept.
    """
    alike: dict[str, list[tuple[int, FoundTraceback]]] = {}
    for global_rank in sorted(lines_of_rank):
        if found := _first(lines_of_rank[global_rank]):
            lines = found.text.splitlines()
            key = "\n".join(line if line[:1].isspace() else _NUMBER.sub("0", line) for line in lines)
            alike.setdefault(key, []).append((global_rank, found))
    return [Folded(tuple(rank for rank, _ in of_ranks), of_ranks[0][1]) for of_ranks in alike.values()]


def _first(lines: Iterable[Line]) -> FoundTraceback | None:
    """Return the first traceback in these lines, else the first crash, else the first traceback of another thread."""
    of_thread: FoundTraceback | None = None
    crashes: list[FoundTraceback] = []
    for text in _texts_with_headers(_with_crashes(lines, crashes)):
        for found in tracebacks_in(text):
            if found.thread is None:
                return found
            of_thread = of_thread or found
    return crashes[0] if crashes else of_thread


def _with_crashes(lines: Iterable[Line], crashes: list[FoundTraceback]) -> Iterator[Line]:
    """Yield the same lines; put the first crash among them into `crashes`."""
    before: deque[bytes] = deque(maxlen=_LINES_OF_PLACE)
    for line in lines:
        if line.raw.startswith(_CRASHES) and not crashes:
            place = dropwhile(lambda each: not each.startswith(_PLACE), before)
            text = b"\n".join([*place, line.raw]).decode(errors="replace")[:TRACEBACK_CHARS]
            kind, _, message = line.raw.decode(errors="replace").partition(": ")
            crashes.append(FoundTraceback(type=kind, message=message, where=None, text=text))
        before.append(line.raw)
        yield line


def _texts_with_headers(lines: Iterable[Line]) -> Iterator[str]:
    """Yield texts that begin with the line before a header. A traceback that one text cuts off is whole in the next."""
    text = bytearray()
    before = b""  # the line before, which names the thread
    for line in lines:
        if text or _HEADER in line.raw:
            text += (b"" if text else before) + _with_end(line)
        before = _with_end(line)
        if len(text) >= FIRST_BYTES:
            yield text.decode(errors="replace")
            # Go on at the line before the last header, unless the text begins there.
            header_line = text.rfind(b"\n", 0, text.rfind(_HEADER)) + 1
            start = text.rfind(b"\n", 0, max(0, header_line - 1)) + 1
            del text[: start or len(text)]
    if text:
        yield text.decode(errors="replace")


def _with_end(line: Line) -> bytes:
    return line.raw + b"\n" * line.ends
