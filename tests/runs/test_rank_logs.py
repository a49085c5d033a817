"""Read the logs of several ranks as lines."""

import errno
import os
from pathlib import Path

import pytest

from launcher.core.events import AttemptStarted, RankStarted, TimestampedEvent, to_line
from launcher.core.run_dir import RunDir
from launcher.logs.log_file import Truncation
from launcher.runs.rank_logs import MAX_PIECE_BYTES, AttemptStarts, RankLogs, why_unreadable

MARK = "--- attempt 1 ---\n"


@pytest.fixture
def run_dir(tmp_path):
    made = RunDir(tmp_path)
    for rank in range(2):
        made.device(rank).mkdir()
    return made


@pytest.fixture
def opened(run_dir):
    made = []

    def open_logs():
        made.append(RankLogs(run_dir, [0, 1], 0))
        return made[-1]

    yield open_logs
    for logs in made:
        logs.close()


BEGUN = (AttemptStarted(0, 1), RankStarted(0, 1, 0), RankStarted(1, 1, 0))


def tell(run_dir, *events):
    with run_dir.events.open("a") as file:
        file.writelines(to_line(TimestampedEvent(0, 0, event)) for event in events)


def write(run_dir, *texts, mode="w"):
    for rank, text in enumerate(texts):
        with run_dir.train_log(rank).open(mode) as log:
            log.write(text)


def attempts_of(logs):
    """Return the attempt, rank and text of each new line, in the order of `new_lines`."""
    told = []
    while some := [line for lines in logs.new_lines() for line in lines]:
        told += [(line.attempt, line.global_rank, line.raw.decode()) for line in some]
    return told


def test_an_attempt_is_read_before_the_next(run_dir, opened):
    """However much one rank wrote in it, and how little another; the line between two belongs to the later one."""
    first = ["a\n", "much more than one chunk of it\n" * 50_000]
    write(run_dir, *(f"{text}{MARK}b\n" for text in first))
    starts = [RankStarted(rank, 1, 0, len(text) + len(MARK)) for rank, text in enumerate(first)]
    tell(run_dir, *BEGUN, AttemptStarted(1, 1), *starts)
    told = attempts_of(opened())
    assert len(told) == 1 + 50_000 + 4
    assert [attempt for attempt, _, _ in told] == sorted(attempt for attempt, _, _ in told)
    assert sorted(told[-4:]) == [(1, rank, text) for rank in (0, 1) for text in (MARK[:-1], "b")]


def test_a_restart_while_it_is_followed(run_dir, opened):
    write(run_dir, "a\n")
    tell(run_dir, *BEGUN)
    logs = opened()
    assert attempts_of(logs) == [(0, 0, "a")]
    write(run_dir, f"{MARK}b\n", f"late\n{MARK}b\n", mode="a")
    tell(run_dir, AttemptStarted(1, 1), RankStarted(0, 1, 0, 2 + len(MARK)), RankStarted(1, 1, 0, 5 + len(MARK)))
    told = attempts_of(logs)
    assert told[0] == (0, 1, "late")
    assert {attempt for attempt, _, _ in told[1:]} == {1}


def test_a_mark_that_is_read_before_anybody_tells_where_it_stands(run_dir, opened):
    write(run_dir, "a\n")
    tell(run_dir, *BEGUN)
    logs = opened()
    assert attempts_of(logs) == [(0, 0, "a")]
    tell(run_dir, AttemptStarted(1, 1))
    write(run_dir, f"as '{MARK[:-1]}'\n{MARK}", mode="a")
    assert attempts_of(logs) == [(0, 0, f"as '{MARK[:-1]}'"), (1, 0, MARK[:-1])]
    write(run_dir, "b\n", mode="a")
    tell(run_dir, RankStarted(0, 1, 0, 27 + 2 * len(MARK)))
    assert attempts_of(logs) == [(1, 0, "b")]


@pytest.mark.parametrize("before", ["", "a\n"], ids=["its first", "after the first"])
def test_a_mark_of_an_attempt_that_is_not_the_next_of_its_rank(run_dir, opened, before):
    """In an elastic run a rank has no part in some attempts."""
    mark = MARK.replace("1", "2")
    begun = BEGUN if before else BEGUN[:-1]
    tell(run_dir, *begun, AttemptStarted(1, 1), AttemptStarted(2, 1))
    write(run_dir, "", f"{before}{mark}b\n")
    logs = opened()
    told = attempts_of(logs) + attempts_of(logs)  # where an attempt is found to begin, that comes with the next look
    assert [(attempt, text) for attempt, _, text in told] == [*([(0, "a")] if before else []), (2, mark[:-1]), (2, "b")]


def test_what_only_looks_like_a_mark_begins_no_attempt(run_dir, opened):
    """A program may retry, and say so in these words."""
    tell(run_dir, *BEGUN)
    logs = opened()
    write(run_dir, f"{MARK}x\n")
    assert attempts_of(logs) == [(0, 0, MARK[:-1]), (0, 0, "x")]


def test_no_attempt_begins_before_another_ranks_last_lines(run_dir, opened):
    """Though the rank was read to its end before, so that the mark is the first of what is read next."""
    write(run_dir, "a\n", "a\n")
    tell(run_dir, *BEGUN)
    logs = opened()
    assert len(attempts_of(logs)) == 2
    write(run_dir, f"a\n{MARK}b\n", f"a\nlast of 0\n{MARK}b\n")
    tell(run_dir, AttemptStarted(1, 1))
    told = attempts_of(logs)
    assert told[0] == (0, 1, "last of 0")
    assert [attempt for attempt, _, _ in told[1:]] == [1] * 4


@pytest.mark.parametrize("read", ["with_partial", "blocks"])
def test_what_cannot_be_read_any_more_is_told(run_dir, opened, read):
    write(run_dir, "a\n", "a\n")
    logs = opened()
    run_dir.train_log(0).unlink()
    run_dir.train_log(0).mkdir()
    assert list(getattr(logs.of_rank[0], read)()) == []
    assert len(list(getattr(logs.of_rank[1], read)())) == 1
    assert logs.unreadable == {0: (run_dir.train_log(0), os.strerror(errno.EISDIR))}


@pytest.mark.parametrize("read", ["with_partial", "blocks"])
def test_an_error_within_a_log_is_told(run_dir, opened, monkeypatch, read):
    run_dir.train_log(0).write_bytes(b"line\n" * 100_000)
    read_bytes = os.pread

    def failing(descriptor, count, offset):
        if offset >= 1 << 17:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read_bytes(descriptor, count, offset)

    monkeypatch.setattr(os, "pread", failing)
    logs = opened()
    given = list(getattr(logs.of_rank[0], read)())
    assert given
    assert logs.unreadable == {0: (run_dir.train_log(0), os.strerror(errno.EIO))}


@pytest.mark.parametrize(("before", "after"), [("a\n", f"{MARK}b\n"), ("half", f"\n{MARK}b\n")])
def test_a_mark_waits_for_what_other_ranks_wrote_before(run_dir, opened, before, after):
    """Whoever collapses lines would show them apart."""
    write(run_dir, before, before)
    tell(run_dir, *BEGUN)
    logs = opened()
    write(run_dir, *[after] * 2, mode="a")
    tell(run_dir, AttemptStarted(1, 1))
    told = attempts_of(logs)
    assert [attempt for attempt, _, _ in told] == [0, 0, 1, 1, 1, 1]


def test_blocks_of_a_long_line_end_between_characters(run_dir, opened):
    """A terminal would show none of the halves."""
    text = "x" + "é" * MAX_PIECE_BYTES
    write(run_dir, text)
    blocks = list(opened().of_rank[0].blocks())
    assert len(blocks) > 1
    assert "".join(block.decode() for block in blocks) == text


@pytest.mark.parametrize("at", [0, 1, 10, 60, 99])
@pytest.mark.parametrize("chunk_bytes", [16, 50, 1 << 16])
def test_lines_are_read_from_before_the_first_mark(run_dir, opened, monkeypatch, at, chunk_bytes):
    monkeypatch.setattr("launcher.runs.rank_logs.CHUNK_BYTES", chunk_bytes)
    lines = [b"line %d" % number for number in range(100)]
    lines[at] = b"a mark stands here"
    run_dir.train_log(0).write_bytes(b"\n".join(lines))
    run_dir.train_log(1).write_bytes(b"nothing\n" * 100)
    logs = opened().of_rank
    found = [line.raw for line in logs[0].with_partial_from([b"mark", b"other"])]
    assert found[-(100 - at) - (at > 0) :] == lines[max(0, at - 1) :]
    assert not list(logs[1].with_partial_from([b"mark", b"other"]))


def test_what_is_no_log_is_left_out(run_dir, opened):
    os.mkfifo(run_dir.train_log(0))
    logs = opened()
    assert (list(logs.of_rank), list(logs.unreadable)) == ([1], [0])
    run_dir.train_log(1).mkdir()
    assert why_unreadable(run_dir.train_log(1)) == "Is a directory"
    assert why_unreadable(run_dir.env_log(1)) is None


def test_what_stands_in_a_truncated_log_is_of_the_last_attempt(run_dir):
    truncations = []
    logs = RankLogs(run_dir, [0, 1], 0, on_truncation=lambda rank, truncation: truncations.append((rank, truncation)))
    write(run_dir, f"a\n{MARK}b\n")
    tell(run_dir, *BEGUN)
    tell(run_dir, AttemptStarted(1, 1), RankStarted(0, 1, 0, 2 + len(MARK)), RankStarted(1, 1, 0, len(MARK)))
    assert attempts_of(logs) == [(0, 0, "a"), (1, 0, MARK[:-1]), (1, 0, "b")]
    write(run_dir, "c\n")
    assert attempts_of(logs) == [(1, 0, "c")]
    assert truncations == [(0, Truncation(lost_bytes=4 + len(MARK), unread_bytes=0))]
    logs.close()


def test_every_log_gives_its_share(run_dir, opened):
    """Of what is read at once, so that ranks that write alike stay side by side."""
    write(run_dir, *["0123456789abcde\n" * 10_000] * 2)
    logs = opened()
    came = list(logs.new_lines(at_once_bytes=8192))
    assert sorted(lines[0].global_rank for lines in came) == [0, 1]
    assert all(len(lines) == 256 for lines in came)


def test_one_inotify_is_enough(run_dir, opened):
    """Who only reads needs none; the limit of a user is small."""

    def instances():
        return [link for link in Path("/proc/self/fd").iterdir() if "inotify" in _target(link)]

    logs = opened()
    assert instances() == []
    follower = logs.follower()
    logs.note_attempts()
    assert len(instances()) == 1
    follower.close()


def _target(link):
    try:
        return str(link.readlink())
    except OSError:
        return ""


def started(attempt, offset=0):
    return AttemptStarted(attempt, 29500), RankStarted(0, 1, 0, offset)


@pytest.mark.parametrize(("events", "expected"), [
    ([*started(0), *started(1, 100 + len(MARK))], [(0, 0), (100, 1)]),
    # Of a log that was emptied the former attempts are gone: offsets count from its new beginning, and what stands
    # there is the last one's that wrote before.
    (
        [*started(0), *started(1, 1000), *started(2, 40 + len(MARK)), *started(3, 80 + len(MARK))],
        [(0, 1), (40, 2), (80, 3)],
    ),
    ([*started(0), *started(1, 1000), *started(2, len(MARK))], [(0, 2)]),
    # An attempt that wrote nothing has no part.
    ([*started(0), *started(1, len(MARK))], [(0, 1)]),
], ids=["its mark", "emptied", "emptied and silent", "silent"])  # fmt: skip
def test_an_attempt_begins_with_its_mark(events, expected):
    starts = AttemptStarts()
    for event in events:
        starts.apply(event)
    assert starts.of(0) == expected


def test_a_start_that_is_noted_twice_stands_once():
    """The mark may be read before the event."""
    starts = AttemptStarts()
    starts.apply(RankStarted(0, 1))
    starts.note(0, 50, 1)
    for event in started(1, 50 + len(MARK)):
        starts.apply(event)
    assert starts.of(0) == [(0, 0), (50, 1)]
