"""The first traceback of each rank."""

import subprocess
import sys
from pathlib import Path

import pytest

from launcher.logs.lines import LineReader
from launcher.logs.raised import FIRST_BYTES, first_tracebacks

PROGRAM = Path(__file__).parents[1] / "programs" / "blame_raise.py"


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
    marked = "".join(f"[rank1]: {line}\n" for line in traceback("device 1 at 0x7f1a").splitlines())
    assert raised(traceback("device 0 at 0x7e"), marked) == [((0, 1), "ValueError", "device 0 at 0x7e")]


def test_a_chain_is_one_traceback():
    """The first exception led to the last, which is the one that was raised."""
    link = "\nDuring handling of the above exception, another exception occurred:\n\n"
    (folded,) = first_tracebacks(
        {0: split(0, [(0, f"{traceback('a')}{link}{traceback('b')}{traceback('c')}".encode())])}
    )
    assert (folded.traceback.message, folded.traceback.first_cause) == ("b", "ValueError: a at train.py:88 in step")
    assert folded.traceback.text.count("Traceback") == 2


def test_the_traceback_of_a_data_worker_is_the_one_that_counts():
    """It is printed by torch below the main process's own."""
    original = f"Original {traceback('bad line')}"
    assert raised(traceback("Caught ValueError in DataLoader worker process 0.") + original) == [
        ((0,), "ValueError", "bad line")
    ]


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


@pytest.mark.parametrize("kind", ["uncaught", "caught", "chained_twice", "thread", "group", "prefixed"])
def test_tracebacks_of_real_programs(kind):
    """Two ranks that run the same program raise the same."""
    if kind == "group" and sys.version_info < (3, 11):
        pytest.skip("exception groups came with 3.11")
    command = [sys.executable, PROGRAM, kind]
    text = subprocess.run(command, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True, check=False).stdout
    ((ranks, _, _),) = raised(text, text)
    assert ranks == (0, 1)
