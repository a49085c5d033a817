"""What tests of logs share: texts of programs, their lines, a log that grows, and the zone of this machine."""

import time

import pytest

from launcher.logs import times
from launcher.logs.lines import LineReader

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

# MindSpore's, shortened: of a network, and of a dataset, whose exception stands in a section.
OF_NETWORK = """\
Traceback (most recent call last):
  File "/home/me/net.py", line 51, in main
    loss, g = grad(x, y)
  File "/v/lib/python3.11/site-packages/mindspore/graph/api.py", line 256, in wrapper
    results = fn(*arg, **kwargs)
ValueError: For 'MatMul' the input dimensions must be equal, but got 'x1_col': 32 and 'x2_row': 31.

----------------------------------------------------
- C++ Call Stack: (For framework developers)
----------------------------------------------------
mindspore/ops/infer/ops_func_impl//matmul.cc:78 InferShape2D

----------------------------------------------------
- The Traceback of Net Construct Code:
----------------------------------------------------
# 0 In file /home/me/net.py:18, 12~23
        x = self.fc2(x)
            ^~~~~~~~~~~
 (See file '/home/me/rank_0/om/analyze_fail.ir' for more details.)
"""
OF_DATASET = """\
Traceback (most recent call last):
  File "/home/me/dset.py", line 32, in <module>
    m.train(1, data)
RuntimeError: Exception thrown from user defined Python function in dataset. \n
------------------------------------------------------------------
- Python Call Stack: \n------------------------------------------------------------------
map operation: [PyFunc] failed. Error description:
ValueError: Traceback (most recent call last):
  File "/home/me/dset.py", line 22, in scale
    return x.reshape(17)
ValueError: cannot reshape array of size 16 into shape (17,)

------------------------------------------------------------------
- Dataset Pipeline Error Message: \n------------------------------------------------------------------
[ERROR] Execute user Python code failed, check 'Python Call Stack' above.

------------------------------------------------------------------
- C++ Call Stack: (For framework developers) \n------------------------------------------------------------------
mindspore/ccsrc/minddata/dataset/engine/datasetops/map_op/map_job.h(56).
"""


def lines_of(text, global_rank=0):
    """All lines, an unfinished last one too."""
    reader = LineReader(global_rank)
    return [*reader.lines(0, text.encode()), *reader.last_line()]


def marked(text, mark="[rank7]: "):
    """Each line behind what torch puts before it."""
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
    """Gives a function that changes the zone of this machine."""

    def change(name):
        monkeypatch.setenv("TZ", name)
        _new_zone()

    yield change
    monkeypatch.undo()
    _new_zone()


def _new_zone():
    time.tzset()
    times._found_minute_ns.cache_clear()
