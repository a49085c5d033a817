"""Warns of ranks that exited with 0 although their log ends with a traceback: a shell may have lost the exit code.

`python train.py | tee log` and `python train.py || true` exit with 0 whatever happens to the program.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from launcher.core.text import ranges

LAST_BYTES = 16 << 10
_HEADER = b"Traceback (most recent call last):"


def doubtful_ends(logs: Mapping[int, tuple[Path, int]], programs: Mapping[int, Path] | None = None) -> Iterator[str]:
    """Yield a warning for each exception, with the ranks that exited with 0 after it.

    `logs`: by global rank, the log and the offset at which the attempt begins. `programs`: the files that ranks run in a
    Python of their own, which exits with 1 after an uncaught exception. Never raises.
    """
    ranks_of: dict[str, list[int]] = {}
    for global_rank, (log, offset) in logs.items():
        for words in _last_words(log, offset, (programs or {}).get(global_rank)):
            ranks_of.setdefault(words, []).append(global_rank)
    for words, ranks in ranks_of.items():
        who, whose = ("rank", "its log ends") if len(ranks) == 1 else ("ranks", "their logs end")
        first, _ = logs[ranks[0]]
        yield f"{who} {ranges(ranks)} exited with 0, but {whose} with a traceback: {words}; log in {first}"


def _last_words(log: Path, offset: int, program: Path | None) -> Iterable[str]:
    """Return the exception of the traceback at the end of a log; nothing if there is none, or it was handled."""
    from launcher.logs.log_file import tail  # noqa: PLC0415 - only once all ranks have ended

    try:
        end = tail(log, offset, LAST_BYTES)
    except OSError:
        return ()
    if _HEADER not in end:
        return ()
    from launcher.logs.tracebacks import frames_in, may_be_uncaught, traceback_in  # noqa: PLC0415 - few logs end so
    from launcher.preload.masking import masked_text  # noqa: PLC0415 - as above

    found = traceback_in(end)
    if found is None or found.lines_after or not may_be_uncaught(found):
        return ()
    frames = frames_in(found.text)
    if program is not None and found.thread is None and frames and Path(frames[0][0]) == program:
        return ()
    first_line = found.message.partition("\n")[0]
    what = masked_text(f"{found.type}: {first_line}" if first_line else found.type)
    return (f"{what}, at {found.where}" if found.where else what,)
