"""The messages of MindSpore's exceptions, which have sections: a first line, and below it what that may only refer to.

Exception thrown from dataset pipeline. Refer to 'Dataset Pipeline Error Message'.

------------------------------------------------------------------
- Dataset Pipeline Error Message:
------------------------------------------------------------------
[ERROR] Invalid cifar10 file, failed to read data from: cifar/data_batch_1.bin

That of a kernel that could not be launched has no first line, and begins with a section.
"""

from __future__ import annotations

import re

from launcher.logs.mindspore_sections import begins_with_section, sections_of

_REFERS = re.compile(r"(?:Refer to|check) '(?P<section>[^'\n]{1,80})'")
_LEVEL = re.compile(r"^\[[A-Z]+\] ?")
_CONSTRUCT = re.compile(r"^# \d+ In file (?P<file>[^\n]+?):(?P<line>\d+)\b", re.MULTILINE)
_CALL_STACK = "Python Call Stack"
_NET_CODE = "The Traceback of Net Construct Code"


def first_words(message: str) -> str:
    """Return the line that says what is wrong: the first, or that of the section to which it refers, or that comes first.

    Of a section that refers on to a Python traceback it is that one's exception.
    """
    message = message.strip()
    sections = sections_of(message)
    first = next(iter(sections.values()), "").strip() if begins_with_section(message) else ""
    line = (first or message).partition("\n")[0]
    for _ in range(len(sections)):
        refers = _REFERS.search(line)
        text = sections.pop(refers["section"], "").strip() if refers else ""
        if not refers or not text:
            break
        lines = text.splitlines()
        line = lines[-1] if refers["section"] == _CALL_STACK else _LEVEL.sub("", lines[0])
    return line


def place_in_network(message: str) -> str | None:
    """Return the line of a network's code that could not be compiled, "train.py:5"; None where the message has none."""
    found = _CONSTRUCT.search(sections_of(message).get(_NET_CODE, ""))
    return None if found is None else f"{found['file'].rpartition('/')[2]}:{found['line']}"
