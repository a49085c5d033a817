"""What changed between the attempts of an elastic run, and what it cost."""

import pytest

from launcher.core.events import Cause
from launcher.core.metrics import StepMetrics
from launcher.core.records import DeviceAssignment, Layout
from launcher.core.run_report import Attempt
from launcher.runs.training_history import changes_of


def attempt(number, devices, cause=Cause.RESIZED):
    allotment = None if devices is None else DeviceAssignment(devices, Layout(dp=len(devices)))
    return Attempt(number, 29500, 0, 0, cause, (), allotment=allotment)


def step(number, attempt, seconds):
    return StepMetrics(int(seconds * 1e9), attempt, number)


def test_each_attempt_is_beside_the_one_before():
    """Which devices are left out and taken back, how long no step came, and how many steps were computed again."""
    attempts = (attempt(0, (0, 1, 2, 3)), attempt(1, (0, 2), Cause.FAILED), attempt(2, (0, 3), Cause.FINISHED))
    steps = (step(10, 0, 1), step(12, 0, 2), step(11, 1, 5.5), step(12, 1, 6), step(13, 2, 9))
    first, second = changes_of(attempts, steps)
    assert (first.left_out, first.taken_back, first.cause) == ((1, 3), (), Cause.RESIZED)
    assert (first.cost_s, first.repeated_steps) == (3.5, 2)
    assert (second.left_out, second.taken_back, second.cause) == ((2,), (3,), Cause.FAILED)
    assert (second.cost_s, second.repeated_steps) == (3.0, 0)


@pytest.mark.parametrize("steps", [(), (step(1, 0, 1),), (step(1, 1, 1),)])
def test_without_steps_of_both_no_cost_is_known(steps):
    """A program may write no metrics, or end before its first step."""
    [change] = changes_of((attempt(0, (0, 1)), attempt(1, (0,))), steps)
    assert (change.cost_s, change.repeated_steps) == (None, None)


def test_other_runs_have_no_changes():
    assert changes_of((attempt(0, None), attempt(1, None)), ()) == ()
