"""The line between two attempts."""

import pytest

from launcher.core.attempt_mark import mark_of, marked_attempt


@pytest.mark.parametrize("attempt", [1, 12, 999_999_999])
def test_what_is_written_is_recognised(attempt):
    assert mark_of(attempt).endswith(b"\n")
    assert marked_attempt(mark_of(attempt)[:-1]) == attempt


@pytest.mark.parametrize(
    "line", [b"", b"--- attempt ---", b"--- attempt 1 --- ", b" --- attempt 1 ---", b"--- attempt 1"]
)
def test_other_lines_are_none(line):
    assert marked_attempt(line) is None
