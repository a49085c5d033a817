"""What an agent notes of the growth of logs."""

import os

import pytest

from launcher.core.line_times import RECORD
from launcher.core.run_dir import RunDir
from launcher.supervise import attempts
from launcher.supervise.attempts import ArrivalNotes

S = 1_000_000_000


@pytest.fixture(name="run_dir")
def _run_dir(tmp_path):
    for rank in range(2):
        (tmp_path / f"device{rank}").mkdir()
    return RunDir(tmp_path)


def write(run_dir, text, second, rank=0, mode="a"):
    with run_dir.train_log(rank).open(mode) as file:
        file.write(text)
    os.utime(run_dir.train_log(rank), ns=(second * S, second * S))


def noted(run_dir, rank=0):
    """Seconds and lengths."""
    path = run_dir.arrivals(rank)
    return [(time_ns // S, end) for time_ns, end in RECORD.iter_unpack(path.read_bytes())] if path.exists() else []


def test_growth_is_noted_with_the_time_of_the_last_write(run_dir):
    """And nothing of a log that has not grown, or does not exist."""
    notes = ArrivalNotes(run_dir, [0, 1])
    write(run_dir, "ab", 10)
    notes.look(at_last=True)
    notes.look(at_last=True)
    write(run_dir, "cd", 20)
    notes.look(at_last=True)
    assert (noted(run_dir), noted(run_dir, 1)) == ([(10, 2), (20, 4)], [])


def test_looks_are_a_second_apart(run_dir, monkeypatch):
    """But for the last one, at the end of an attempt."""
    monkeypatch.setattr(attempts, "NOTE_EVERY_S", 1000)
    notes = ArrivalNotes(run_dir, [0])
    for second in (10, 20):
        write(run_dir, "ab", second)
        notes.look()
    assert noted(run_dir) == [(10, 2)]
    notes.look(at_last=True)
    assert noted(run_dir) == [(10, 2), (20, 4)]


def test_the_next_attempt_goes_on(run_dir):
    """Behind what its predecessor has noted; a record that a full disk has cut is removed."""
    write(run_dir, "ab", 10)
    ArrivalNotes(run_dir, [0]).look()
    with run_dir.arrivals(0).open("ab") as file:
        file.write(b"part")
    after = ArrivalNotes(run_dir, [0])
    after.look()
    write(run_dir, "cd", 20)
    after.look(at_last=True)
    assert noted(run_dir) == [(10, 2), (20, 4)]


def test_a_log_that_was_truncated_is_noted(run_dir, monkeypatch):
    """A file that has become long is emptied then."""
    notes = ArrivalNotes(run_dir, [0])
    for second, mode in ((10, "a"), (20, "a"), (30, "w"), (40, "a")):
        write(run_dir, "ab", second, mode=mode)
        notes.look(at_last=True)
    assert noted(run_dir) == [(10, 2), (20, 4), (30, 2), (40, 4)]
    monkeypatch.setattr(attempts, "KEPT_BYTES", 2 * RECORD.size)
    write(run_dir, "a", 50, mode="w")
    notes.look(at_last=True)
    assert noted(run_dir) == [(50, 1)]


def test_what_cannot_be_noted_is_left_out(run_dir):
    """A directory of that name, and a rank whose directory is gone."""
    run_dir.arrivals(0).mkdir()
    notes = ArrivalNotes(run_dir, [0, 1, 2])
    write(run_dir, "ab", 10)
    write(run_dir, "ab", 10, rank=1)
    notes.look()
    assert noted(run_dir, 1) == [(10, 2)]
