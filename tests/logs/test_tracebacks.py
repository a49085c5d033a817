"""Tracebacks in what a program printed."""

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from launcher.logs.lines import LineReader
from launcher.logs.traceback_blocks import GROUP_LINES, HEADER, MAX_TRACEBACKS, MESSAGE_CHARS, MESSAGE_LINES
from launcher.logs.tracebacks import (
    FIRST_BYTES,
    NEAR_BYTES,
    TRACEBACK_CHARS,
    find_traceback,
    first_tracebacks,
    frames_in,
    traceback_in,
    tracebacks_in,
)

PROGRAM = Path(__file__).parents[1] / "programs" / "blame_raise.py"


@cache
def printed_by(*arguments, program=PROGRAM):
    command = [sys.executable, program, *arguments]
    return subprocess.run(command, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True, check=False).stdout


def marked(text, rank=7):
    """Each line behind what torch puts before it."""
    return "".join(f"[rank{rank}]: {line}\n" for line in text.splitlines())


def line_of(text):
    """The number of the line of the program that holds `text` first."""
    lines = PROGRAM.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


STEP = f"blame_raise.py:{line_of('raise ValueError(message)')} in step"


needs_groups = pytest.mark.skipif(sys.version_info < (3, 11), reason="exception groups came with 3.11")


# --- tracebacks of real programs ---


@pytest.mark.parametrize(
    ("kind", "type_name", "message", "where", "thread"),
    [
        *[
            (kind, "ValueError", "no such word", STEP, None)
            for kind in ("uncaught", "caught", "after_a_bar", "at_exit")
        ],
        ("ignored_afterwards", "ValueError", "no such word", STEP, None),
        ("thread_after_main", "ValueError", "in the main thread", STEP, None),
        ("thread", "ValueError", "no such word", STEP, "loader"),
        ("many_lines", "ValueError", "one", STEP, None),
        ("prefixed", "ValueError", "one\ntwo", STEP, None),
        ("syntax", "SyntaxError", None, "settings.py:1", None),
        ("no_message", "KeyboardInterrupt", "", None, None),
        ("deep", "RecursionError", None, None, None),
        pytest.param("group", "ExceptionGroup", None, None, None, marks=needs_groups),
    ],
)
def test_the_last_traceback_of_a_program_is_found(kind, type_name, message, where, thread):
    """Uncaught or caught and printed; after it may come what Python prints of exceptions that change nothing."""
    found = find_traceback(printed_by(kind))
    assert (found.type, found.thread) == (type_name, thread)
    assert message in {None, found.message}
    assert where in {None, found.where}
    assert found.text.startswith(HEADER) or kind == "group"


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
    found, plain = find_traceback(begin + marked(text)), find_traceback(text)
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
    found = find_traceback(marked(SIMPLE, rank=0) + many)
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
        return printed_by(program=program)

    return run


@needs_groups
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
HEADERS = 500


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


@pytest.mark.parametrize(
    "kind",
    ["uncaught", "chained_twice", "thread", "thread_after_main", pytest.param("group", marks=needs_groups), "prefixed"],
)
def test_the_last_of_all_tracebacks_is_the_last_one(kind):
    """Read from the first on, each is found as it is from the end; one of the main thread is preferred."""
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


# --- the first traceback of each rank ---


def split(global_rank, chunks):
    """All lines, an unfinished last one too."""
    reader = LineReader(global_rank)
    for offset, chunk in chunks:
        yield from reader.lines(offset, chunk)
    yield from reader.last_line()


def traceback(message="no", line=88, kind="ValueError"):
    return f'Traceback (most recent call last):\n  File "/a/train.py", line {line}, in step\n    load()\n{kind}: {message}\n'


def raised(*texts):
    """`texts`: what each rank wrote. Ranks, and what they raised first."""
    lines = {rank: split(rank, [(0, text.encode(errors="surrogateescape"))]) for rank, text in enumerate(texts)}
    return [(each.ranks, each.traceback.type, each.traceback.message) for each in first_tracebacks(lines)]


def test_the_first_of_each_rank_counts():
    """What followed it is mostly its consequence."""
    assert raised(f"step 1\n{traceback()}step 2\n{traceback('late')}") == [((0,), "ValueError", "no")]


def test_ranks_that_raised_the_same_are_one():
    """In the order of the lowest rank of each; ranks that raised nothing are in none."""
    texts = [
        traceback("a"),
        traceback("b"),
        "fine\n",
        traceback("a"),
        traceback("a", kind="KeyError"),
        traceback("a", line=9),
    ]
    assert raised(*texts) == [
        ((0, 3), "ValueError", "a"),
        ((1,), "ValueError", "b"),
        ((4,), "KeyError", "a"),
        ((5,), "ValueError", "a"),
    ]
    assert raised("fine\n", "") == []


def test_numbers_in_messages_are_no_difference():
    """Ranks name themselves, their devices and addresses; torch marks every line with the rank."""
    other = marked(traceback("device 1 at 0x7f1a"), rank=1)
    assert raised(traceback("device 0 at 0x7e"), other) == [((0, 1), "ValueError", "device 0 at 0x7e")]


@pytest.mark.parametrize("before", ["Exception ignored in: <x>\n", "Exception in thread Thread-1 (run):\n"])
def test_what_ended_no_program_is_passed_over(before):
    """Unless it is all there is of a thread."""
    assert raised(f"{before}{traceback('a')}step\n{traceback('b')}") == [((0,), "ValueError", "b")]
    far = "x" * 100 + "\n"
    assert raised(f"{before}{traceback('a')}{far * (FIRST_BYTES // 50)}{traceback('b')}") == [((0,), "ValueError", "b")]
    alone = raised(f"{before}{traceback('a')}")
    assert alone == ([((0,), "ValueError", "a")] if "thread" in before else [])


@pytest.mark.parametrize("before_cut", range(0, 200, 7))
def test_a_traceback_at_the_end_of_what_is_read_at_once_is_found(before_cut):
    """With the line before it, which tells whether it counts."""
    thread = f"Exception in thread Thread-1 (run):\n{traceback('a')}"
    far = "x" * (FIRST_BYTES - len(thread) - before_cut - 1) + "\n"
    assert raised(f"{thread}{far}{traceback('b')}") == [((0,), "ValueError", "b")]
    ignored = f"Exception ignored in: <x>\n{traceback('c')}"
    assert raised(f"{thread}{far}{ignored}step\n{traceback('b')}") == [((0,), "ValueError", "b")]


def test_the_line_before_a_header_is_the_one_before_it():
    """Also behind what was read at once."""
    thread = f"Exception in thread Thread-1 (run):\n{traceback('a')}"
    far = ("- " * 50 + "\n") * (FIRST_BYTES // 50)
    assert raised(f"Exception ignored in: <x>\n{traceback()}{far}{thread}{far}{traceback('b')}") == [
        ((0,), "ValueError", "b")
    ]
    assert raised(f"{traceback()[:60]}\n{far}Exception ignored in: <x>\n{traceback()}") == []


def test_what_ended_a_program_without_a_traceback_counts_where_there_is_none():
    """Crashes of the interpreter and of C++, and a script that Python cannot read, with its place."""
    assert raised("step 1\nFatal Python error: Segmentation fault\n\nCurrent thread 0x1\n") == [
        ((0,), "Fatal Python error", "Segmentation fault")
    ]
    thrown = "terminate called after throwing an instance of 'std::runtime_error'"
    assert raised(f"{thrown}\n  what():  no\n") == [((0,), thrown, "")]
    assert raised(f"{thrown}\n{traceback()}{thrown}\n") == [((0,), "ValueError", "no")]
    place = '  File "/a/train.py", line 3\n    x = = 1\n        ^\nSyntaxError: invalid syntax'
    (folded,) = first_tracebacks({0: split(0, [(0, f"step 1\n{place}\nstep 2\n".encode())])})
    assert folded.traceback.text == place


def test_no_more_is_read_than_it_takes():
    """Of a log without end, and of one whose header nothing follows."""

    def endless():
        yield 0, traceback().encode()
        offset = len(traceback())
        while True:
            assert offset < 4 * FIRST_BYTES
            yield offset, b"step\n" * 1000
            offset += 5000

    (folded,) = first_tracebacks({0: split(0, endless())})
    assert folded.traceback.message == "no"
    assert raised("Traceback (most recent call last):\n") == raised("\udcff" * 3000) == []
