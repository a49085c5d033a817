"""How severe a line is."""

import logging
import subprocess
import sys
from itertools import product

import pytest

from launcher.core.errors import UsageError
from launcher.logs.levels import LEVELS, Levels, level_in, level_named
from launcher.logs.lines import Line, LineReader
from launcher.logs.traceback_blocks import HEADER

NAMES = {number: name for name, number in LEVELS.items()}


@pytest.mark.parametrize(
    ("line", "level"),
    [
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
    ],
)
def test_a_level_is_read_as_loggers_write_it(line, level):
    """Names in capitals, in brackets or after a key, and glog's letters."""
    assert NAMES.get(level_in(line)) == level


def test_levels_have_names():
    """In upper or lower case; others are refused."""
    assert level_named("warning") == level_named("WARN") == logging.WARNING
    with pytest.raises(UsageError):
        level_named("loud")


def levels_of(text, global_rank=0, levels=None):
    levels = levels or Levels()
    reader = LineReader(global_rank)
    lines = [*reader.lines(0, text.encode()), *reader.last_line()]
    return [NAMES[levels.of(line, line.raw.decode())] for line in lines]


TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    f()\nValueError: no\n'
SYNTAX = '  File "/a/train.py", line 3\n    x = = 1\n        ^\nSyntaxError: invalid syntax\n'
QUOTED = TRACEBACK.replace("    f()", f"    raise ValueError('{HEADER}')").replace(
    "no\n", f"{HEADER}\n  at x\nFoo: y\n"
)
LINK = "\nDuring handling of the above exception, another exception occurred:\n\n"


def test_a_logged_traceback_belongs_to_the_line_before():
    """All of it, and nothing behind it."""
    text = f"WARNING:root:failed\n{TRACEBACK}step 3\nERROR:root:x\n  more\n\nstep 4\n"
    assert levels_of(text) == [*["WARNING"] * 5, "INFO", "ERROR", "ERROR", "INFO", "INFO"]


WARNED = "a.py:1: UserWarning: x\n  warnings.warn('x')\n"


@pytest.mark.parametrize("before", ["INFO:root:step 3\n", "DEBUG:root:x\n", "step 3\n", "", WARNED])
def test_a_traceback_that_nobody_logged_is_an_error(before):
    """A program that ends by one is not hidden behind the INFO that it wrote before."""
    assert levels_of(before + TRACEBACK)[-4:] == ["ERROR"] * 4


OF_ANOTHER_PROCESS = f'{TRACEBACK}"""\n{LINK}{TRACEBACK}'


@pytest.mark.parametrize(
    ("text", "mark"),
    [*product([TRACEBACK, QUOTED, OF_ANOTHER_PROCESS], ["", "[rank7]: "]), (SYNTAX, "")],
)
def test_a_traceback_is_an_error_to_its_end(text, mark):
    """Whatever its message quotes, whichever process it is of, and however each line begins."""
    lines = text.splitlines()
    marked = "".join(f"{mark}{line}\n" for line in lines)
    assert levels_of(f"step 1\n{marked}step 2\n  more\n") == ["INFO", *["ERROR"] * len(lines), "INFO", "INFO"]


def test_a_logged_chain_of_tracebacks_is_one():
    """With the blank lines and the sentence between them."""
    text = f"WARNING:root:failed\n{TRACEBACK}{LINK}{TRACEBACK}step 3\n"
    assert levels_of(text) == [*["WARNING"] * 12, "INFO"]


def test_a_traceback_whose_lines_begin_alike():
    """As torch prints it, with a message of several lines."""
    marked = "".join(f"[rank3]: {line}\n" for line in f"{TRACEBACK}second line".splitlines())
    assert levels_of(f"INFO x\n{marked}step 3\n") == ["INFO", *["ERROR"] * 5, "INFO"]


def test_what_stands_before_a_traceback_is_not_before_each_of_its_lines():
    """A progress bar that no newline ends: the exception is an error nevertheless."""
    bar = " 20%|##  | 2/10"
    assert levels_of(f"step 1\n\r 10%|#\r{bar}{TRACEBACK}step 2\n") == ["INFO", *["ERROR"] * 4, "INFO"]
    marked = "".join(f"[rank3]: {line}\n" for line in TRACEBACK.splitlines())
    assert levels_of(f"{bar}\r{marked}step 2\n") == [*["ERROR"] * 4, "INFO"]


def test_every_part_of_a_line_tells_a_level():
    """The highest counts, though a progress bar has overwritten it."""
    assert levels_of("DEBUG: x\rERROR: y\r 20%|##\nWARNING: x\r\n") == ["ERROR", "WARNING"]


GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "a.py", line 1, in f
  | ExceptionGroup: g (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | TypeError: b
multi
    +---------------- 2 ----------------
    | Traceback (most recent call last):
    |   File "a.py", line 2, in f
    | KeyError: 'c'
    +------------------------------------
"""


def test_a_group_of_exceptions_is_an_error_to_its_end():
    """Also below the line of a message that stands outside of its frame; what looks like a frame afterwards is not."""
    levels = levels_of(f"step 1\n{GROUP}{LINK}{TRACEBACK}step 2\n    | a | b |\n")
    assert [number for number, level in enumerate(levels) if level == "INFO"] == [0, 6, 19, 20]
    marked = "".join(f"[rank7]: {line}\n" for line in GROUP.splitlines())
    assert levels_of(f"step 1\n{marked}step 2\n  more\n") == ["INFO", *["ERROR"] * 11, "INFO", "INFO"]
    assert levels_of(f"{GROUP}step 2\n    | a | b |\n")[-2:] == ["INFO", "INFO"]


def test_a_traceback_that_is_cut_off_ends_at_the_next_line():
    """A program that was killed while it printed."""
    assert levels_of(TRACEBACK[:70] + "\n\n--- attempt 1 ---\n")[-1] == "INFO"


def test_a_piece_of_a_long_line_has_its_level():
    """Whatever stands at its beginning."""
    levels = Levels()
    assert levels.of(Line(0, 0, b"", ends=False), "ERROR x") == LEVELS["ERROR"]
    assert levels.of(Line(0, 1, b""), "INFO x") == LEVELS["ERROR"]
    assert levels.of(Line(0, 2, b""), "x") == LEVELS["INFO"]


def test_ranks_do_not_disturb_each_other():
    """Their lines may be mixed."""
    levels = Levels()
    assert levels_of("ERROR x", 0, levels) == ["ERROR"]
    assert levels_of("  indented", 1, levels) == ["INFO"]


def test_what_a_real_program_logs():
    """Python's logging, warnings and an uncaught exception."""
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
    levels = levels_of(done.stdout)
    warned = next(number for number, line in enumerate(done.stdout.splitlines()) if line.endswith(" d"))
    assert levels[:2] == ["DEBUG", "CRITICAL"]
    assert set(levels[2:warned]) == {"WARNING"}
    assert levels[warned : warned + 3] == ["INFO", "INFO", "WARNING"]
    assert levels[-1] == levels[-2] == "ERROR"
