"""What is worth a mark in a timeline, and in which words."""

import signal

import pytest

from launcher.core.events import AttemptStarted, Cause, Continued, Hung, Judged, Killing, Paused, Slow, Stopping
from launcher.core.metrics import Saved, StepMetrics, Validation
from launcher.core.verdict import Confidence, Failure, Role, Verdict
from launcher.runs.timeline import MAX_OF_A_KIND, MAX_TEXT_CHARS, Mark, ThinnedMarks, marks_of_event, marks_of_record

FAILURE = Failure(3, Role.CAUSE, "ValueError: no\nsuch \x1b[31mword" + "!" * 500, "it was first", time_ns=40)
BLAMED = Verdict(3, Confidence.CERTAIN, "rank 3", (FAILURE,))
NOBODY = Verdict(None, Confidence.UNSURE, "nobody stands out")


@pytest.mark.parametrize(("event", "mark"), [
    (Slow(2, 1.25, 0.5, 5), Mark(50, "slow", "1.25 s a step for 5 steps, the others 0.5 s", 2)),
    (Hung((4,), 30.0), Mark(50, "hung", "no progress for 30 s: rank 4", 4)),
    (Hung((0, 1, 2, 5), 30.0), Mark(50, "hung", "no progress for 30 s: ranks 0-2,5")),
    (Judged(NOBODY), Mark(50, "failure", "nobody stands out")),
    (Stopping(Cause.FAILED, 1.0), Mark(50, "stopping", "every rank is ended: failed")),
    (
        Stopping(Cause.FAILED, 1.0, restarts=True),
        Mark(50, "stopping", "every rank is ended, to be started again: failed"),
    ),
    (Stopping(Cause.STOPPED, 1.0, signal.SIGINT), Mark(50, "stopping", "every rank is ended: asked for by SIGINT")),
    (
        Stopping(Cause.STOPPED, 1.0, signal.SIGTERM, server="h2\n"),
        Mark(50, "stopping", "every rank is ended: asked for by SIGTERM at server h2"),
    ),
    (Stopping(Cause.STOPPED, 1.0, 63), Mark(50, "stopping", "every rank is ended: asked for by signal 63")),
    (AttemptStarted(1, 29500), Mark(50, "restart", "attempt 1")),
    (Paused(), Mark(50, "paused", "every rank is stopped")),
    (Continued(), Mark(50, "continued", "every rank continues")),
], ids=repr)  # fmt: skip
def test_events_in_words(event, mark):
    assert list(marks_of_event(event, 50)) == [mark]


@pytest.mark.parametrize("event", [AttemptStarted(0, 1), Killing(3)], ids=repr)
def test_most_events_get_no_mark(event):
    assert list(marks_of_event(event, 50)) == []


def test_a_failure_is_marked_where_it_happened():
    """Before it was judged; what the program said of it becomes one line that is not long."""
    (mark,) = marks_of_event(Judged(BLAMED), 50)
    assert (mark.time_ns, mark.kind, mark.global_rank) == (40, "failure", 3)
    assert mark.text.startswith("ValueError: no such \x1b[31mword!!!")
    assert len(mark.text) == MAX_TEXT_CHARS


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
