"""Find the level of a log line."""

import logging
import re
import subprocess
import sys
from itertools import count

import pytest

from launcher.core.errors import UsageError
from launcher.logs.levels import LEVELS, Levels, level_at, level_named
from launcher.logs.lines import Line
from launcher.logs.traceback_blocks import HEADER

from .conftest import BROKEN_GROUP, LINK, OF_DATASET, OF_NETWORK, TRACEBACK, lines_of, marked

NAMES = {number: name for name, number in LEVELS.items()}


@pytest.mark.parametrize(("line", "level"), [
    ("WARNING:root:text", "WARNING"),
    ("2026-11-21 12:00:00,123 - train - ERROR - text", "ERROR"),
    ("2026-11-21 12:00:00.1 | DEBUG    | a:b:1 - text", "DEBUG"),
    ("[WARNING] DEVICE(1,2,python):2026-11-21-12:00:00.123.456 [a.cc:3] text", "WARNING"),
    ("I1121 12:00:00.123456 1 a.cc:3] text", "INFO"),
    ("[rank0]:[W1121 12:00:00.123456789 a.cpp:1] text", "WARNING"),
    ("[rank0]:[W715 12:00:00.1 a.cpp:1] text", "WARNING"),
    ("F20261121 12:00:00 1 a.cc:3] text", "CRITICAL"),
    ("D1121 12:00:00 1 a.cc:3] text", "DEBUG"),
    ("[warn] text", "WARNING"),
    ("[ Error ] text", "ERROR"),
    ("error: text", "ERROR"),
    ('{"ts": 1, "level": "info", "msg": "text"}', "INFO"),
    ("time=1 level=fatal msg=x", "CRITICAL"),
    ("host:1:2 [0] NCCL WARN text", "WARNING"),
    ("/a/b.py:3: UserWarning: text", "WARNING"),
    ("CRITICAL", "CRITICAL"),
    ("INFO: 3 ERROR lines were seen", "INFO"),
    ("2026-11-21 12:00:00.1 | SUCCESS  | a:b:1 - text", "INFO"),
    ('{"level":50,"time":1795262407000,"msg":"text"}', "ERROR"),
    ('{"level": 30, "msg": "text"}', "INFO"),
    ('{"level":60}', "CRITICAL"),
    ('{"level":50.5}', None),
    ("Fatal Python error: Segmentation fault", "ERROR"),
    ("terminate called after throwing an instance of 'std::runtime_error'", "ERROR"),
    ("no error here", None),
    ("step 3 loss 2.3", None),
    ("INFORMATION about WARNINGS", None),
    ("x" * 300 + " ERROR", None),
])  # fmt: skip
def test_a_level_is_read_as_loggers_write_it(line, level):
    assert NAMES.get((level_at(line) or (None,))[0]) == level


def test_levels_have_names():
    assert level_named("warning") == level_named("WARN") == logging.WARNING
    with pytest.raises(UsageError):
        level_named("loud")


def levels_of(text):
    levels = Levels()
    return [NAMES[levels.of(line, line.raw.decode())] for line in lines_of(text)]


SYNTAX = '  File "/a/train.py", line 3\n    x = = 1\n        ^\nSyntaxError: invalid syntax\n'
QUOTED = TRACEBACK.replace("load()", f"fail('{HEADER}')").replace("no\n", f"{HEADER}\n  at x\nFoo: y\n")
OF_ANOTHER_PROCESS = f'{TRACEBACK}"""\n{LINK}{TRACEBACK}'
WARNED = "a.py:1: UserWarning: x\n  warnings.warn('x')\n"
BAR = " 20%|##  | 2/10"


@pytest.mark.parametrize(("text", "levels"), [
    # A logged traceback belongs to the line before: all of it, and nothing behind it.
    (f"WARNING:root:failed\n{TRACEBACK}step 3\nERROR:root:x\n  more\n\nstep 4\n", "WWWWW I EE II"),
    (f"WARNING:root:failed\n{TRACEBACK}{LINK}{TRACEBACK}step 3\n", "WWWWW WWW WWWW I"),
    # One that nobody logged is an error: a program that ends by it is not hidden behind the INFO that it wrote before.
    *((before + TRACEBACK, f"{levels} EEEE")
      for before, levels in (("INFO:root:x\n", "I"), ("DEBUG:root:x\n", "D"), ("x\n", "I"), ("", ""), (WARNED, "WW"))),
    # Whatever its message quotes, whichever process it is of, and however each line begins.
    *((f"step 1\n{shown}step 2\n  more\n", f"I {'E' * len(shown.splitlines())} II")
      for text in (TRACEBACK, QUOTED, OF_ANOTHER_PROCESS) for shown in (text, marked(text))),
    (f"step 1\n{SYNTAX}step 2\n  more\n", "I EEEE II"),
    (f"INFO x\n{marked(TRACEBACK + 'second line')}step 3\n", "I EEEEE I"),
    # Lines of a message that stand outside of a group's frame are none of it; nor is what only looks like a frame.
    (f"step 1\n{BROKEN_GROUP}{LINK}{TRACEBACK}step 2\n    | a | b |\n", "I EEE I EEE I EEE EEE EEEE II"),
    (f"{BROKEN_GROUP}step 2\n    | a | b |\n", "EEE I EEE I EEE II"),
    (f"step 1\n{marked(BROKEN_GROUP)}step 2\n  more\n", "I EEEEEEEEEEE II"),
    # What stands before a traceback, as a progress bar that no newline ends, is not before each of its lines.
    (f"step 1\n\r 10%|#\r{BAR}{TRACEBACK}step 2\n", "I EEEE I"),
    (f"{BAR}\r{marked(TRACEBACK)}step 2\n", "EEEE I"),
    # The sections of a message belong to its exception, a traceback in one of them too.
    *((f"step 1\n{text}{behind}\n", f"I {'E' * len(text.splitlines())} I")
      for text in (OF_NETWORK, OF_DATASET) for behind in ("step 2", "[INFO] DISTRIBUTED(7,7f,python):2026-11-27 [a.cc:1] x")),
    # Every part of a line that is overwritten tells a level; the highest counts.
    ("DEBUG: x\rERROR: y\r 20%|##\nWARNING: x\r\n", "EW"),
    # A traceback that is cut off ends at the next line.
    (f"{TRACEBACK[:70]}\n\n--- attempt 1 ---\n", "EE E I"),
], ids=count())  # fmt: skip
def test_every_line_has_the_level_of_what_it_belongs_to(text, levels):
    assert "".join(level[0] for level in levels_of(text)) == levels.replace(" ", "")


def test_a_piece_of_a_long_line_has_its_level():
    levels = Levels()
    assert levels.of(Line(0, 0, b"", ends=False), "ERROR x") == LEVELS["ERROR"]
    assert levels.of(Line(0, 1, b""), "INFO x") == LEVELS["ERROR"]
    assert levels.of(Line(0, 2, b""), "x") == LEVELS["INFO"]


def test_what_a_real_program_logs():
    program = (
        "import logging, warnings\n"
        "logging.basicConfig(level='DEBUG', format='%(asctime)s %(levelname)s %(message)s')\n"
        "logging.debug('a'); logging.critical('b')\n"
        "try: 1/0\n"
        "except ZeroDivisionError: logging.warning('c', exc_info=True)\n"
        "logging.info('d')\n"
        "print('e', flush=True)\n"
        "warnings.warn('f')\n"
        "logging.info('g')\n"
        "{}['x']\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True, check=False)
    levels = "".join(level[0] for level in levels_of(done.stdout))
    assert re.fullmatch("D C W{4,} I I W+ I E{3,}".replace(" ", ""), levels)
