"""Parses messages of MindSpore's exceptions. Their first line may only refer to one of the sections below it.

Exception thrown from dataset pipeline. Refer to 'Dataset Pipeline Error Message'.

------------------------------------------------------------------
- Dataset Pipeline Error Message:
------------------------------------------------------------------
[ERROR] Invalid cifar10 file, failed to read data from: cifar/data_batch_1.bin

The message of a kernel that could not be launched has no first line; it starts with a section.
"""

from __future__ import annotations

import re
from itertools import groupby

from launcher.core.frozen import frozen
from launcher.logs.message_sections import CALL_STACK, NET_CODE, sections_in
from launcher.logs.tracebacks import find_traceback
from launcher.preload.frames import is_of_program

_REFERS = re.compile(r"(?:Refer to|check) '(?P<section>[^'\n]{1,80})'")
_LEVEL = re.compile(r"^\[[A-Z]+\] ?")
_FRAME = re.compile(
    r"^# (?:\d+ )?In file (?P<file>[^\n]+?):(?P<line>\d+)\b.*\n?(?:[ \t]+(?!\(See file )[^\n]*\n?)*", re.MULTILINE
)


@frozen
class Explained:
    """The cause of an exception, from the sections of its message."""

    what: str  # "KeyError: 'label of image 40'"
    where: str | None  # the line in the program's code, if it is not a frame of the exception
    traceback: str | None  # the frames that lead there, and the exception


def explained(kind: str, message: str, traceback: str | None) -> Explained:
    """Return the cause of an exception of class `kind`: a dataset exception, a line of the network, or itself."""
    before, sections = sections_in(message)
    raised = find_traceback(sections.get(CALL_STACK, ""))
    if raised is not None:
        return Explained(f"{raised.type}: {raised.message}", raised.where, raised.text)
    first = next(iter(sections.values()), "").strip()  # a kernel that failed has no text before it
    line = (before or first).partition("\n")[0]
    refers = _REFERS.search(line)
    section = sections.get(refers["section"], "").strip() if refers else ""
    said = _LEVEL.sub("", section.partition("\n")[0]) or line
    what = f"{kind}: {said}"
    frames = [frame for frame in _FRAME.finditer(sections.get(NET_CODE, "")) if is_of_program(frame["file"])]
    if frames:
        of_lines = [list(same)[-1] for _, same in groupby(frames, lambda frame: frame.group("file", "line"))]
        where = f"{frames[-1]['file'].rpartition('/')[2]}:{frames[-1]['line']}"
        return Explained(what, where, "\n".join([*(frame[0].rstrip() for frame in of_lines), what]))
    shown = f"{kind}: {before}"
    frames_before, found, _ = (traceback or "").rpartition(shown)
    return Explained(
        what, None, f"{frames_before}{shown if before else what}" if found and sections and not section else traceback
    )
