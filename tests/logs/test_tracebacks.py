"""Tracebacks in what a program printed."""

import subprocess
import sys
from functools import cache
from itertools import count
from pathlib import Path

import pytest

from launcher.logs.lines import Line, LineReader
from launcher.logs.traceback_blocks import GROUP_LINES, HEADER, MAX_TRACEBACKS, MESSAGE_CHARS, MESSAGE_LINES
from launcher.logs.tracebacks import (
    FIRST_BYTES,
    NEAR_BYTES,
    TRACEBACK_CHARS,
    cause_first,
    find_traceback,
    first_tracebacks,
    frames_in,
    traceback_in,
    tracebacks_in,
)
from tests.mindspore_messages import KERNEL

from .conftest import GROUP, LINK, OF_NETWORK, TRACEBACK, lines_of, marked

PROGRAM = Path(__file__).parents[1] / "programs" / "blame_raise.py"


@cache
def printed_by(*arguments, program=PROGRAM):
    command = [sys.executable, program, *arguments]
    return subprocess.run(command, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True, check=False).stdout


RAISING = next(
    number for number, line in enumerate(PROGRAM.read_text().splitlines(), 1) if "raise ValueError(message)" in line
)
STEP = f"blame_raise.py:{RAISING} in step"
needs_groups = pytest.mark.skipif(sys.version_info < (3, 11), reason="exception groups came with 3.11")


# --- tracebacks of real programs ---


@pytest.mark.parametrize(("kind", "type_name", "message", "where", "thread"), [
    *(
        (kind, "ValueError", "no such word", STEP, None)
        for kind in ("uncaught", "caught", "after_a_bar", "at_exit")
    ),
    ("ignored_afterwards", "ValueError", "no such word", STEP, None),
    ("thread_after_main", "ValueError", "in the main thread", STEP, None),
    ("thread", "ValueError", "no such word", STEP, "loader"),
    ("many_lines", "ValueError", "one", STEP, None),
    ("prefixed", "ValueError", "one\ntwo", STEP, None),
    ("syntax", "SyntaxError", None, "settings.py:1", None),
    ("no_message", "KeyboardInterrupt", "", None, None),
    ("deep", "RecursionError", None, None, None),
    pytest.param("group", "ExceptionGroup", None, None, None, marks=needs_groups),
])  # fmt: skip
def test_the_last_traceback_of_a_program_is_found(kind, type_name, message, where, thread):
    """Uncaught or caught and printed; after it may come what Python prints of exceptions that change nothing.

    Read from the first on, each is found as it is from the end; one of the main thread is preferred.
    """
    text = printed_by(kind)
    found, from_first = find_traceback(text), list(tracebacks_in(text))
    assert found == ([each for each in from_first if each.thread is None] or from_first)[-1]
    assert (found.type, found.thread) == (type_name, thread)
    assert message in {None, found.message}
    assert where in {None, found.where}
    assert found.text.startswith(HEADER) or kind == "group"


# --- texts ---

WORKER = f"""{TRACEBACK[:-3]}Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/a/data.py", line 8, in load
    parse()
ValueError: bad line
"""
BELOW_LIBRARIES = TRACEBACK.replace(
    "ValueError",
    '  File "/v/site-packages/mindspore/api.py", line 1805, in run\n    f()\n'
    '  File "/usr/lib/python3.11/threading.py", line 3, in wait\n    g()\nValueError',
)
LOADING = TRACEBACK.replace("ValueError: no", "RuntimeError: Error(s) in loading state_dict for Net:")
IGNORED, OF_THREAD = "Exception ignored in: <x>\n", "Exception in thread Thread-1 (run):\n"
FRAMES = '  File "/a/b.py", line 1, in f\n    f()\n' * 1000
KEYS = '\tMissing key(s) in state_dict: "a".\n\tsize mismatch for b'


@pytest.mark.parametrize(("text", "told"), [
    (TRACEBACK, {"message": "no", "where": "train.py:88 in step", "lines_after": 0}),
    (f"{TRACEBACK}step 2\n\nstep 3\n", {"lines_after": 2}),
    # The traceback of a data worker is printed by torch below the main process's own, and is the one that counts.
    (WORKER, {"message": "bad line", "where": "data.py:8 in load"}),
    # Printed earlier for its own sake, a traceback caused nothing.
    (f"{TRACEBACK}step 2\n{TRACEBACK}", {"text": TRACEBACK.strip()}),
    # The place is the program's own line, not one of a library that it called.
    (BELOW_LIBRARIES, {"where": "train.py:88 in step"}),
    (BELOW_LIBRARIES.replace("/a/train.py", "/v/site-packages/a.py"), {"where": "threading.py:3 in wait"}),
    # The sections of a message belong to it.
    (f"{OF_NETWORK}[INFO] a(7,7f): x\n", {"message": OF_NETWORK.partition("ValueError: ")[2].strip(), "where": "net.py:51 in main",
                                          "lines_after": 1}),
    # A program that was killed while it printed had printed another before.
    (f"{TRACEBACK}more\n{TRACEBACK[:60]}", {"where": "train.py:88 in step"}),
    # Indented lines below an exception belong to it, as torch writes them; a progress bar does not.
    (f"{LOADING}{KEYS}\nstep 2\n", {"message": f"Error(s) in loading state_dict for Net:\n{KEYS}",
                                    "text": f"{LOADING}{KEYS}", "lines_after": 1}),
    (f"{TRACEBACK}  10%|#\r  20%|##\n 30%|##\n", {"message": "no"}),
    # A long one is cut; the end is kept, where the exception is.
    (f"{HEADER}\n{FRAMES}ValueError: no\n", {"text": f"{FRAMES}ValueError: no"[-TRACEBACK_CHARS:]}),
    # Without the exception, its last line, nothing is known.
    ("", None), (HEADER, None), (TRACEBACK[:60], None), (TRACEBACK[:-16], None), ("\0" * 5000, None),
    (f"{TRACEBACK[:60]}\n\nstep 2\n", None), (f"{marked(TRACEBACK[:60])}step 2\n", None),
], ids=count())  # fmt: skip
def test_what_is_told_of_a_text(text, told):
    found = find_traceback(text)
    assert (found and {name: getattr(found, name) for name in told}) == told


@pytest.mark.parametrize("begin", ["", "50%|###  | 5/10\r"])
@pytest.mark.parametrize("text", [TRACEBACK, WORKER])
def test_lines_that_all_begin_alike_are_read_without_that(text, begin):
    found, plain = find_traceback(begin + marked(text)), find_traceback(text)
    assert (found.type, found.message, found.where) == (plain.type, plain.message, plain.where)


def test_of_a_message_some_lines_are_kept():
    """Of those that all begin alike nothing else tells where the message ends."""
    assert find_traceback(marked(TRACEBACK + "x\n" * 100)).message.count("\n") == MESSAGE_LINES


def test_of_a_long_message_the_beginning_is_kept():
    found = find_traceback(TRACEBACK.replace("ValueError: no", "ValueError: size " + "y" * 9000))
    assert found.text.startswith("\n".join(TRACEBACK.splitlines()[:3]) + "\nValueError: size yyy")
    assert found.text.endswith(f"yyy… {9000 + len('ValueError: size ') - MESSAGE_CHARS} more characters")
    assert len(found.message) == 9000 + len("size ")


@pytest.mark.parametrize(("kind", "tracebacks", "raised"), [
    ("chained", 2, ("RuntimeError", "cannot go on")), ("chained_twice", 3, ("KeyError", "'x'")),
])  # fmt: skip
def test_of_chained_exceptions_the_last_is_the_failure(kind, tracebacks, raised):
    """It is told with the others and the sentences that link them, whether raised from another or while it was handled."""
    printed = printed_by(kind).removeprefix("starting\n")
    found = find_traceback(printed)
    assert (found.type, found.message, found.text.count(HEADER)) == (*raised, tracebacks)
    assert found.text == printed.strip() == next(tracebacks_in(printed)).text


def test_a_group_keeps_its_exceptions():
    for found in (find_traceback(f"{TRACEBACK}step\n{GROUP}step\n"), next(tracebacks_in(f"{GROUP}step\n{TRACEBACK}"))):
        assert (found.type, found.message) == ("ExceptionGroup", "several (2 sub-exceptions)")
        assert found.lines_after > 0
        assert "\n  | ValueError: first\n" in found.text
        assert found.text.endswith("  | KeyError: 'second'\n  +------------------------------------")
    assert [each.type for each in tracebacks_in(f"{GROUP}{TRACEBACK}")] == ["ExceptionGroup", "ValueError"]
    chain = find_traceback(f"{TRACEBACK}{LINK}{GROUP}{LINK}{TRACEBACK}")
    assert (chain.text.startswith(TRACEBACK), chain.text.count(LINK)) == (True, 2)
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
NO_INT = "invalid literal for int() with base 10: 'x'"
TWO = f"{NO_INT}\n\nThe above exception was the direct cause of the following exception:\n\n{HEADER}"


@pytest.mark.parametrize(("source", "raised", "contained"), [
    # Python breaks the frame of a group at a message of several lines.
    pytest.param(GROUP_AS_CAUSE, ("RuntimeError", "outer", "program.py:4 in <module>"),
                 ["ExceptionGroup: g (2 sub-exceptions)\n", "multi\n", "| KeyError: 'c'\n"], marks=needs_groups),
    # Tracebacks of another process and of this one are one chain, though each ends with the same exception.
    (IN_POOL, ("ValueError", NO_INT), ["<module>", TWO]),
    (IN_EXECUTOR, ("ValueError", NO_INT), ["<module>", TWO]),
    # A traceback in a message replaces none.
    (QUOTING, ("ValueError", f"{HEADER}\n  nested text\nFoo: x", "program.py:1 in <module>"), ["\nFoo: x"]),
], ids=["group", "pool", "executor", "quoted"])  # fmt: skip
def test_several_tracebacks_may_be_one(tmp_path, source, raised, contained):
    program = tmp_path / "program.py"
    program.write_text(source)
    printed = printed_by(program=program)
    for text in (printed, marked(printed)):
        (found,) = tracebacks_in(text)
        assert found == find_traceback(text) == traceback_in(text.encode())
        assert (found.type, found.message, found.where)[: len(raised)] == raised
        assert all(each in found.text for each in contained)


def test_the_last_hundreds_of_tracebacks_are_looked_at():
    harmless = IGNORED + TRACEBACK
    assert find_traceback(TRACEBACK + harmless * (MAX_TRACEBACKS - 1)).where == "train.py:88 in step"
    assert find_traceback(TRACEBACK + harmless * MAX_TRACEBACKS) is None


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
HEADERS = 200


@pytest.mark.parametrize("line", [
    f"{HEADER}\n", f"  {HEADER}\n", f"  {HEADER}\n  x\n", f"  + Exception Group {HEADER}\n  | E: x\n", f"  | {HEADER}\n",
    f"E: {HEADER}\n  x\n", f"{HEADER}\n  x\nE: {HEADER}\n", f"[rank0]: {HEADER}\n[rank0]:   x\n",
])  # fmt: skip
@pytest.mark.parametrize("search", [find_traceback, lambda text: list(tracebacks_in(text))])
def test_many_headers_cost_no_more_each_than_few(line, search):
    """Whatever a program prints, the time to read it grows with its length only."""
    few, many = work(search, line * HEADERS), work(search, line * HEADERS * 4)
    assert many < 6 * few


@pytest.mark.parametrize("first", ["", TRACEBACK])
def test_lines_without_a_traceback_cost_nothing(first):
    """Hundreds of ranks fail at once, each after 256 KiB of short lines: only lines of tracebacks are looked at."""
    log = (first + "a\n" * (LOG_BYTES // 2))[:LOG_BYTES].encode()
    assert (traceback_in(log) is not None) is bool(first)
    assert work(traceback_in, log) < 1000


MANY_FRAMES = TRACEBACK.replace("    load()\n", f"    load()\n{FRAMES}")
LONG_LINE = TRACEBACK.replace("    load()\n", f"    load({'x' * NEAR_BYTES})\n")


@pytest.mark.parametrize("text", [
    TRACEBACK + MANY_FRAMES, f"{TRACEBACK}{LINK}{MANY_FRAMES}", f"{LONG_LINE}{LINK}{TRACEBACK}",
], ids=["two", "chain", "long line"])  # fmt: skip
def test_what_lies_far_before_the_end_of_a_log_is_not_forgotten(text):
    """The end of a log is searched first: the rest too if the traceback there began earlier."""
    assert traceback_in(text.encode()) == find_traceback(text)


def test_a_traceback_far_before_those_that_do_not_count_is_found():
    text = f"{TRACEBACK}{'a' * NEAR_BYTES}\n{IGNORED}{TRACEBACK}{OF_THREAD}{TRACEBACK}"
    assert traceback_in(text.encode()).thread is None


@pytest.mark.parametrize("after", ["", "\nstep 7\n", TRACEBACK])
@pytest.mark.parametrize("first", ["", "Exception thrown from dataset pipeline.\n"])
def test_the_sections_of_mindspores_messages_belong_to_them(first, after):
    text = f"{TRACEBACK.removesuffix(chr(10)).rpartition(chr(10))[0]}\nRuntimeError: {first}{KERNEL}{after}"
    found = next(iter(tracebacks_in(text)))
    assert (found.type, found.message) == ("RuntimeError", f"{first}{KERNEL}".strip())
    assert find_traceback(text).lines_after == (0 if after == TRACEBACK else len(after.splitlines()[1:]))


# --- all of them ---


def test_every_traceback_is_found_once():
    """A chain is one; harmless and cut off ones are none; that of a data worker takes the place of the main process's."""
    text = (
        f"{TRACEBACK}step\n{TRACEBACK}{LINK}{TRACEBACK}Exception ignored in: <x>\n{TRACEBACK}{WORKER}{TRACEBACK[:60]}"
    )
    found = list(tracebacks_in(text))
    assert [(each.message, each.text.count(LINK)) for each in found] == [("no", 0), ("no", 1), ("bad line", 0)]
    assert not list(tracebacks_in(HEADER))


def test_the_frames_of_a_traceback():
    assert frames_in(WORKER) == [("/a/train.py", "step"), ("/a/data.py", "load")]


# --- the first traceback of each rank ---


def traceback(message, line=88, kind="ValueError"):
    return TRACEBACK.replace("88", str(line)).replace("ValueError: no", f"{kind}: {message}")


def raised(*texts):
    """`texts`: what each rank wrote. Ranks, and what they raised first."""
    lines = {rank: lines_of(text, rank) for rank, text in enumerate(texts)}
    return [(each.ranks, each.traceback.type, each.traceback.message) for each in first_tracebacks(lines)]


FAR = ("- " * 50 + "\n") * (FIRST_BYTES // 50)
THROWN = "terminate called after throwing an instance of 'std::runtime_error'"
A, B = ((0,), "ValueError", "a"), ((0,), "ValueError", "b")


@pytest.mark.parametrize(("texts", "expected"), [
    # What followed the first is mostly its consequence.
    ([f"step 1\n{traceback('a')}step 2\n{traceback('late')}"], [A]),
    # Ranks that raised the same are one, in the order of the lowest; ranks that raised nothing are in none.
    ([traceback("a"), traceback("b"), "fine\n", traceback("a"), traceback("a", kind="KeyError"), traceback("a", line=9)],
     [((0, 3), "ValueError", "a"), ((1,), "ValueError", "b"), ((4,), "KeyError", "a"), ((5,), "ValueError", "a")]),
    (["fine\n", ""], []),
    ([f"{HEADER}\n"], []),
    # Numbers in messages are no difference: ranks name themselves, their devices and addresses, and torch marks lines.
    ([traceback("device 0 at 0x7e"), marked(traceback("device 1 at 0x7f1a"))], [((0, 1), "ValueError", "device 0 at 0x7e")]),
    # What ended no program is passed over, unless it is all there is of a thread.
    *(([f"{before}{traceback('a')}{between}{traceback('b')}"], [B])
      for before in (IGNORED, OF_THREAD) for between in ("step\n", FAR)),
    ([f"{OF_THREAD}{traceback('a')}"], [A]),
    ([f"{IGNORED}{traceback('a')}"], []),
    # The line before a header is the one before it, also behind what was read at once.
    ([f"{IGNORED}{traceback('c')}{FAR}{OF_THREAD}{traceback('a')}{FAR}{traceback('b')}"], [B]),
    ([f"{traceback('a')[:60]}\n{FAR}{IGNORED}{traceback('a')}"], []),
    # Where there is no traceback, what else Python or C++ print of a crash counts.
    (["step 1\nFatal Python error: Segmentation fault\n\nCurrent thread 0x1\n"],
     [((0,), "Fatal Python error", "Segmentation fault")]),
    ([f"{THROWN}\n  what():  no\n"], [((0,), THROWN, "")]),
    ([f"{THROWN}\n{traceback('a')}{THROWN}\n"], [A]),
])  # fmt: skip
def test_the_first_traceback_of_each_rank(texts, expected):
    assert raised(*texts) == expected


@pytest.mark.parametrize(("texts", "cause", "kinds"), [
    (["", traceback("harmless", kind="ImportError")], (1, traceback("a")), [((1,), "ValueError"), ((1,), "ImportError")]),
    ([traceback("x", kind="KeyError"), traceback("a"), traceback("a")], (2, traceback("a")),
     [((1, 2), "ValueError"), ((0,), "KeyError")]),
    ([traceback("a")], None, [((0,), "ValueError")]),
    ([traceback("a")], (0, "no traceback"), [((0,), "ValueError")]),
])  # fmt: skip
def test_the_cause_of_a_failure_comes_first(texts, cause, kinds):
    errors = first_tracebacks({rank: lines_of(text, rank) for rank, text in enumerate(texts)})
    assert [(each.ranks, each.traceback.type) for each in cause_first(errors, cause)] == kinds


@pytest.mark.parametrize("before_cut", range(0, 200, 7))
def test_a_traceback_at_the_end_of_what_is_read_at_once_is_found(before_cut):
    thread = f"{OF_THREAD}{traceback('a')}"
    far = "x" * (FIRST_BYTES - len(thread) - before_cut - 1) + "\n"
    for between in ("", f"{IGNORED}{traceback('c')}step\n"):
        assert raised(f"{thread}{far}{between}{traceback('b')}") == [B]


def test_a_script_that_python_cannot_read_is_told_with_its_place():
    place = '  File "/a/train.py", line 3\n    x = = 1\n        ^\nSyntaxError: invalid syntax'
    (folded,) = first_tracebacks({0: lines_of(f"step 1\n{place}\nstep 2\n")})
    assert folded.traceback.text == place


def test_no_more_is_read_than_it_takes():
    reader, first, more = LineReader(0), traceback("no").encode(), b"step\n" * 1000

    def endless():
        yield from reader.lines(0, first)
        for offset in range(len(first), 4 * FIRST_BYTES, len(more)):
            yield from reader.lines(offset, more)
        raise AssertionError("all is read")

    (folded,) = first_tracebacks({0: endless()})
    assert folded.traceback.message == "no"
    assert first_tracebacks({0: [Line(0, 0, b"\xff" * 3000)]}) == []
