"""Tracebacks in what a program printed."""

import subprocess
import sys
from pathlib import Path

import pytest

from launcher.logs.traceback_blocks import GROUP_LINES, MAX_TRACEBACKS, MESSAGE_CHARS, MESSAGE_LINES
from launcher.logs.tracebacks import (
    NEAR_BYTES,
    TRACEBACK_CHARS,
    find_traceback,
    frames_in,
    traceback_in,
    tracebacks_in,
)

PROGRAM = Path(__file__).parents[1] / "programs" / "blame_raise.py"


def printed_by(kind):
    command = [sys.executable, PROGRAM, kind]
    return subprocess.run(command, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True, check=False).stdout


def line_of(text):
    """The number of the line of the program that holds `text` first."""
    lines = PROGRAM.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


STEP = f"blame_raise.py:{line_of('raise ValueError(message)')} in step"


# --- tracebacks of real programs ---


@pytest.mark.parametrize(
    ("kind", "type_name", "message"),
    [
        ("uncaught", "ValueError", "no such word"),
        ("caught", "ValueError", "no such word"),
        ("after_a_bar", "ValueError", "no such word"),
        ("ignored_afterwards", "ValueError", "no such word"),
        ("at_exit", "ValueError", "no such word"),
        ("thread_after_main", "ValueError", "in the main thread"),
        ("many_lines", "ValueError", "one"),
        ("prefixed", "ValueError", "one\ntwo"),
    ],
)
def test_the_last_traceback_of_a_program_is_found(kind, type_name, message):
    """Uncaught or caught and printed; after it may come what Python prints of exceptions that change nothing."""
    found = find_traceback(printed_by(kind))
    assert (found.type, found.message, found.where, found.thread) == (type_name, message, STEP, None)
    assert found.text.startswith("Traceback (most recent call last):\n")
    assert f"{type_name}: {message}" in found.text


def test_of_chained_exceptions_the_last_is_the_failure_and_the_first_its_origin():
    """Both links: raised from another, and raised while another was handled."""
    found = find_traceback(printed_by("chained_twice"))
    assert (found.type, found.message) == ("KeyError", "'x'")
    assert found.first_cause == f"ValueError: no such word at {STEP}"
    assert found.text.count("Traceback (most recent call last):") == 3
    assert find_traceback(printed_by("chained")).where.endswith(" in chained")


def test_separate_tracebacks_are_no_chain():
    """A traceback that was printed earlier for its own sake caused nothing."""
    assert find_traceback(printed_by("caught") + printed_by("uncaught")).first_cause is None


def test_a_traceback_of_another_thread_is_told_apart():
    """The program goes on without that thread."""
    found = find_traceback(printed_by("thread"))
    assert (found.type, found.where, found.thread) == ("ValueError", STEP, "loader")


def test_a_syntax_error_has_a_place_without_a_function():
    """Its last frame is the faulty line itself."""
    found = find_traceback(printed_by("syntax"))
    assert (found.type, found.where) == ("SyntaxError", "settings.py:1")


def test_an_exception_without_a_message_has_an_empty_one():
    """KeyboardInterrupt is often so."""
    found = find_traceback(printed_by("no_message"))
    assert (found.type, found.message) == ("KeyboardInterrupt", "")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exception groups came with 3.11")
def test_an_exception_group_is_found():
    """Its lines begin with a frame of their own."""
    found = find_traceback(printed_by("group"))
    assert (found.type, found.where.partition(" in ")[2]) == ("ExceptionGroup", "group")


def test_a_deep_recursion_is_found():
    """Python says how often the line is repeated."""
    assert find_traceback(printed_by("deep")).type == "RecursionError"


# --- texts ---

SIMPLE = 'Traceback (most recent call last):\n  File "/a/train.py", line 88, in step\n    load()\nValueError: no\n'
LINK = "During handling of the above exception, another exception occurred:"
WORKER = (
    'Traceback (most recent call last):\n  File "/a/train.py", line 88, in step\n    next(batches)\n'
    "ValueError: Caught ValueError in DataLoader worker process 0.\n"
    'Original Traceback (most recent call last):\n  File "/a/data.py", line 8, in load\n    parse()\nValueError: bad line\n'
)


def test_the_traceback_of_a_data_worker_is_the_one_that_counts():
    """It is printed by torch below the main process's own."""
    found = find_traceback(WORKER)
    assert (found.message, found.where) == ("bad line", "data.py:8 in load")


@pytest.mark.parametrize("begin", ["", "50%|###  | 5/10\r"])
@pytest.mark.parametrize("text", [SIMPLE, WORKER])
def test_lines_that_all_begin_alike_are_read_without_that(text, begin):
    """As torch marks them, also after a progress bar, which ends no line."""
    marked = "".join(f"[rank3]: {line}\n" for line in text.splitlines())
    found, plain = find_traceback(begin + marked), find_traceback(text)
    assert (found.type, found.message, found.where) == (plain.type, plain.message, plain.where)


@pytest.mark.parametrize("text", ["", "Traceback (most recent call last):", SIMPLE[:60], SIMPLE[:-16], "\0" * 5000])
def test_what_is_cut_off_is_no_traceback(text):
    """The exception is the last line of one: without it nothing is known."""
    assert find_traceback(text) is None


def test_a_cut_off_traceback_leaves_the_one_before():
    """A program that was killed while it printed had printed another before."""
    assert find_traceback(SIMPLE + "more\n" + SIMPLE[:60]).where == "train.py:88 in step"


def test_what_a_program_wrote_after_its_traceback_is_counted():
    """Many lines mean that it lived on."""
    assert find_traceback(SIMPLE).lines_after == 0
    assert find_traceback(SIMPLE + "step 2\n\nstep 3\n").lines_after == 2


def test_long_tracebacks_and_messages_are_cut():
    """The end is kept, where the exception is."""
    frames = '  File "/a/b.py", line 1, in f\n    f()\n' * 1000
    found = find_traceback(f"Traceback (most recent call last):\n{frames}ValueError: no\n")
    assert len(found.text) == TRACEBACK_CHARS
    assert found.text.endswith("ValueError: no")
    many = "\n".join(["[rank0]: x"] * 100)
    found = find_traceback("".join(f"[rank0]: {line}\n" for line in SIMPLE.splitlines()) + many)
    assert found.message.count("\n") == MESSAGE_LINES


def test_of_a_long_message_the_beginning_is_kept():
    """With the frames, and a mark where it was cut."""
    found = find_traceback(SIMPLE.replace("ValueError: no", "ValueError: size " + "y" * 9000))
    assert found.text.startswith("\n".join(SIMPLE.splitlines()[:3]) + "\nValueError: size yyy")
    assert found.text.endswith(f"yyy… {9000 + len('ValueError: size ') - MESSAGE_CHARS} more characters")
    assert len(found.message) == 9000 + len("size ")


def test_indented_lines_below_an_exception_belong_to_it():
    """As torch writes them; a progress bar does not."""
    raised = SIMPLE.replace("ValueError: no", "RuntimeError: Error(s) in loading state_dict for Net:")
    more = '\tMissing key(s) in state_dict: "a".\n\tsize mismatch for b'
    found = find_traceback(f"{raised}{more}\nstep 2\n")
    assert found.message == f"Error(s) in loading state_dict for Net:\n{more}"
    assert (found.text, found.lines_after) == (f"{raised}{more}", 1)
    assert find_traceback(f"{SIMPLE}  10%|#\r  20%|##\n 30%|##\n").message == "no"


@pytest.mark.parametrize("kind", ["chained", "chained_twice"])
def test_a_chain_keeps_the_sentences_that_link_it(kind):
    """Whether an exception was raised from another or while another was handled."""
    printed = printed_by(kind).removeprefix("starting\n")
    assert find_traceback(printed).text == printed.strip() == next(tracebacks_in(printed)).text


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


def test_a_group_keeps_its_exceptions():
    """They are part of it, and no tracebacks of their own; many are cut."""
    for found in (find_traceback(f"{SIMPLE}step\n{GROUP}step\n"), next(tracebacks_in(f"{GROUP}step\n{SIMPLE}"))):
        assert (found.type, found.message, found.lines_after > 0) == (
            "ExceptionGroup",
            "several (2 sub-exceptions)",
            True,
        )
        assert "\n  | ValueError: first\n" in found.text
        assert found.text.endswith("  | KeyError: 'second'\n  +------------------------------------")
    assert [each.type for each in tracebacks_in(f"{GROUP}{SIMPLE}")] == ["ExceptionGroup", "ValueError"]
    chain = find_traceback(f"{SIMPLE}\n{LINK}\n\n{GROUP}\n{LINK}\n\n{SIMPLE}")
    assert (chain.first_cause, chain.text.count(LINK)) == ("ValueError: no at train.py:88 in step", 2)
    many = find_traceback(GROUP + "    | x\n" * GROUP_LINES)
    assert many.text.endswith(f"… {GROUP.count(chr(10)) - 4} more lines")


GROUP_AS_CAUSE = """\
try:
    raise ExceptionGroup("g", [ValueError("a"), ExceptionGroup("inner", [TypeError("b\\nmulti"), KeyError("c")])])
except ExceptionGroup as group:
    raise RuntimeError("outer") from group
"""
IN_POOL = """\
import multiprocessing
if __name__ == "__main__":
    with multiprocessing.Pool(1) as pool:
        pool.map(int, ["x"])
"""
IN_EXECUTOR = """\
from concurrent.futures import ProcessPoolExecutor
if __name__ == "__main__":
    with ProcessPoolExecutor(1) as pool:
        list(pool.map(int, ["x"]))
"""
QUOTING = """\
raise ValueError("Traceback (most recent call last):\\n  nested text\\nFoo: x")
"""


@pytest.fixture
def printed(tmp_path):
    """Runs a program; gives what it prints."""

    def run(source):
        program = tmp_path / "program.py"
        program.write_text(source)
        command = [sys.executable, program]
        return subprocess.run(command, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True, check=False).stdout

    return run


def marked(text):
    return "".join(f"[rank7]: {line}\n" for line in text.splitlines())


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exception groups came with 3.11")
@pytest.mark.parametrize("shown", [str, marked])
def test_a_group_that_led_to_another_exception(printed, shown):
    """Though Python breaks its frame at a message of several lines."""
    text = shown(printed(GROUP_AS_CAUSE))
    (found,) = tracebacks_in(text)
    assert found == find_traceback(text)
    assert (found.type, found.message) == ("RuntimeError", "outer")
    assert found.first_cause == "ExceptionGroup: g (2 sub-exceptions) at program.py:2 in <module>"
    assert "multi\n" in found.text
    assert "| KeyError: 'c'\n" in found.text


@pytest.mark.parametrize("shown", [str, marked])
@pytest.mark.parametrize("source", [IN_POOL, IN_EXECUTOR])
def test_a_traceback_of_another_process_led_to_the_one_here(printed, source, shown):
    """They are one chain from either end, though each ends with the same exception."""
    text = shown(printed(source))
    (found,) = tracebacks_in(text)
    assert found == find_traceback(text) == traceback_in(text.encode())
    assert found.first_cause.startswith("ValueError: invalid literal for int() with base 10: 'x' at ")
    assert ("<module>" in found.text, found.text.count("Traceback")) == (True, 2)


@pytest.mark.parametrize("shown", [str, marked])
def test_a_traceback_in_a_message_replaces_none(printed, shown):
    """The exception that ended the program is told, and what it quotes with it."""
    text = shown(printed(QUOTING))
    (found,) = tracebacks_in(text)
    assert found == find_traceback(text)
    assert (found.type, found.where) == ("ValueError", "program.py:1 in <module>")
    assert found.message == "Traceback (most recent call last):\n  nested text\nFoo: x"
    assert found.text.endswith(found.message)


def test_the_last_hundreds_of_tracebacks_are_looked_at():
    """From the end; unusable ones are passed over once each, and a log that is full of them is given up."""
    harmless = "Exception ignored in: <x>\n" + SIMPLE
    assert find_traceback(SIMPLE + harmless * (MAX_TRACEBACKS - 1)).where == "train.py:88 in step"
    assert find_traceback(SIMPLE + harmless * MAX_TRACEBACKS) is None


def work(function, *arguments):
    """How many lines of ours it takes: what does not depend on the machine's speed."""
    count = 0

    def tracer(frame, event, _):
        nonlocal count
        if not frame.f_code.co_filename.endswith(("tracebacks.py", "traceback_blocks.py")):
            return None
        count += event == "line"
        return tracer

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        function(*arguments)
    finally:
        sys.settrace(before)
    return count


LOG_BYTES = 256 << 10
HEADERS = 2000


@pytest.mark.parametrize(
    "line",
    [
        "Traceback (most recent call last):\n",
        "  Traceback (most recent call last):\n",
        "  Traceback (most recent call last):\n  x\n",
        "  + Exception Group Traceback (most recent call last):\n  | E: x\n",
        "  | Traceback (most recent call last):\n",
        "E: Traceback (most recent call last):\n  x\n",
        "Traceback (most recent call last):\n  x\nE: Traceback (most recent call last):\n",
        "[rank0]: Traceback (most recent call last):\n[rank0]:   x\n",
    ],
)
@pytest.mark.parametrize("search", [find_traceback, lambda text: list(tracebacks_in(text))])
def test_many_headers_cost_no_more_each_than_few(line, search):
    """Whatever a program prints, the time to read it grows with its length only."""
    few, many = work(search, line * HEADERS), work(search, line * HEADERS * 4)
    assert many < 6 * few


@pytest.mark.parametrize("first", ["", SIMPLE])
def test_lines_without_a_traceback_cost_nothing(first):
    """Hundreds of ranks fail at once, each after 256 KiB of short lines: only lines of tracebacks are looked at."""
    log = (first + "a\n" * (LOG_BYTES // 2))[:LOG_BYTES].encode()
    assert (traceback_in(log) is not None) is bool(first)
    assert work(traceback_in, log) < 1000


@pytest.mark.parametrize("far", [SIMPLE, SIMPLE + f"\n{LINK}\n\n"])
def test_what_lies_far_before_the_end_of_a_log_is_not_forgotten(far):
    """The end of a log is searched first: the rest too if the traceback there began earlier, or does not count."""
    many = '  File "/a/train.py", line 1, in f\n    f()\n' * (NEAR_BYTES // 40)
    long = f"Traceback (most recent call last):\n{many}KeyError: 1\n"
    assert traceback_in((far + long).encode()) == find_traceback(far + long)
    harmless = f"Exception ignored in: <x>\n{SIMPLE}Exception in thread T:\n{SIMPLE}"
    assert traceback_in((far + "a\n" * NEAR_BYTES + harmless).encode()).thread is None


def test_a_chain_that_begins_before_the_end_of_a_log_is_read_whole():
    """Its first exception lies further from the end than is looked at first."""
    long = SIMPLE.replace("    load()\n", f"    load({'x' * NEAR_BYTES})\n")
    assert traceback_in(f"{long}\n{LINK}\n\n{SIMPLE}".encode()).first_cause == "ValueError: no at train.py:88 in step"


# --- all of them ---


@pytest.mark.parametrize("kind", ["uncaught", "chained_twice", "thread", "thread_after_main", "group", "prefixed"])
def test_the_last_of_all_tracebacks_is_the_last_one(kind):
    """Read from the first on, each is found as it is from the end; one of the main thread is preferred."""
    if kind == "group" and sys.version_info < (3, 11):
        pytest.skip("exception groups came with 3.11")
    text = printed_by(kind)
    found = list(tracebacks_in(text))
    assert find_traceback(text) == ([each for each in found if each.thread is None] or found)[-1]


def test_every_traceback_is_found_once():
    """A chain is one; harmless and cut off ones are none; that of a data worker takes the place of the main process's."""
    text = f"{SIMPLE}step\n{SIMPLE}\n{LINK}\n\n{SIMPLE}Exception ignored in: <x>\n{SIMPLE}{WORKER}{SIMPLE[:60]}"
    found = list(tracebacks_in(text))
    assert [(each.message, each.first_cause is not None) for each in found] == [
        ("no", False),
        ("no", True),
        ("bad line", False),
    ]
    assert not list(tracebacks_in("Traceback (most recent call last):"))


def test_the_frames_of_a_traceback():
    """Innermost last."""
    assert frames_in(WORKER) == [("/a/train.py", "step"), ("/a/data.py", "load")]
