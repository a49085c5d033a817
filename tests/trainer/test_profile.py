"""Traces of training steps."""

import json
import sys

import pytest
import torch

from launcher.trainer.programs.loop import StepProfiler

CPU = torch.device("cpu")


def train(profiler, steps):
    """Multiply a matrix of the step's size in each step; return what was said after which step."""
    said = {}
    for step in range(1, steps + 1):
        torch.mm(torch.ones(step, step), torch.ones(step, step))
        if told := profiler.stepped(is_last=step == steps):
            said[step] = told
    return said


@pytest.mark.parametrize(("wanted", "last"), [(2, 5), (9, 6)])
def test_steps_after_the_first_three_are_traced(tmp_path, wanted, last):
    """As many as are wanted, or until the training ends: one file, a product for each step, said once."""
    path = tmp_path / "profile.json"
    has_compiler = "torch._dynamo" in sys.modules  # by another test
    assert train(StepProfiler(wanted, path, CPU), 6) == {last: f"profile: {path}"}
    events = json.loads(path.read_text())["traceEvents"]
    assert sum(event["name"] == "aten::mm" for event in events) == last - 3
    assert [each.name for each in tmp_path.iterdir()] == ["profile.json"]
    assert ("torch._dynamo" in sys.modules) == has_compiler  # it would take each rank a second to import


@pytest.mark.parametrize(
    ("wanted", "steps", "why"),
    [(0, 6, None), (2, 3, "after 3 steps"), (2, 6, "No such file"), (2, 6, "no run directory")],
)
def test_where_there_is_no_trace_the_training_goes_on(tmp_path, wanted, steps, why):
    """None is wanted, the training is too short, or the directory has been removed: that is said once."""
    path = tmp_path / ("gone" if why == "No such file" else "") / "profile.json"
    profiler = StepProfiler(wanted, None if why == "no run directory" else path, CPU)
    said = list(train(profiler, steps).values())
    assert len(said) == (why is not None)
    assert all(why in line for line in said)
    assert list(tmp_path.iterdir()) == []


def test_a_training_that_ends_early_has_the_trace_of_its_steps(tmp_path):
    """Whoever stops before the last step ends the trace; a second end says nothing more."""
    path = tmp_path / "profile.json"
    profiler = StepProfiler(9, path, CPU)
    for _ in range(5):
        torch.mm(torch.ones(2, 2), torch.ones(2, 2))
        assert profiler.stepped(is_last=False) == ""
    assert profiler.end() == f"profile: {path}"
    assert profiler.end() == ""
    assert sum(event["name"] == "aten::mm" for event in json.loads(path.read_text())["traceEvents"]) == 2
