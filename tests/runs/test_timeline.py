"""Build the timeline of a run from its files."""

import os
import signal
import time
import tracemalloc
from dataclasses import replace

import pytest

from launcher.core import events
from launcher.core.events import AgentEnded, AgentStarted, AttemptStarted, Cause, RankEnded, RankStarted
from launcher.core.machine.proc import ProcessId
from launcher.core.metrics import Saved, StepMetrics, Validation
from launcher.core.run_report import Report
from launcher.core.verdict import Confidence, Failure, Role, Verdict
from launcher.runs.timeline import (
    MAX_OF_A_KIND,
    MAX_TEXT_CHARS,
    AttemptSpan,
    Mark,
    RankSpan,
    ThinnedMarks,
    Timeline,
    marks_of_event,
    marks_of_record,
    timeline,
)
from tests.programs import acted_run
from tests.programs.acted_run import me, someone_gone


def failure(global_rank, role=Role.CAUSE, time_ns=None):
    return Failure(global_rank, role, "ValueError: no", "it was first", time_ns)


def blame(culprit, *failures):
    return events.Judged(Verdict(culprit, Confidence.CERTAIN, "a reason", failures))


def make(directory, *told, **other):
    """Make a run with events at the given times, from the first server by default."""
    run_dir = acted_run.make(directory / "a", **other)
    run_dir.events.write_text(
        "".join(
            events.to_line(events.TimestampedEvent(time_ns, *server or [0], event)) for time_ns, event, *server in told
        )
    )
    return run_dir


def begun(ranks=1, agent=None, head=None, *, started=None):
    """Yield the start of the agent at 10, of the first attempt at 11, and of `started` ranks (default: all) at 12."""
    yield 10, AgentStarted(agent or someone_gone(), head, ranks)
    yield 11, AttemptStarted(0, 1)
    yield from ((12, RankStarted(rank, rank)) for rank in range(ranks if started is None else started))


def roles(attempt):
    return [rank.role for rank in attempt.ranks]


def test_a_run_that_ended_well(tmp_path):
    run_dir = make(
        tmp_path,
        (10, AgentStarted(someone_gone(), None, 2)), (11, events.Preloading(5, ("torch",))), (12, AttemptStarted(0, 1)),
        (20, events.Preloaded(0.5)), (21, RankStarted(0, 7)), (22, RankStarted(1, 8)), (60, RankEnded(1, 8, 0)),
        (61, RankEnded(0, 7, 0)), (63, AgentEnded(Cause.FINISHED, 0)),
    )  # fmt: skip
    measured = [
        StepMetrics(30, 0, 1, 9.9), StepMetrics(35, 0, 2, 9.1),
        Validation(50, 0, 2, 2.0, 7.4), Saved(55, 0, 2, "model"),
    ]  # fmt: skip
    ranks = (RankSpan(0, 21, 30, 61, 0, "well"), RankSpan(1, 22, 30, 60, 0, "well"))
    marks = (
        Mark(50, "validation", "validation loss 2, perplexity 7.4 after step 2"),
        Mark(55, "saved", "model after step 2"),
    )
    assert timeline(run_dir, measured) == Timeline(10, 63, (AttemptSpan(0, 12, 61, 20, ranks),), marks)


def test_a_failure_and_a_restart(tmp_path):
    run_dir = make(
        tmp_path,
        *begun(3), (30, RankEnded(1, 1, 1)), (31, blame(1, failure(1, time_ns=29), failure(0, Role.CONSEQUENCE))),
        (32, events.Stopping(Cause.FAILED, 1.0, restarts=True)), (33, RankEnded(0, 0, 1)), (34, RankEnded(2, 2, -15)),
        (40, AttemptStarted(1, 29501)), (41, RankStarted(0, 10)), (70, RankEnded(0, 10, 0)),
        (71, AgentEnded(Cause.FINISHED, 0)),
    )  # fmt: skip
    found = timeline(run_dir, [StepMetrics(20, 0, 1), StepMetrics(50, 1, 1)])
    first, second = found.attempts
    assert roles(first) == ["consequence", "culprit", "ended"]
    assert [rank.status for rank in first.ranks] == [1, 1, -15]
    assert {rank.first_step_ns for rank in first.ranks} == {20}
    assert (first.ended_ns, second.started_ns, second.ended_ns) == (34, 40, 70)
    assert second.ranks == (RankSpan(0, 41, 50, 70, 0, "well"),)
    marks = [(mark.time_ns, mark.kind, mark.global_rank) for mark in found.marks]
    assert marks == [(29, "failure", 1), (32, "stopping", None), (40, "restart", None)]


def test_a_hang(tmp_path):
    run_dir = make(
        tmp_path,
        *begun(4), (20, RankEnded(3, 3, 0)), (30, events.Hung((0, 1), 9.0)), (31, blame(1)),
        (32, events.Stopping(Cause.HUNG, 1.0)), *((33, RankEnded(rank, rank, -15)) for rank in range(3)),
        (34, AgentEnded(Cause.HUNG, 4)),
    )  # fmt: skip
    found = timeline(run_dir, ())
    assert roles(found.attempts[0]) == ["hung", "culprit", "ended", "well"]
    assert [mark.kind for mark in found.marks] == ["hung", "failure", "stopping"]


def test_of_several_servers_the_coordinator_counts_for_all(tmp_path):
    gone = replace(me(), host="another")
    run_dir = make(
        tmp_path,
        (10, AgentStarted(me(), None, 4), events.COORDINATOR), (11, AttemptStarted(0, 1), events.COORDINATOR),
        (12, AgentStarted(gone, None, 2)), (12, AgentStarted(gone, None, 2), 1),
        *((13, RankStarted(rank, rank), rank // 2) for rank in range(4)),
        (20, events.Hung((0,), 9.0)), (21, events.Hung((2,), 9.0), 1),
        (30, RankEnded(1, 1, 0)), (31, RankEnded(3, 3, 0), 1),
    )  # fmt: skip
    [attempt] = timeline(run_dir, ()).attempts
    assert (attempt.ended_ns, roles(attempt)) == (None, ["hung", "well", "hung", "well"])
    run_dir.events.write_text(run_dir.events.read_text().replace(f'"started": {me().started}', '"started": 1', 1))
    assert timeline(run_dir, ()).ended_ns == 31  # it was killed


def test_a_run_that_goes_on(tmp_path):
    run_dir = make(tmp_path, *begun(4, me(), started=3), (15, RankEnded(1, 1, 0)), (20, events.Hung((2,), 5.0)))
    with run_dir.events.open("a") as file:
        file.write(events.to_line(events.TimestampedEvent(30, 0, AgentEnded(Cause.FINISHED, 0)))[:-9])
    found = timeline(run_dir, ())
    assert (found.started_ns, found.ended_ns) == (10, None)
    assert (found.attempts[0].ended_ns, roles(found.attempts[0])) == (None, ["running", "well", "hung"])
    assert found.attempts[0].ranks[0] == RankSpan(0, 12, None, None, None, "running")


def test_an_attempt_whose_ranks_have_all_ended_is_over(tmp_path):
    found = timeline(make(tmp_path, *begun(1, me()), (15, RankEnded(0, 0, 0))), ())
    assert (found.attempts[0].ended_ns, found.ended_ns) == (15, None)


def test_a_run_that_broke_off_ends_with_its_last_sign_of_life(tmp_path):
    """Its agent was killed; heartbeats tell how long each rank went on, but for those of an earlier attempt."""
    run_dir = make(tmp_path, *begun(3, head=someone_gone()), (20, RankEnded(2, 2, 0)), ranks=3)
    for rank, beat_ns in ((0, 90), (1, 5), (2, 99)):
        run_dir.heartbeat(rank).write_text("{}")
        os.utime(run_dir.heartbeat(rank), ns=(beat_ns, beat_ns))
    found = timeline(run_dir, [StepMetrics(14, 0, 1), StepMetrics(70, 0, 9)])
    assert (found.ended_ns, found.attempts[0].ended_ns) == (90, 90)
    ends = [(90, None, "ended"), (90, None, "ended"), (20, 0, "well")]
    assert found.attempts[0].ranks == tuple(RankSpan(rank, 12, 14, *end) for rank, end in enumerate(ends))


def test_times_that_cannot_be_are_not_believed(tmp_path):
    """Any program writes metrics and heartbeats: what is still to come is no sign of life, and marks lie in the run."""
    run_dir = make(tmp_path, *begun())
    run_dir.heartbeat(0).write_text("{}")
    os.utime(run_dir.heartbeat(0), (10**10, 10**10))  # in the year 2286
    validation = Validation(2**63 - 1, 0, 2, 3.0)
    measured = [StepMetrics(2**63 - 1, 0, 1), StepMetrics(70, 0, 2), validation, Saved(3, 0, 2, "model")]
    found = timeline(run_dir, measured)
    assert found.ended_ns == 70
    assert found.attempts[0].ranks == (RankSpan(0, 12, 70, 70, None, "ended"),)
    assert [(mark.time_ns, mark.kind) for mark in found.marks] == [(10, "saved"), (70, "validation")]
    acted_run.append(run_dir, AgentStarted(me(), None, 1))  # of a run that goes on they lie before now
    assert timeline(run_dir, [validation]).marks[0].time_ns <= time.time_ns()


@pytest.mark.parametrize("told", [
    [(10, AgentStarted(replace(me(), host="another"), None, 1))],
    [],  # it has not said a word
    [(10, AgentStarted(someone_gone(), me(), 1))],  # its head ends what is left, and writes the report
], ids=["of another machine", "without an agent", "of a head alone"])  # fmt: skip
def test_of_what_cannot_be_seen_no_end_is_claimed(tmp_path, told):
    found = timeline(make(tmp_path, *told, (11, AttemptStarted(0, 1)), (12, RankStarted(0, 1))), ())
    assert (found.ended_ns, found.attempts[0].ended_ns, roles(found.attempts[0])) == (None, None, ["running"])


def test_a_last_word_between_reading_and_looking_counts(tmp_path, monkeypatch):
    """The end is when the agent said so, not its last word but one."""
    run_dir = make(tmp_path, *begun(started=0))

    def end(_process):
        with run_dir.events.open("a") as file:
            file.write(events.to_line(events.TimestampedEvent(30, 0, AgentEnded(Cause.FINISHED, 0))))
        return False

    monkeypatch.setattr(ProcessId, "lives", property(end))
    assert timeline(run_dir, ()).ended_ns == 30


def test_a_report_tells_the_end_where_events_do_not(tmp_path):
    """The head writes it for an agent that was killed, and where the disk was full there may be no events at all."""
    run_dir = make(tmp_path, *begun(), report=Report("a", 0, Cause.AGENT_LOST, 1, 5, 80, ()))
    found = timeline(run_dir, ())
    assert (found.started_ns, found.ended_ns) == (10, 80)
    assert found.attempts[0].ranks == (RankSpan(0, 12, None, 80, None, "ended"),)
    run_dir.events.unlink()
    assert timeline(run_dir, ()) == Timeline(5, 80, (), ())


def test_a_run_without_files_has_an_empty_timeline(tmp_path):
    run_dir = acted_run.make(tmp_path / "a")
    assert timeline(run_dir, ()) == Timeline(run_dir.run_json.stat().st_mtime_ns, None, (), ())
    assert timeline(acted_run.RunDir(tmp_path / "b"), ()) == Timeline(0, None, (), ())


def test_a_rank_that_could_not_be_started_has_a_span(tmp_path):
    ended = (12, RankEnded(1, None, 127, "no such program"))
    run_dir = make(tmp_path, *begun(2, me(), started=0), ended, (13, blame(1, failure(1))))
    [attempt] = timeline(run_dir, [StepMetrics(20, 0, 1)]).attempts
    assert attempt.ranks == (RankSpan(1, 12, None, 12, 127, "culprit"),)


def test_a_rank_that_was_gone_before_the_first_step_has_none(tmp_path):
    """Those that came after it may have gone on without it."""
    run_dir = make(tmp_path, *begun(3, me(), started=2), (15, RankEnded(1, 1, 0)), (40, RankStarted(2, 2)))
    [attempt] = timeline(run_dir, [StepMetrics(20, 0, 1)]).attempts
    assert [rank.first_step_ns for rank in attempt.ranks] == [20, None, None]


def test_what_is_kept_does_not_grow_with_what_was_said(tmp_path):
    """Tracebacks of hundreds of ranks in every attempt are read and forgotten; so are most validations."""
    attempts, ranks = 20, 32
    long = [replace(failure(rank), traceback="x" * 4000) for rank in range(ranks)]

    def told():
        for time_ns in range(10, 10 + attempts):
            yield time_ns, AttemptStarted(time_ns - 10, 1)
            yield from ((time_ns, RankStarted(rank, rank)) for rank in range(ranks))
            yield time_ns, blame(0, *long)
            yield from ((time_ns, RankEnded(rank, rank, 1)) for rank in range(ranks))

    run_dir = make(tmp_path, *told())
    tracemalloc.start()
    try:
        found = timeline(run_dir, (Validation(1, 0, 1, 1.0) for _ in range(10_000)))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(len(attempt.ranks) for attempt in found.attempts) == attempts * ranks
    assert sum(mark.count for mark in found.marks if mark.kind == "validation") == 10_000
    assert peak_bytes < 2_000_000  # of 2.6 MB of tracebacks and 3.5 MB of marks


# --- marks ---


FAILURE = Failure(3, Role.CAUSE, "ValueError: no\nsuch \x1b[31mword" + "!" * 500, "it was first", time_ns=40)
BLAMED = Verdict(3, Confidence.CERTAIN, "rank 3", (FAILURE,))
NOBODY = Verdict(None, Confidence.UNSURE, "nobody stands out")


@pytest.mark.parametrize(("event", "mark"), [
    (events.Slow(2, 1.25, 0.5, 5), Mark(50, "slow", "1.25 s a step for 5 steps, the others 0.5 s", 2)),
    (events.Hung((4,), 30.0), Mark(50, "hung", "no progress for 30 s: rank 4", 4)),
    (events.Hung((0, 1, 2, 5), 30.0), Mark(50, "hung", "no progress for 30 s: ranks 0-2,5")),
    (events.Judged(NOBODY), Mark(50, "failure", "nobody stands out")),
    (events.Stopping(Cause.FAILED, 1.0), Mark(50, "stopping", "every rank is ended: failed")),
    (
        events.Stopping(Cause.FAILED, 1.0, restarts=True),
        Mark(50, "stopping", "every rank is ended, to be started again: failed"),
    ),
    (events.Stopping(Cause.STOPPED, 1.0, signal.SIGINT), Mark(50, "stopping", "every rank is ended: asked for by SIGINT")),
    (
        events.Stopping(Cause.STOPPED, 1.0, signal.SIGTERM, server="h2\n"),
        Mark(50, "stopping", "every rank is ended: asked for by SIGTERM at server h2"),
    ),
    (events.Stopping(Cause.STOPPED, 1.0, 63), Mark(50, "stopping", "every rank is ended: asked for by signal 63")),
    (AttemptStarted(1, 29500), Mark(50, "restart", "attempt 1")),
    (events.Paused(), Mark(50, "paused", "every rank is stopped")),
    (events.Continued(), Mark(50, "continued", "every rank continues")),
], ids=repr)  # fmt: skip
def test_events_in_words(event, mark):
    assert list(marks_of_event(event, 50)) == [mark]


@pytest.mark.parametrize("event", [AttemptStarted(0, 1), events.Killing(3)], ids=repr)
def test_most_events_get_no_mark(event):
    assert list(marks_of_event(event, 50)) == []


def test_a_failure_is_marked_where_it_happened():
    (mark,) = marks_of_event(events.Judged(BLAMED), 50)
    assert (mark.time_ns, mark.kind, mark.global_rank) == (40, "failure", 3)
    assert mark.text.startswith("ValueError: no such \x1b[31mword!!!")
    assert len(mark.text) == MAX_TEXT_CHARS


def test_a_failure_of_a_rank_that_does_not_exit_is_marked_once(tmp_path):
    """In each attempt. Another rank that does not exit has its own mark."""
    told = [*begun(3), *((time_ns, events.NotExiting(rank, "no", 15.0)) for rank, time_ns in ((1, 20), (2, 21)))]
    told += [(30, blame(1, failure(1, time_ns=19))), (40, AttemptStarted(1, 1)), (50, events.NotExiting(1, "no", 15.0))]
    marks = [mark for mark in timeline(make(tmp_path, *told), ()).marks if mark.kind == "failure"]
    assert [(mark.time_ns, mark.global_rank) for mark in marks] == [(19, 1), (21, 2), (50, 1)]


@pytest.mark.parametrize("count", [0, 1, 2, 999, 1000, 1001, 1999, 2000, 2001, 5000, 123_457])
def test_of_many_marks_some_stand_for_all(count):
    """The first, the last and evenly spread ones between; together they count as many as there were."""
    thinned = ThinnedMarks()
    for number in range(count):
        thinned.add(Mark(number, "saved", str(number)))
    marks = list(thinned.marks())
    times = [mark.time_ns for mark in marks]
    assert sum(mark.count for mark in marks) == count
    assert len(marks) <= MAX_OF_A_KIND + 1
    assert times[:1] + times[-1:] == ([0, count - 1] if count else [])
    assert times == sorted(set(times))
    assert len(marks) >= min(count, MAX_OF_A_KIND // 2)


def test_records_in_words():
    assert list(marks_of_record(StepMetrics(1, 0, 1, 2.0))) == []
    assert list(marks_of_record(Validation(2, 0, 40, 3.123456, 22.7))) == [
        Mark(2, "validation", "validation loss 3.123, perplexity 22.7 after step 40")
    ]
    assert list(marks_of_record(Validation(2, 0, 40))) == [Mark(2, "validation", "validation after step 40")]
    assert list(marks_of_record(Saved(3, 0, 40, "model"))) == [Mark(3, "saved", "model after step 40")]
