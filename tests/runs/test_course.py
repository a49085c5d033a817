"""One course of a training over attempts and runs."""

import json

import pytest

from launcher.core.metrics import Saved, StageShares, StepMetrics, Validation, append
from launcher.core.run_dir import RunDir
from launcher.runs.metrics_reader import read_metrics
from launcher.runs.training_history import full_history, own_course, runs_before


def record(runs_dir, name, attempts, continues=None):
    """A run whose attempts took these steps, with a validation and a checkpoint after each; its loss tells which attempt's it is."""
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
    """Steps and losses, which are the same for every kind of records."""
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
    """Each up to the first step of the next; of one that has no step yet, to the step that it goes on from."""
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
