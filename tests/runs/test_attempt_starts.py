"""Where attempts begin in logs."""

from launcher.core.events import AttemptStarted, RankStarted
from launcher.core.run_dir import mark_of
from launcher.runs.attempt_starts import AttemptStarts

MARK_BYTES = len(mark_of(1))


def starts_of(*events):
    starts = AttemptStarts()
    for event in events:
        starts.take(event)
    return starts.of(0)


def started(attempt, offset=0):
    return AttemptStarted(attempt, 29500), RankStarted(0, 1, 0, offset)


def test_an_attempt_begins_with_its_mark():
    assert starts_of(*started(0), *started(1, 100 + MARK_BYTES)) == [(0, 0), (100, 1)]


def test_of_a_log_that_was_emptied_the_former_attempts_are_gone():
    """Offsets count from its new beginning; what stands there is the last one's that wrote before."""
    events = [*started(0), *started(1, 1000), *started(2, 40 + MARK_BYTES), *started(3, 80 + MARK_BYTES)]
    assert starts_of(*events) == [(0, 1), (40, 2), (80, 3)]
    assert starts_of(*started(0), *started(1, 1000), *started(2, MARK_BYTES)) == [(0, 2)]


def test_an_attempt_that_wrote_nothing_has_no_part():
    assert starts_of(*started(0), *started(1, MARK_BYTES)) == [(0, 1)]


def test_what_is_noted_twice_stands_once():
    """The mark may be read before the event."""
    starts = AttemptStarts()
    starts.take(RankStarted(0, 1))
    starts.note(0, 50, 1)
    for event in started(1, 50 + MARK_BYTES):
        starts.take(event)
    assert starts.of(0) == [(0, 0), (50, 1)]
