"""Shared by the tests of logs: outputs of programs, their lines, a growing log, and this machine's time zone."""

import time

import pytest

from launcher.logs import times
from launcher.logs.lines import LineReader
from tests import mindspore_messages

TRACEBACK = 'Traceback (most recent call last):\n  File "/a/train.py", line 88, in step\n    load()\nValueError: no\n'
LINK = "\nDuring handling of the above exception, another exception occurred:\n\n"
GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "/a/train.py", line 88, in step
  |     raise group
  | ExceptionGroup: several (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/a/data.py", line 8, in load
    |     parse()
    | ValueError: first
    +---------------- 2 ----------------
    | KeyError: 'second'
    +------------------------------------
"""
# Python up to 3.12 prints all but the first line of a message outside of the frame.
BROKEN_GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "/a/train.py", line 88, in step
  | ExceptionGroup: two
lines (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | TypeError: b

multi
    +---------------- 2 ----------------
    | KeyError: 'c'
    +------------------------------------
"""

# MindSpore's: of a network, and of a dataset, whose exception stands in a section.
OF_NETWORK = f"{mindspore_messages.TRACEBACK}ValueError: {mindspore_messages.NETWORK}"
OF_DATASET = f"{mindspore_messages.TRACEBACK}RuntimeError: {mindspore_messages.MAP}"


def lines_of(text, global_rank=0):
    reader = LineReader(global_rank)
    return [*reader.lines(0, text.encode()), *reader.last_line()]


def marked(text, mark="[rank7]: "):
    """Return `text` with torch's rank prefix in each line."""
    return "".join(f"{mark}{line}\n" for line in text.splitlines())


def append(log, data=b"x"):
    with log.open("ab") as file:
        file.write(data)


def put(stage, *lines):
    for each in lines:
        stage.put(each)


@pytest.fixture
def log(tmp_path):
    return tmp_path / "train.log"


@pytest.fixture
def zone(monkeypatch):
    def change(name):
        monkeypatch.setenv("TZ", name)
        _new_zone()

    yield change
    monkeypatch.undo()
    _new_zone()


def _new_zone():
    time.tzset()
    times._found_minute_ns.cache_clear()
