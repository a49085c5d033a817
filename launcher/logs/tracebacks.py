"""Find the Python tracebacks in a program's output, with the exceptions that led to them; and each rank's first one.

The text is any output of a failing program. Nothing here raises, and the cost per byte is small: hundreds of ranks may
fail at once, each with a long log.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, dropwhile, islice, pairwise

from launcher.core.frozen import frozen
from launcher.logs.lines import Line
from launcher.logs.traceback_blocks import (
    END_OF_REMOTE,
    EXCEPTION,
    FRAME,
    HEADER,
    LINKS,
    MAX_TITLE_CHARS,
    Block,
    blocks_from_first,
    blocks_from_last,
    lines_of,
    outside_group,
    without_prefix,
)

TRACEBACK_CHARS = 8000
NEAR_BYTES = 16 << 10  # of a log's end, which usually contains the traceback
MAX_LINES_AFTER = 100  # lines counted after a traceback
FIRST_BYTES = 256 << 10  # of a log, from the line before a header, read as one text
MAX_MIXED = 16  # processes whose mixed tracebacks are told apart
LINES_OF_LINK = 4  # lines between two tracebacks of one chain: empty, the sentence, empty; and the end of the first

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# Tracebacks that several processes wrote to the log at the same time: two headers before any exception.
_MIXED = re.compile(
    rf"^{re.escape(HEADER)}\n(?:[ \t].*\n|\n){{,200}}?.*{re.escape(HEADER)}\n(?:.*\n){{,200}}", re.MULTILINE
)
_REPEATED = re.compile(r"^ *(\S.*?)\1+$")
_WORDS = re.compile(r"\S[^\n]*")

# Output of a crash without a traceback; for a SyntaxError of the script itself, the lines before it give the place.
_CRASHES = (
    b"Fatal Python error: ",
    b"terminate called after throwing",
    b"SyntaxError: ",
    b"IndentationError: ",
    b"TabError: ",
)
MARKS = (HEADER.encode(), *_CRASHES)  # every failure that `first_tracebacks` finds has one
_LINES_OF_PLACE = 3
_PLACE = b'  File "'
_NUMBER = re.compile(r"0[xX][\da-fA-F]+|\d+")
# The outermost functions of a program, of `python -m`, and of a multiprocessing process.
_ENTRIES = frozenset({"<module>", "_run_module_as_main", "_bootstrap"})


@frozen
class FoundTraceback:
    type: str  # as printed: "ValueError", "torch.distributed.DistNetworkError"
    message: str
    where: str | None  # the innermost frame in the program's own code, or of all: "train.py:88 in step"
    text: str  # with the exceptions that led to it; its last `TRACEBACK_CHARS` characters, messages shortened
    thread: str | None = None  # its name if it was not the main thread: then the program continued
    lines_after: int = 0  # later output of the program, up to `MAX_LINES_AFTER`; many lines mean that it survived


def find_traceback(text: str) -> FoundTraceback | None:
    """Return the last traceback in `text`, preferably one of the main thread. The exception may be fatal or caught."""
    text = _COLOUR.sub("", text)
    chain = _last_chain(text)
    return _found(chain, text) if chain else None


def traceback_in(log: bytes) -> FoundTraceback | None:
    """Return the last traceback in the end of a log. To save time, the last 16 KiB are searched first."""
    if HEADER.encode() not in log:
        return None
    near = _plain(log[-NEAR_BYTES:])
    chain = _last_chain(near)
    if len(log) > NEAR_BYTES:
        # Text directly before the chain may belong to it, and may be cut off here.
        before = near[max(0, chain[0].start - MAX_TITLE_CHARS) : chain[0].start] if chain else ""
        continues = before.count("\n") < LINES_OF_LINK or any(link in before for link in LINKS)
        if not chain or chain[-1].thread or continues:
            return find_traceback(_plain(log))
    return _found(chain, near) if chain else None


def tracebacks_above(log: bytes) -> list[FoundTraceback]:
    """Return all tracebacks except the last one, in order. `lines_after` counts only lines before the last one."""
    text = _MIXED.sub(unmixed, _plain(log))
    chain = _last_chain(text)
    return list(tracebacks_in(text[: chain[0].start])) if chain else []


def unmixed(match: re.Match[str]) -> str:
    """Separate a traceback that several processes wrote at once. Return the text unchanged if their exceptions differ.

    Python writes "ValueError", ": ", the message and the line's end separately. Two processes that write to one file can
    therefore leave "ValueErrorValueError: : nono", or "ValueError: ValueErrorno: " and "no" on the next line.
    """
    lines = match[0].splitlines()
    headers = list(accumulate(line.count(HEADER) for line in lines))  # up to and including each line
    for number in range(2, len(lines)):
        for copies in range(min(MAX_MIXED, headers[number - 1]), 0, -1):
            exception = exception_of("".join(lines[number : number + copies]), copies)
            if exception is not None:
                above = (line.replace(HEADER, "").rstrip() for line in lines[:number] if line[:1].isspace())
                frames = dict.fromkeys(_REPEATED.sub(r"    \1", line) for line in above if line.strip("^~ "))
                return "\n".join([HEADER, *frames, exception, "", *lines[number + copies :], ""])
    return match[0]


def exception_of(mixed: str, copies: int) -> str | None:
    """Return "name: message" if `mixed` is one exception that `copies` processes printed at once, else None."""
    chars = len(mixed) // copies - len(": ")  # of one name and message
    for length in range(len("Error"), min(chars, MAX_TITLE_CHARS)):
        name, message = mixed[:length], mixed[length - chars :]
        is_whole = name.endswith(("Error", "Exception", "Interrupt")) and message[:2] != ": "
        if is_whole and EXCEPTION.match(name) and mixed.replace(message, "").replace(": ", "") == name * copies:
            return f"{name}: {message}"
    return None


def tracebacks_in(text: str) -> Iterator[FoundTraceback]:
    """Yield every traceback in `text`, first one first. A chain of exceptions is one traceback."""
    text = _COLOUR.sub("", text)
    chain: list[Block] = []
    for block in blocks_from_first(text):
        if chain and not _linked(text, chain[-1].end, block.start, block.prefix):
            # Below its own exception, torch shows that of the data worker which caused it.
            first_line = next(lines_of(text, block.start, len(text)))[0]
            if chain[-1].end != block.start or f"Original {HEADER}" not in first_line:
                yield _found(chain, text)
            chain = []
        chain.append(block)
    if chain:
        yield _found(chain, text)


def frames_in(traceback: str) -> list[tuple[str, str]]:
    """Return the file and function of every frame in a traceback, innermost last."""
    lines = ((line, line.find(' File "')) for line in traceback.splitlines())
    found = (FRAME.match(line, at) for line, at in lines if at >= 0)
    return [(frame["file"], frame["function"] or "") for frame in found if frame]


def may_be_uncaught(found: FoundTraceback) -> bool:
    """Return False if no frame is at the program's top level. An exception handler has then printed the traceback."""
    functions = [function for _, function in frames_in(found.text) if function]
    is_whole = len(found.text) < TRACEBACK_CHARS
    return found.thread is not None or not functions or not is_whole or not _ENTRIES.isdisjoint(functions)


def _plain(data: bytes) -> str:
    return _COLOUR.sub("", data.decode(errors="replace"))


def _last_chain(text: str) -> list[Block]:
    of_thread: list[Block] = []
    for block in blocks_from_last(text, len(text)):
        if block.thread is None:
            return _chain(block, text)
        of_thread = of_thread or [block]
    return _chain(of_thread[0], text) if of_thread else []


def _found(chain: Sequence[Block], text: str) -> FoundTraceback:
    block = chain[-1]
    lines: list[str] = []  # of the exceptions in the chain, with the sentences that link them
    for earlier, each in pairwise([None, *chain]):
        between = text[earlier.end : each.start] if earlier and each else ""
        lines += [f"\n{link}\n" for link in LINKS if link in between]
        lines += each.body if each else ()
    return FoundTraceback(
        type=block.type,
        message=block.message,
        where=block.where,
        text="\n".join(lines)[-TRACEBACK_CHARS:],
        thread=block.thread,
        lines_after=sum(1 for _ in islice(_WORDS.finditer(text, block.end), MAX_LINES_AFTER)),
    )


def _chain(block: Block, text: str) -> list[Block]:
    """Return the chained exceptions that led to `block`, first one first, and `block` itself."""
    chain = [block]
    for earlier in blocks_from_last(text, block.start):
        if not _linked(text, earlier.end, chain[0].start, block.prefix):
            break
        chain.insert(0, earlier)
    return chain


def _linked(text: str, start: int, end: int, prefix: str) -> bool:
    """Return True if the text between two tracebacks is only a sentence that links exceptions."""
    if end - start > MAX_TITLE_CHARS:
        return False
    prefix = outside_group(prefix)
    between = [without_prefix(prefix, line) for line, _ in lines_of(text, start, end)]
    return [line for line in between if line and line != END_OF_REMOTE] in [[link] for link in LINKS]


# --- the first of each rank ---


@frozen
class Folded:
    """An exception that one or more ranks raised."""

    ranks: tuple[int, ...]  # global ranks, ascending
    traceback: FoundTraceback  # of the lowest rank


def first_tracebacks(lines_of_rank: Mapping[int, Iterable[Line]]) -> list[Folded]:
    """Find the first traceback of each rank, and group equal tracebacks. The main thread's traceback is preferred.

    For a rank without one, return other crash output of Python or C++. Tracebacks with the same frames and exception
    are grouped, even if numbers in their messages differ. Reads only as many of a rank's lines as needed, and keeps at
    most `FIRST_BYTES`.
    """
    alike: dict[str, list[tuple[int, FoundTraceback]]] = {}
    for global_rank in sorted(lines_of_rank):
        crashes: list[FoundTraceback] = []
        of_thread: FoundTraceback | None = None
        found: FoundTraceback | None = None
        texts = _texts_with_headers(_with_crashes(lines_of_rank[global_rank], crashes))
        for each in (each for text in texts for each in tracebacks_in(text)):
            if each.thread is None:
                found = each
                break
            of_thread = of_thread or each
        found = found or next(iter(crashes), of_thread)
        if found:
            lines = found.text.splitlines()
            key = "\n".join(line if line[:1].isspace() else _NUMBER.sub("0", line) for line in lines)
            alike.setdefault(key, []).append((global_rank, found))
    return [Folded(tuple(rank for rank, _ in of_ranks), of_ranks[0][1]) for of_ranks in alike.values()]


def cause_first(errors: list[Folded], cause: tuple[int, str] | None) -> list[Folded]:
    """Return the errors with the cause of a failure first, which is a global rank and its traceback.

    The cause need not be the rank's first traceback, and is added to the errors if they do not have it.
    """
    found = find_traceback(cause[1]) if cause else None
    if cause is None or found is None:
        return errors
    same = [one for one in errors if cause[0] in one.ranks and _exception(one.traceback) == _exception(found)]
    return [*(same or [Folded((cause[0],), found)]), *(one for one in errors if one not in same)]


def _exception(found: FoundTraceback) -> tuple[str, str]:
    return found.type, found.message


def _with_crashes(lines: Iterable[Line], crashes: list[FoundTraceback]) -> Iterator[Line]:
    """Yield the lines unchanged, and add the first crash among them to `crashes`."""
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
    """Yield texts that begin one line before a traceback's header. A traceback that is cut off is yielded again."""
    text = bytearray()
    before = b""  # the line before the header, which names the thread
    for line in lines:
        if text or HEADER.encode() in line.raw:
            text += (b"" if text else before) + _with_end(line)
        before = _with_end(line)
        if len(text) >= FIRST_BYTES:
            yield text.decode(errors="replace")
            # Continue at the line before the last header, unless the text begins there.
            header_line = text.rfind(b"\n", 0, text.rfind(HEADER.encode())) + 1
            start = text.rfind(b"\n", 0, max(0, header_line - 1)) + 1
            del text[: start or len(text)]
    if text:
        yield text.decode(errors="replace")


def _with_end(line: Line) -> bytes:
    return line.raw + b"\n" * line.ends
