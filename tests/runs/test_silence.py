"""Find ranks that have been silent for unusually long."""

import os
import time

import pytest

from launcher.core.line_times import RECORD
from launcher.core.run_dir import RunDir
from launcher.runs.silence import SilenceReader

SECOND_NS = 10**9


@pytest.fixture(name="run_dir")
def _run_dir(tmp_path):
    return RunDir(tmp_path)


def written(run_dir, rank, ago_s, pauses_s=()):
    """Write a log and its arrival times: the last write `ago_s` ago, after writes with these pauses."""
    run_dir.device(rank).mkdir(exist_ok=True)
    run_dir.train_log(rank).write_text("here\n")
    last_ns = time.time_ns() - int(ago_s * SECOND_NS)
    os.utime(run_dir.train_log(rank), ns=(0, last_ns))
    times_ns = [last_ns - int(sum(pauses_s[at:]) * SECOND_NS) for at in range(len(pauses_s) + 1)]
    records = [RECORD.pack(time_ns, at + 1) for at, time_ns in enumerate(times_ns)]
    run_dir.arrivals(rank).write_bytes(b"".join(records))


def silent(run_dir, count, beats_ns=None, started_ns=None):
    beats_ns = {rank: (beats_ns or {}).get(rank) for rank in range(count)}
    return set(SilenceReader(run_dir).look(beats_ns, started_ns or {}).silent_s)


@pytest.mark.parametrize(("ago_s", "pauses_s", "expected"), [
    (60, [2] * 20, True),  # it wrote every two seconds
    (12, [2] * 20, False),  # too short a time
    (60, [30] * 10, False),  # it writes every half a minute
    (60, [2] * 10 + [40] + [2] * 10, False),  # and has paused before
    (60, [1] * 3, False),  # some lines at the start say nothing of its pace
    (3600, [1] * 12, False),
    (3600, [60] * 10, True),
])  # fmt: skip
def test_a_rank_is_measured_by_its_own_pauses(run_dir, ago_s, pauses_s, expected):
    written(run_dir, 0, ago_s, pauses_s)
    assert silent(run_dir, 1) == ({0} if expected else set())


def test_a_rank_that_never_wrote_regularly_is_measured_by_most_others(run_dir):
    written(run_dir, 0, 1)
    for rank in (1, 2, 3):
        written(run_dir, rank, 60)
    assert silent(run_dir, 4) == set()
    for rank in (1, 2):
        written(run_dir, rank, 2)
    assert silent(run_dir, 4) == {3}
    assert silent(run_dir, 2) == set()


def test_a_heartbeat_is_a_sign_as_a_line_is(run_dir):
    written(run_dir, 0, 60, [2] * 20)
    assert silent(run_dir, 1, {0: time.time_ns()}) == set()
    assert silent(run_dir, 1, {0: time.time_ns() - 70 * SECOND_NS}) == {0}


def test_logs_that_are_not_here_tell_nothing(run_dir):
    assert silent(run_dir, 3) == set()
    written(run_dir, 0, 60, [2] * 20)
    run_dir.arrivals(0).write_bytes(b"abc")
    assert silent(run_dir, 1) == set()


def test_all_may_be_silent(run_dir):
    for rank in range(2):
        written(run_dir, rank, 60, [2] * 20)
    found = SilenceReader(run_dir).look({0: None, 1: None}, {})
    assert found.all_are_silent
    assert len(found.logs) == 2


def test_a_rank_that_starts_again_is_not_measured_by_an_attempt_before(run_dir):
    restarted_ns = time.time_ns() - 30 * SECOND_NS
    for rank in range(3):
        written(run_dir, rank, 35, [1] * 30)
    assert silent(run_dir, 3) == {0, 1, 2}
    assert silent(run_dir, 3, started_ns=dict.fromkeys(range(3), restarted_ns)) == set()
    for rank in range(2):
        written(run_dir, rank, 1)
    assert silent(run_dir, 3, started_ns=dict.fromkeys(range(3), time.time_ns() - 10 * SECOND_NS)) == set()
    assert silent(run_dir, 3, started_ns=dict.fromkeys(range(3), restarted_ns)) == {2}


def test_a_reader_forgets_the_pace_of_an_attempt_when_the_next_begins(run_dir):
    """Also where nothing has been written since."""
    written(run_dir, 0, 60, [2] * 20)
    reader = SilenceReader(run_dir)
    assert reader.look({0: None}, {0: 0}).all_are_silent
    assert not reader.look({0: None}, {0: time.time_ns() - 20 * SECOND_NS}).silent_s


def test_ranks_that_leave_what_is_printed_to_rank_0_are_not_silent(run_dir):
    written(run_dir, 0, 1, [1] * 60)
    for rank in (1, 2, 3):
        written(run_dir, rank, 40, [2] * 10)
    assert silent(run_dir, 4) == set()
    for rank in (1, 2):
        written(run_dir, rank, 1, [1] * 60)
    assert silent(run_dir, 4) == {3}
