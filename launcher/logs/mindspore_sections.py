"""The sections of MindSpore's messages, each a title between two rules and a text, which may have empty lines.

----------------------------------------------------
- Kernel error:
----------------------------------------------------
Launch kernel failed: Default/AllReduce-op0
"""

from __future__ import annotations

import re

_TITLE = re.compile(r"^-{20,}\n- (?P<title>[^\n]{1,80}?):[^\n]*\n-{20,}\n", re.MULTILINE)
_FIRST = re.compile(rf"\s{{0,8}}{_TITLE.pattern}", re.MULTILINE)
_TEXT_CHARS = 4000  # of one section that are looked at in a log


def begins_with_section(message: str) -> bool:
    return _TITLE.match(message) is not None


def sections_of(message: str) -> dict[str, str]:
    """Return the text of each section by its title, in their order."""
    _, *parts = _TITLE.split(message)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def end_of_sections(log: str, start: int, before: str) -> int:
    """Return where those end that begin at `start` in a log; `start` where there are none.

    That is at the first empty line in the last one, or in front of a line that has `before`.
    """
    end, found = start, _FIRST.match(log, start)
    while found:
        begin = found.end()
        stop = min(begin + _TEXT_CHARS, len(log))
        barred = log.find(before, begin, stop)
        stop = stop if barred < 0 else log.rfind("\n", 0, barred) + 1
        found = _TITLE.search(log, begin, stop)
        blank = log.find("\n\n", begin, stop)
        end = stop if blank < 0 else blank + 1
    return end
