"""Whether another attempt is worth it."""

from launcher.control.restarts import Restarts
from launcher.core.verdict import Confidence, Verdict


def verdict(signature):
    return Verdict(0, Confidence.CERTAIN, "because", signature=signature)


def test_restarts_are_counted():
    """As many as are allowed, whatever the failures are called."""
    restarts = Restarts(2)
    assert [restarts.decide(verdict(name), step) for step, name in enumerate("aab")] == [True, True, False]
    assert restarts.refusal is None


def test_the_same_failure_without_progress_ends_the_loop():
    """It would come back for ever; the refusal names it."""
    restarts = Restarts(9)
    assert restarts.decide(verdict("ValueError at train.py:8"), None)
    assert not restarts.decide(verdict("ValueError at train.py:8"), None)
    assert "ValueError at train.py:8" in restarts.refusal


def test_an_attempt_that_only_repeats_the_steps_of_earlier_ones_is_no_progress():
    """A program that always fails at step 3 would be started for ever; one that comes further each time is not."""
    restarts = Restarts(9)
    assert restarts.decide(verdict("a"), 3)
    assert restarts.decide(verdict("a"), 4)
    assert not restarts.decide(verdict("a"), 4)


def test_steps_are_held_against_those_of_all_attempts():
    """Not only of the last one: it may have failed of something else, early."""
    restarts = Restarts(9)
    told = [("a", 9), ("b", 2), ("b", 3)]
    assert [restarts.decide(verdict(name), step) for name, step in told] == [True, True, False]


def test_the_first_step_of_all_is_progress():
    """Attempts that fail before one tell nothing, and are judged by that."""
    restarts = Restarts(9)
    assert restarts.decide(verdict("a"), None)
    assert restarts.decide(verdict("a"), 0)
    assert not restarts.decide(verdict("a"), None)


def test_progress_or_another_failure_in_between_is_reason_enough():
    """Only two failures of one signature in a row, the second before any progress, are a loop."""
    restarts = Restarts(9)
    told = [("a", None), ("a", 1), ("b", None), ("a", None), ("b", None)]
    assert all(restarts.decide(verdict(name), step) for name, step in told)


def test_what_was_killed_from_outside_is_no_loop():
    """A failure without a signature says nothing of the program."""
    restarts = Restarts(3)
    assert all(restarts.decide(verdict(None), None) for _ in range(3))


def test_without_restarts_nothing_is_refused():
    """A run that may not restart has no reason to explain itself."""
    restarts = Restarts(0)
    assert not restarts.decide(verdict("a"), None)
    assert not restarts.decide(verdict("a"), None)
    assert restarts.refusal is None
