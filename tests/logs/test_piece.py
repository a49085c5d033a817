"""Logs that are followed piece by piece, by readers that keep their place themselves."""

import os

import pytest

from launcher.logs.log_file import MAX_PIECE_BYTES, Place, piece_after


@pytest.fixture
def log(tmp_path):
    return tmp_path / "train.log"


def test_each_line_is_given_once_and_an_unfinished_one_again(log):
    log.write_bytes(b"one\ntwo\nthr")
    first = piece_after(log, None)
    assert (first.lines, first.rest, first.is_anew) == ((b"one", b"two"), b"thr", True)
    with log.open("ab") as file:
        file.write(b"ee\nfour")
    second = piece_after(log, first.place)
    assert (second.lines, second.rest, second.is_anew) == ((b"three",), b"four", False)
    third = piece_after(log, second.place)
    assert (third.lines, third.rest, third.place) == ((), b"four", second.place)


def test_a_log_that_was_truncated_or_replaced_is_read_anew(log):
    log.write_bytes(b"long enough\n" * 9)
    place = piece_after(log, None).place
    os.truncate(log, 12)
    piece = piece_after(log, place)
    assert (piece.lines, piece.is_anew) == ((b"long enough",), True)
    other = log.with_name("other")
    other.write_bytes(b"another\n" * 99)
    other.replace(log)
    assert piece_after(log, piece.place).is_anew


@pytest.mark.parametrize("is_first", [True, False])
def test_of_more_than_a_piece_holds_the_end_is_read_from_the_start_of_a_line(log, is_first):
    log.write_bytes(b"a" * 9 + b"\n")
    place = None if is_first else piece_after(log, None).place
    with log.open("ab") as file:
        file.write(b"".join(b"%09d\n" % number for number in range(30_000)) + b"rest")
    piece = piece_after(log, place)
    assert piece.lines[-1] == b"%09d" % 29_999
    assert {len(line) for line in piece.lines} == {9}
    assert piece.skipped_bytes + 10 * len(piece.lines) + 4 == log.stat().st_size - (0 if is_first else 10)
    assert len(piece.lines) * 10 <= MAX_PIECE_BYTES


def test_a_line_longer_than_a_piece_does_not_hold_up_what_follows(log):
    log.write_bytes(b"x" * 3 * MAX_PIECE_BYTES)
    piece = piece_after(log, None)
    assert (piece.lines, len(piece.rest)) == ((), MAX_PIECE_BYTES)
    with log.open("ab") as file:
        file.write(b"\nnext\n")
    assert piece_after(log, piece.place).lines[-1] == b"next"


def test_a_log_that_is_not_there_yet_has_no_place(log):
    assert piece_after(log, None).place is None
    log.write_bytes(b"one\n")
    place = piece_after(log, None).place
    log.unlink()
    gone = piece_after(log, place)
    assert (gone.place, gone.is_anew) == (None, True)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_an_error_and_blocks_nobody(log, make):
    make(log)
    with pytest.raises(OSError, match=r"regular|directory"):
        piece_after(log, None)


@pytest.mark.parametrize("text", ["", "1", "1-", "-1-2", "1-2-3", "٣-1", "1-" + "9" * 40, "1-2\n"])
def test_only_a_place_is_read_as_one(text):
    assert Place.parse(text) is None
    assert str(Place.parse("12-345")) == "12-345"
