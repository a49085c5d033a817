"""Find the sections of a MindSpore error message. They follow the exception's line, after empty lines.

ValueError: For 'MatMul' the input dimensions must be equal, but got 'x1_col': 32 and 'x2_row': 31.

----------------------------------------------------
- The Traceback of Net Construct Code:
----------------------------------------------------
# 0 In file /home/me/train.py:18, 12~23
        x = self.fc2(x)
"""

from __future__ import annotations

import re
from typing import Literal

NET_CODE = "The Traceback of Net Construct Code"
CALL_STACK = "Python Call Stack"

_RULE = re.compile(r"-{20,}$")
_TITLE = re.compile(r"- (?P<title>[^\n]{1,80}?):[^\n]*$")
SECTION = re.compile(rf"^{_RULE.pattern}\n{_TITLE.pattern}\n{_RULE.pattern}\n", re.MULTILINE)
_LOGGED = re.compile(r"\[[A-Z]+\] \w+\(\d+,")  # a line of MindSpore's log
# Many messages end with this section, without an empty line before the next output.
_LINES_OF = {NET_CODE: re.compile(r"\s|# (?:\d+ )?In file "), "C++ Call Stack": re.compile(r"\S+\.\w+[:(]\d+")}


def sections_in(message: str) -> tuple[str, dict[str, str]]:
    """Split a MindSpore error message into the text before its sections, and the text of each section by title."""
    before, *parts = SECTION.split(message)
    return before.strip(), dict(zip(parts[::2], parts[1::2], strict=True))


class SectionLines:
    """Decides for each line after an exception whether it belongs to a section of a MindSpore error message."""

    def __init__(self) -> None:
        self.title = ""  # of the last section
        self._at: Literal["between", "rule", "title", "beginning", "text"] = "between"

    @property
    def is_traceback(self) -> bool:
        """True if the last line is in the section that contains a Python traceback."""
        return self._at in {"beginning", "text"} and self.title == CALL_STACK

    def holds(self, line: str) -> bool:
        """Return True if the next line belongs to a section or is an empty line between sections."""
        line = line.rstrip()
        known = _LINES_OF.get(self.title)
        match self._at:
            case "between" if not line:
                return True
            case "between" if _RULE.match(line):
                self._at = "rule"
            case "rule" if title := _TITLE.match(line):
                self._at, self.title = "title", title["title"]
            case "title" if _RULE.match(line):
                self._at = "beginning"
            case "beginning" if not line:
                pass
            case "beginning" | "text" if line and bool(known.match(line) if known else not _LOGGED.match(line)):
                self._at = "text"
            case "text" if not line:
                self._at = "between"
            case _:
                self._at = "between"
                return False
        return True
