"""When ranks that failed but do not exit are recorded, and when they count as failed."""

import json
from types import SimpleNamespace

import pytest

from launcher.core.events import NotExiting
from launcher.core.run_dir import RunDir
from launcher.supervise import lingering


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(lingering.time, "monotonic", lambda: now.seconds)
    return now


def failed(run_dir, rank, pid):
    path = run_dir.failure(rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"pid": pid, "time_ns": 1, "kind": "exception", "type": "ValueError", "message": "no"}))


def watched(tmp_path, clock, grace_s, failures, until_s):
    """Let ranks fail after these seconds. Return when each is recorded, and when the ranks count as failed."""
    run_dir, recorded, over = RunDir(tmp_path), {}, []
    pids = {rank: 1000 + rank for rank in failures}

    def record(event):
        assert isinstance(event, NotExiting)
        recorded[event.global_rank] = clock.seconds - 100

    group = SimpleNamespace(running=pids, run_dir=run_dir, event_log=SimpleNamespace(record=record))
    ranks = lingering.LingeringRanks(group, grace_s)
    while clock.seconds < 100 + until_s:
        clock.seconds += 0.5
        for rank, after_s in failures.items():
            if clock.seconds - 100 >= after_s:
                failed(run_dir, rank, pids[rank])
        if ranks.look():
            over.append(clock.seconds - 100)
    return recorded, over[0] if over else None


def test_a_rank_that_takes_a_moment_to_exit_is_not_recorded(tmp_path, clock):
    assert watched(tmp_path, clock, 15, {0: 1}, 5.5) == ({}, None)


def test_ranks_that_fail_one_after_the_other_are_recorded_together(tmp_path, clock):
    assert watched(tmp_path, clock, 15, {0: 1, 1: 1.5, 2: 4}, 20) == ({0: 6, 1: 6, 2: 9}, 16)


def test_with_a_short_grace_period_a_rank_is_recorded_before_its_end(tmp_path, clock):
    recorded, over = watched(tmp_path, clock, 0.5, {0: 1}, 5)
    assert recorded[0] <= over == 1.5
