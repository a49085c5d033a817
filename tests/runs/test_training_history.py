"""Join the metrics of a training over attempts and runs; compare the attempts of an elastic run."""

import json

import pytest

from launcher.core.events import Cause
from launcher.core.metrics import Saved, StageShares, StepMetrics, Validation, append
from launcher.core.records import DeviceAssignment, Layout
from launcher.core.run_dir import RunDir
from launcher.core.run_report import Attempt
from launcher.runs.metrics_reader import read_metrics
from launcher.runs.training_history import changes_of, full_history, own_course, runs_before


def record(runs_dir, name, attempts, continues=None):
    """Make a run whose attempts took these steps, each with a validation and a checkpoint. A loss identifies its attempt."""
    run_dir = RunDir(runs_dir / name)
    run_dir.root.mkdir(parents=True)
    run_dir.run_json.write_text(json.dumps({"continues": continues}))
    for attempt, steps in enumerate(attempts):
        for step in steps:
            for kind in (StepMetrics, Validation, Saved, StageShares):
                value = {StepMetrics: attempt / 10, Validation: attempt / 10, Saved: "checkpoint", StageShares: (1.0,)}
                append(run_dir.metrics, kind(step, attempt, step, value[kind]))
    return run_dir


def continuing(run_dir, step):
    return {"run": run_dir.root.name, "checkpoint": str(run_dir.checkpoints / f"step-{step}"), "step": step}


def course(run_dir):
    """Return the loss by step; check that the steps are the same for all kinds of records."""
    found = full_history(run_dir, own_course(read_metrics(run_dir.metrics)))
    steps = [each.step for each in found.steps]
    for records in (found.validations, found.saved, found.stages):
        assert [each.step for each in records] == steps
    assert [each.loss for each in found.steps] == [each.validation_loss for each in found.validations]
    return {each.step: each.loss for each in found.steps}


@pytest.mark.parametrize(("attempts", "expected"), [
    ([], {}), ([[1, 2, 3]], {1: 0.0, 2: 0.0, 3: 0.0}),
    ([[1, 2, 3], [3, 4]], {1: 0.0, 2: 0.0, 3: 0.1, 4: 0.1}),
    ([[1, 2, 3], [4]], {1: 0.0, 2: 0.0, 3: 0.0, 4: 0.1}),  # nothing was computed again
    ([[1, 2, 3], [1]], {1: 0.1}),  # it began anew, and what was reached before is lost
    ([[1, 2, 3, 4, 5], [4, 5, 6], [3, 4]], {1: 0.0, 2: 0.0, 3: 0.2, 4: 0.2}),
    ([[1, 2], [], [2, 3]], {1: 0.0, 2: 0.2, 3: 0.2}),  # one failed before its first step
    ([[10, 20, 30], [24, 34]], {10: 0.0, 20: 0.0, 24: 0.1, 34: 0.1}),  # means of several steps
])  # fmt: skip
def test_steps_of_several_attempts_count_once(tmp_path, attempts, expected):
    assert course(record(tmp_path, "a", attempts)) == expected


def test_the_runs_before_come_first(tmp_path):
    first = record(tmp_path, "a", [[1, 2, 3, 4]])
    second = record(tmp_path, "b", [[3, 4, 5], [5, 6]], continuing(first, 2))
    third = record(tmp_path, "c", [], continuing(second, 5))
    assert course(third) == {1: 0.0, 2: 0.0, 3: 0.0, 4: 0.0, 5: 0.1}
    assert [(run_dir.root.name, continued.step) for run_dir, continued in runs_before(third)] == [("b", 5), ("a", 2)]


def test_runs_may_be_gone_moved_or_nonsense(tmp_path):
    first = record(tmp_path / "old", "a", [[1, 2]])
    second = record(tmp_path / "old", "b", [[3]], continuing(first, 2))
    (tmp_path / "old").rename(tmp_path / "new")
    moved = RunDir(tmp_path / "new" / "b")
    assert course(moved) == {1: 0.0, 2: 0.0, 3: 0.0}
    (tmp_path / "new" / "a").rename(tmp_path / "new" / "other")
    assert course(moved) == {3: 0.0}
    for content in (
        "[]", "{", '{"continues": 1}', '{"continues": {"run": "../b\\u0000", "checkpoint": "", "step": 1}}',
        json.dumps({"continues": {"run": "a" * 5000, "checkpoint": "/a" * 5000, "step": 1}}),
        json.dumps({"continues": continuing(RunDir(tmp_path / "new" / "b"), 1)}),
    ):  # fmt: skip
        moved.run_json.write_text(content)
        assert course(moved) == {3: 0.0}
    assert second.root.name == "b"


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
