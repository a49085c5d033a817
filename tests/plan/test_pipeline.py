"""The simulated pipeline: against closed formulas for equal stages, and its bound for others."""

import pytest

from launcher.mesh.schedules import GPIPE, INTERLEAVED, ONE_FORWARD_ONE_BACKWARD
from launcher.plan import pipeline
from launcher.plan.packaged_profiles import A100_80
from launcher.plan.pipeline import critical_path, lower_bound_s
from launcher.plan.prediction import predict
from launcher.plan.stage_time import PassTime, StageTimes

from .models import GPT_175B, configured


def times_of(*pairs):
    return StageTimes(tuple(PassTime(f) for f, _ in pairs), tuple(PassTime(b) for _, b in pairs))


@pytest.mark.parametrize(
    ("kind", "ranks", "micro_batches"),
    [
        (ONE_FORWARD_ONE_BACKWARD, 4, 9),
        (GPIPE, 4, 9),
        (ONE_FORWARD_ONE_BACKWARD, 8, 100),
        (ONE_FORWARD_ONE_BACKWARD, 3, 1),
    ],
)
def test_equal_stages_wait_for_the_bubble_of_the_formula(kind, ranks, micro_batches):
    times = times_of(*[(1.0, 2.0)] * ranks)
    step_s = critical_path(times, kind, ranks, micro_batches).seconds(times)
    assert step_s == pytest.approx((micro_batches + ranks - 1) * 3)
    assert step_s == pytest.approx(lower_bound_s(times, ranks, micro_batches))


@pytest.mark.parametrize(("ranks", "chunks", "micro_batches"), [(2, 2, 4), (4, 3, 8), (4, 2, 64)])
def test_chunks_divide_the_bubble(ranks, chunks, micro_batches):
    times = times_of(*[(1.0, 2.0)] * (ranks * chunks))
    step_s = critical_path(times, INTERLEAVED, ranks, micro_batches).seconds(times)
    assert step_s == pytest.approx((chunks * micro_batches + ranks - 1) * 3)


@pytest.mark.parametrize("kind", [ONE_FORWARD_ONE_BACKWARD, INTERLEAVED])
def test_repeating_a_period_is_the_same_as_simulating_all(monkeypatch, kind):
    chunks = [(1.0, 2.1), (1.3, 2.0), (0.7, 2.9), (1.1, 2.4), (1.0, 2.0), (1.2, 2.2), (1.0, 2.0), (1.9, 3.8)]
    times = times_of(*(chunks if kind == INTERLEAVED else chunks[4:]))
    repeated = critical_path(times, kind, 4, 80).seconds(times)
    monkeypatch.setattr(pipeline, "PERIODS", 1000)
    assert repeated == pytest.approx(critical_path(times, kind, 4, 80).seconds(times), rel=1e-3)


def test_no_schedule_beats_the_bound():
    times = times_of((1.0, 2.1), (1.3, 2.0), (0.7, 2.9), (1.9, 3.8))
    for micro_batches in (1, 2, 4, 8, 40):
        bound = lower_bound_s(times, 4, micro_batches)
        for kind in (ONE_FORWARD_ONE_BACKWARD, GPIPE):
            assert critical_path(times, kind, 4, micro_batches).seconds(times) >= bound * (1 - 1e-12)


def test_a_slow_last_stage_sets_the_pace():
    """Stage 1 of 2 needs 6 for a micro batch, stage 0 needs 3: F0 of stage 0, then the last stage alone, then B of stage 0."""
    times = times_of((1.0, 2.0), (2.0, 4.0))
    path = critical_path(times, ONE_FORWARD_ONE_BACKWARD, 2, 5)
    assert path.seconds(times) == pytest.approx(1 + 5 * 6 + 2)
    assert path.forward == (1, 5)
    assert path.backward == (1, 5)


def test_one_chunk_runs_as_1f1b():
    """Six micro batches cannot be interleaved over four stages."""
    configuration = configured(GPT_175B, pp=4, micro_batches=6, schedule=INTERLEAVED)
    assert configuration.chunks == 1
    assert configuration.schedule == ONE_FORWARD_ONE_BACKWARD
    plain = configured(GPT_175B, pp=4, micro_batches=6)
    assert predict(GPT_175B, configuration, A100_80).step_s == predict(GPT_175B, plain, A100_80).step_s
