"""Whether another attempt is worth it."""

from launcher.core.verdict import Confidence, Verdict
from launcher.supervise.restart import Restarts


def verdict(signature):
    return Verdict(0, Confidence.CERTAIN, "because", signature=signature)


def test_restarts_are_counted():
    """As many as are allowed, whatever the failures are called."""
    restarts = Restarts(2)
    assert [restarts.decide(verdict(name), progressed=True) for name in "aab"] == [True, True, False]
    assert restarts.refusal is None


def test_the_same_failure_without_progress_ends_the_loop():
    """It would come back for ever; the refusal names it."""
    restarts = Restarts(9)
    assert restarts.decide(verdict("ValueError at train.py:8"), progressed=False)
    assert not restarts.decide(verdict("ValueError at train.py:8"), progressed=False)
    assert "ValueError at train.py:8" in restarts.refusal


def test_progress_or_another_failure_in_between_is_reason_enough():
    """Only two failures of one signature in a row, the second before any progress, are a loop."""
    restarts = Restarts(9)
    told = [("a", False), ("a", True), ("b", False), ("a", False), ("b", False)]
    assert all(restarts.decide(verdict(name), progressed=progressed) for name, progressed in told)


def test_what_was_killed_from_outside_is_no_loop():
    """A failure without a signature says nothing of the program."""
    restarts = Restarts(3)
    assert all(restarts.decide(verdict(None), progressed=False) for _ in range(3))


def test_without_restarts_nothing_is_refused():
    """A run that may not restart has no reason to explain itself."""
    restarts = Restarts(0)
    assert not restarts.decide(verdict("a"), progressed=False)
    assert not restarts.decide(verdict("a"), progressed=False)
    assert restarts.refusal is None
