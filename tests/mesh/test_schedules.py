"""In which order stages compute their micro batches."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.mesh.schedules import (
    GPIPE,
    INTERLEAVED,
    KINDS,
    Action,
    forward_only,
    interleaved,
    most_in_flight,
    one_forward_one_backward,
    schedule_of,
)
from launcher.mesh.stages import busy_shares


def written(schedule):
    return " ".join(f"{action.kind[0].upper()}{action.micro_batch}" for action in schedule)


@pytest.mark.parametrize(("stage", "expected"), [(0, "F0 F1 B0 F2 B1 B2"), (1, "F0 B0 F1 B1 F2 B2")])
def test_the_worked_example_of_1f1b(stage, expected):
    """Two stages, three micro batches: the order that the docstring gives."""
    assert written(one_forward_one_backward(stage, 2, 3)) == expected


def test_the_worked_example_of_interleaved():
    schedule = interleaved(1, 2, 2, 2)
    assert " ".join(f"{one.kind[0].upper()}{one.micro_batch}.{one.chunk}" for one in schedule) == (
        "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 B0.0 B1.0"
    )


def test_a_single_stage_has_nothing_to_interleave():
    assert interleaved(0, 1, 3, 1) == one_forward_one_backward(0, 1, 3)


def test_validation_only_goes_forward():
    assert written(forward_only(3)) == "F0 F1 F2"
    assert written(forward_only(4, stage_count=2, chunks=2)) == "F0 F1 F0 F1 F2 F3 F2 F3"


@st.composite
def pipelines(draw):
    """A kind of schedule, the numbers of stages and micro batches, and that of chunks."""
    kind = draw(st.sampled_from(KINDS))
    stage_count = draw(st.integers(1, 8))
    if kind == INTERLEAVED:
        return kind, stage_count, stage_count * draw(st.integers(1, 4)), draw(st.integers(2, 4))
    return kind, stage_count, draw(st.integers(1, 12)), 1


def schedules(pipeline):
    kind, stage_count, micro_batches, chunks = pipeline
    return [schedule_of(kind, stage, stage_count, micro_batches, chunks=chunks) for stage in range(stage_count)]


@given(pipelines())
def test_every_micro_batch_goes_forward_and_then_backward_once_through_every_chunk(pipeline):
    _, _, micro_batches, chunks = pipeline
    for schedule in schedules(pipeline):
        for chunk in range(chunks):
            for kind in ("forward", "backward"):
                order = [action.micro_batch for action in schedule if (action.kind, action.chunk) == (kind, chunk)]
                assert order == list(range(micro_batches))
            for index in range(micro_batches):
                forward, backward = (Action(kind, index, chunk) for kind in ("forward", "backward"))
                assert schedule.index(forward) < schedule.index(backward)


@given(pipelines())
def test_activations_in_flight_are_as_many_as_the_table_says(pipeline):
    kind, stage_count, micro_batches, chunks = pipeline
    for stage, schedule in enumerate(schedules(pipeline)):
        left = stage_count - 1 - stage
        expected = {GPIPE: micro_batches, INTERLEAVED: 2 * left + (chunks - 1) * stage_count + 1}.get(kind, left + 1)
        assert most_in_flight(schedule) == min(chunks * micro_batches, expected)


def idle_shares(schedules, chunks):
    """The share of the step in which each stage waits, if a chunk takes 1 forward and 2 backward, and messages no time."""
    stage_count, ends, at = len(schedules), {}, [0] * len(schedules)
    now = [0] * stage_count
    while any(at[stage] < len(schedule) for stage, schedule in enumerate(schedules)):
        for stage, schedule in enumerate(schedules):
            while at[stage] < len(schedule):
                action = schedule[at[stage]]
                part, step = action.chunk * stage_count + stage, -1 if action.kind == "forward" else 1
                needed = (action.kind, action.micro_batch, part + step)
                if 0 <= part + step < stage_count * chunks and needed not in ends:
                    break
                now[stage] = max(now[stage], ends.get(needed, 0)) + (1 if action.kind == "forward" else 2)
                ends[action.kind, action.micro_batch, part] = now[stage]
                at[stage] += 1
    return [1 - Fraction(3 * len(schedule) // 2, max(now)) for schedule in schedules]


@given(pipelines())
def test_equal_stages_are_idle_for_the_share_that_the_table_says(pipeline):
    _, stage_count, micro_batches, chunks = pipeline
    bubble = Fraction(stage_count - 1, chunks * micro_batches + stage_count - 1)
    assert idle_shares(schedules(pipeline), chunks) == [bubble] * stage_count
    predicted = busy_shares([6] * stage_count, micro_batches, chunks=chunks)
    assert predicted == pytest.approx([float(1 - bubble)] * stage_count)
