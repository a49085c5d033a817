"""Find the level of a log line, from the line itself or from the line it continues."""

from __future__ import annotations

import re

from launcher.core.errors import UsageError
from launcher.logs.lines import Line
from launcher.logs.message_sections import SectionLines
from launcher.logs.traceback_blocks import (
    END_OF_REMOTE,
    EXCEPTION,
    HEADER,
    GroupFrame,
    begins_group,
    outside_group,
    prefix_of,
)

LEVEL_CHARS = 160  # of a line, searched for its level
LEVELS = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "ERROR": 40, "CRITICAL": 50}

_LEVEL_OF = {**LEVELS, "TRACE": 10, "NOTICE": 20, "SUCCESS": 20, "WARN": 30, "FATAL": 50}
_GLOG_LEVELS = {"D": 10, "I": 20, "W": 30, "E": 40, "F": 50, "C": 50}
_PINO_LEVELS = {"10": 10, "20": 10, "30": 20, "40": 30, "50": 40, "60": 50}
_LEVELS_OF_GROUP = {"glog": _GLOG_LEVELS, "pino": _PINO_LEVELS}
LEVEL_NAMES = tuple(_LEVEL_OF)
_NAMES = "|".join(LEVEL_NAMES)
_LEVEL = re.compile(
    rf"(?<![A-Za-z\d])(?P<glog>[DIWEFC])(?:\d{{4}})?\d{{3,4}} \d\d:\d\d:\d\d"  # W1121 12:00:00
    rf"|\b(?P<word>{_NAMES})\b"  # WARNING:root:..., [WARNING] ..., ... - WARNING - ...
    rf"|(?i:\[ ?(?P<bracket>{_NAMES}) ?\]|^(?P<first>{_NAMES}): )"  # [warn], error: ...
    rf"|(?i:\b(?:level|levelname|severity|lvl)[\"']?[=:] ?[\"']?(?P<field>{_NAMES})\b)"  # "level": "info"
    r"|\b[A-Z]\w*(?P<python>Warning): "  # UserWarning: ...
    r"|\"level\": ?(?P<pino>[1-6]0)(?=[,}])"  # {"level":50, ...
    r"|^(?P<crash>Fatal Python error: |terminate called |SyntaxError: |IndentationError: |TabError: )"
)
_FAULTY_LINE = re.compile(r'  File ".*", line \d+$')  # starts a SyntaxError of the script itself, without a traceback
_BETWEEN = (END_OF_REMOTE, "The above exception was the direct cause", "During handling of the above exception")


def level_named(name: str) -> int:
    """Return the number of the log level `name`, in upper or lower case. Raise UsageError for an unknown name."""
    level = _LEVEL_OF.get(name.strip().upper())
    if level is None:
        raise UsageError(f"{name!r} is not a log level", hint=f"levels are {', '.join(LEVELS)}")
    return level


def level_at(text: str) -> tuple[int, int, int] | None:
    """Find the log level in a line, in the formats of common loggers. Return it with the start and end of its name."""
    match = _LEVEL.search(text, 0, LEVEL_CHARS)
    if match is None:
        return None
    group = match.lastgroup or ""
    levels = _LEVELS_OF_GROUP.get(group, _LEVEL_OF)
    level = LEVELS["ERROR"] if group == "crash" else levels[match[group].upper()]
    return level, match.start(group), match.end(group)


def _highest_in(text: str) -> int | None:
    """Return the highest level in a line whose parts overwrite each other, such as a progress bar."""
    return max((found[0] for part in text.split("\r") if (found := level_at(part))), default=None)


class Levels:
    """Finds the level of every line of one rank. A line without a level has the level of the line that it continues.

    Pieces of a line, indented lines and a traceback belong to the line before. But a traceback after a line below
    WARNING counts as an ERROR: most likely it was not logged, and the program ended there.
    """

    def __init__(self) -> None:
        self._level = LEVELS["INFO"]
        self._line_ended = True
        self._is_own = False  # the last line named its level
        self._header: str | None = None  # inside a traceback that continues
        self._prefix: str | None = None  # prefix of the traceback's lines, "[rank3]: "; None outside a traceback
        self._raised = False  # the traceback has reached its exception
        self._sections = SectionLines()  # lines of the exception's message
        self._group: GroupFrame | None = None  # the innermost open group of exceptions
        self._of_group = self._level, ""  # prefix of lines outside its frame

    def of(self, line: Line, text: str) -> int:
        """Return the level of the next line. `text` is the line without colours, but with carriage returns."""
        if self._line_ended:
            self._put(text)
        self._line_ended = line.ends
        return self._level

    def _put(self, text: str) -> None:
        if self._group is not None and self._is_in(self._group, text):
            self._level, self._prefix = self._of_group
            self._raised = True
        elif (HEADER in text and not self._is_quoted(text)) or (self._prefix is None and _FAULTY_LINE.match(text)):
            if self._prefix is None:
                logged = self._is_own and self._level >= LEVELS["WARNING"]
                self._level = self._level if logged else _highest_in(text) or LEVELS["ERROR"]
            self._header, self._prefix, self._sections = text, "", SectionLines()
            self._raised = self._is_own = False
            self._group = GroupFrame() if begins_group(text) else None
        elif self._prefix is None or not self._belongs(text):
            self._prefix = None
            own = _highest_in(text)
            self._is_own = own is not None
            if self._is_own or not text[:1].isspace():
                self._level = own or LEVELS["INFO"]

    def _is_in(self, group: GroupFrame, text: str) -> bool:
        if self._header is not None:
            self._of_group, self._header = (self._level, outside_group(prefix_of(self._header, text))), None
        held = group.holds(text.rstrip("\r"))
        if group.is_over:
            self._group = None
        return held

    def _is_quoted(self, text: str) -> bool:
        """Return True if a line inside a traceback only quotes the header of another traceback."""
        if self._prefix is None or self._header is not None or self._raised or not text.startswith(self._prefix):
            return False
        rest = text[len(self._prefix) :]
        return rest[:1].isspace() or EXCEPTION.match(rest) is not None

    def _belongs(self, text: str) -> bool:
        """Return True if a line is part of the current traceback, or links it to the next traceback."""
        if self._header is not None:
            self._prefix = prefix_of(self._header, text)
            self._header = None
        prefix = self._prefix or ""
        if prefix and not text.startswith(prefix.rstrip()):
            return False
        rest = text[len(prefix) :].rstrip("\r")
        if self._raised:
            return self._sections.holds(rest) or bool(prefix) or rest.startswith(_BETWEEN)
        is_exception = bool(rest) and not rest[0].isspace()
        # A line that ends with a header quotes another traceback, which follows.
        self._raised = is_exception and not rest.endswith(HEADER)
        return not is_exception or EXCEPTION.match(rest) is not None
