"""What every rank raised first, once for all that raised the same."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping

from launcher.core.frozen import frozen
from launcher.logs.lines import Line
from launcher.logs.tracebacks import HEADER, FoundTraceback, tracebacks_in

FIRST_BYTES = 256 << 10  # of a log, from the line before a header on, that are read as one text

_HEADER = HEADER.encode()
_NUMBER = re.compile(r"0[xX][\da-fA-F]+|\d+")


@frozen
class Folded:
    """What several ranks raised alike."""

    ranks: tuple[int, ...]  # global ranks, ascending
    traceback: FoundTraceback  # of the first of them


def first_tracebacks(lines_of_rank: Mapping[int, Iterable[Line]]) -> list[Folded]:
    """The first traceback of each rank; one of the main thread is preferred. In the order of each one's lowest rank.

    Those with the same frames and exception are one, though numbers in messages differ. Of every rank's lines as many
    are read as it takes, and at most `FIRST_BYTES` kept.
    """
    alike: dict[str, list[tuple[int, FoundTraceback]]] = {}
    for global_rank in sorted(lines_of_rank):
        if found := _first(lines_of_rank[global_rank]):
            alike.setdefault(_without_numbers(found.text), []).append((global_rank, found))
    return [Folded(tuple(rank for rank, _ in of_ranks), of_ranks[0][1]) for of_ranks in alike.values()]


def _first(lines: Iterable[Line]) -> FoundTraceback | None:
    """In texts that begin shortly before a header, one after the other."""
    of_thread: FoundTraceback | None = None
    for text in _texts_with_headers(lines):
        for found in tracebacks_in(text):
            if found.thread is None:
                return found
            of_thread = of_thread or found
    return of_thread


def _texts_with_headers(lines: Iterable[Line]) -> Iterator[str]:
    lines = iter(lines)
    before: deque[Line] = deque(maxlen=1)  # tells whose traceback it is
    for line in lines:
        if _HEADER in line.raw:
            text = bytearray(b"".join(_with_end(kept) for kept in (*before, line)))
            for following in lines:
                text += _with_end(following)
                if len(text) >= FIRST_BYTES:
                    break
            yield text.decode(errors="replace")
        before.append(line)


def _with_end(line: Line) -> bytes:
    return line.raw + b"\n" * line.ends


def _without_numbers(traceback: str) -> str:
    """Its frames as they are, and its exceptions without what may differ from rank to rank."""
    lines = traceback.splitlines()
    return "\n".join(line if line[:1].isspace() else _NUMBER.sub("0", line) for line in lines)
