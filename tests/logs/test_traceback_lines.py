"""Which lines stand in a traceback, told as they come."""

import pytest

from launcher.logs.traceback_lines import TracebackLines

PLAIN = ["Traceback (most recent call last):", '  File "a.py", line 3, in f', "    f(7)", "ValueError: 12"]
GROUP = [
    "  + Exception Group Traceback (most recent call last):",
    '  |   File "a.py", line 3, in f',
    "  | ExceptionGroup: two (2 sub-exceptions)",
    "  +-+---------------- 1 ----------------",
    "    | Traceback (most recent call last):",
    '    |   File "a.py", line 4, in g',
    "    | ValueError: 1",
    "    +------------------------------------",
]


def begins(*lines):
    tracebacks = TracebackLines()
    return [tracebacks.put(line) for line in lines]


@pytest.mark.parametrize("mark", ["", "[rank3]: "], ids=["python", "torch"])
def test_from_the_header_to_the_exception(mark):
    """What torch puts before each line is none of the traceback's own text."""
    lines = [f"{mark}{line}" for line in PLAIN]
    at = len(mark)
    assert begins("step 1", *lines, "step 2") == [None, at, at, at, at, None]


def test_a_chain_and_what_links_it():
    """The sentence between two tracebacks is of neither."""
    link = ["", "During handling of the above exception, another exception occurred:", ""]
    assert begins(*PLAIN, *link, *PLAIN) == [0, 0, 0, 0, None, None, None, 0, 0, 0, 0]


def test_a_group_and_the_tracebacks_in_it():
    """Each behind its own frame."""
    assert begins(*GROUP) == [20, 4, 4, None, 6, 6, 6, None]


def test_a_traceback_that_is_cut_off_does_not_go_on():
    """A blank line, or one without torch's mark, belongs to something else."""
    assert begins(*PLAIN[:2], "", "    f(7)") == [0, 0, None, None]
    assert begins(*(f"[rank0]: {line}" for line in PLAIN[:2]), "NCCL WARN 1", "  2") == [9, 9, None, None]


def test_a_header_that_a_program_quotes_is_none():
    """Only as the end of its line."""
    assert begins("Traceback (most recent call last): it said", "  5") == [None, None]
