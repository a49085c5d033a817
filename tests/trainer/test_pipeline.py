"""The 1F1B schedule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.trainer.pipeline import Action, forward_only, one_forward_one_backward


def written(schedule):
    return " ".join(f"{action.kind[0].upper()}{action.micro_batch}" for action in schedule)


@pytest.mark.parametrize(("stage", "expected"), [(0, "F0 F1 B0 F2 B1 B2"), (1, "F0 B0 F1 B1 F2 B2")])
def test_the_worked_example(stage, expected):
    """Two stages, three micro batches: the order that the module's docstring gives."""
    assert written(one_forward_one_backward(stage, 2, 3)) == expected


@st.composite
def pipelines(draw):
    stage_count = draw(st.integers(1, 8))
    return draw(st.integers(0, stage_count - 1)), stage_count, draw(st.integers(1, 12))


@given(pipelines())
def test_every_micro_batch_goes_forward_and_then_backward_once(pipeline):
    """Both kinds come in the order of the micro batches, as links without tags demand."""
    schedule = one_forward_one_backward(*pipeline)

    for kind in ("forward", "backward"):
        assert [action.micro_batch for action in schedule if action.kind == kind] == list(range(pipeline[2]))
    for index in range(pipeline[2]):
        assert schedule.index(Action("forward", index)) < schedule.index(Action("backward", index))


@given(pipelines())
def test_micro_batches_in_flight_are_bounded_by_the_stages_left(pipeline):
    """Memory grows with the depth of the pipeline, not with the number of micro batches."""
    stage, stage_count, micro_batches = pipeline
    in_flight = most = 0
    for action in one_forward_one_backward(*pipeline):
        in_flight += 1 if action.kind == "forward" else -1
        most = max(most, in_flight)

    assert most == min(micro_batches, stage_count - stage)


def test_validation_only_goes_forward():
    """No backward, no gradient."""
    assert written(forward_only(3)) == "F0 F1 F2"
