"""Numbers fitted to measured rows: made-up rows, and the published ones."""

import json
import math
import random
from dataclasses import replace
from functools import cache

import pytest

from launcher.core.errors import UsageError
from launcher.plan.device_profile import DeviceProfile, profile_from
from launcher.plan.fit import fitted
from launcher.plan.measured_rows import MeasuredRow, read_rows
from launcher.plan.nearby import correction, observations_of, position_of
from launcher.plan.packaged_profiles import A100_80, starting_profile
from launcher.plan.prediction import predict

from .models import SMALL, configured, published


def measured(model, configuration, device, factor=1.0):
    found = predict(model, configuration, device)
    return MeasuredRow("here", model, configuration, "A100", 8, None, found.step_s * factor, None, found.memory_bytes)


def error_of(rows, device):
    errors = [abs(predict(row.model, row.configuration, device).step_s / row.step_s - 1) for row in rows]
    return math.fsum(errors) / len(errors)


LAYOUTS = [
    configured(model, dp=dp, mp=mp, pp=pp, micro_batches=8, micro_batch=size, recompute="full")
    for model, dp, mp, pp, size in [(SMALL, 1, 1, 1, 1), (SMALL, 4, 2, 1, 4), (SMALL, 2, 1, 4, 8), (SMALL, 1, 8, 1, 16),
                                    (SMALL, 8, 1, 1, 8), (SMALL, 1, 4, 2, 2), (SMALL, 2, 2, 2, 16), (SMALL, 2, 4, 1, 8)]
]  # fmt: skip


def test_rows_of_a_slower_device_predict_its_other_layouts():
    true = replace(A100_80, numbers=replace(A100_80.numbers, flops_per_s=100e12, dispatch_s=2e-3))
    found = fitted([measured(SMALL, each, true) for each in LAYOUTS], A100_80)
    for elsewhere in (
        configured(SMALL, dp=4, pp=2, micro_batches=8, micro_batch=4, recompute="full"),
        configured(SMALL, mp=2, pp=2, micro_batches=16, micro_batch=1, recompute="full"),
        configured(SMALL, dp=2, mp=4, micro_batches=2, micro_batch=32, recompute="full"),
    ):
        wanted_s = predict(SMALL, elsewhere, true).step_s
        assert predict(SMALL, elsewhere, A100_80).step_s < 0.85 * wanted_s
        assert predict(SMALL, elsewhere, found).step_s == pytest.approx(wanted_s, rel=0.05)
    assert found.fit.error < 0.02
    assert found.fit.rows == len(LAYOUTS)


def test_few_rows_move_few_numbers():
    rows = [measured(SMALL, each, A100_80, 1.3) for each in LAYOUTS]
    for count in (1, 2, 3):
        moved = [name for name in fitted(rows[:count], A100_80).fit.fitted if name not in {"base_bytes", "kept_factor"}]
        assert len(moved) <= count
    alone = fitted(rows[:1], A100_80)
    assert alone.fit.held_out_error is None
    assert alone.numbers.network_bytes_per_s == A100_80.numbers.network_bytes_per_s


def test_one_outlier_does_not_move_the_others():
    rows = [measured(SMALL, each, A100_80) for each in LAYOUTS]
    rows[3] = replace(rows[3], step_s=2 * rows[3].step_s)
    found = replace(fitted(rows, A100_80), observations=())
    assert error_of([row for row in rows if row is not rows[3]], found) < 0.03


def test_a_measured_layout_corrects_those_near_it():
    near, far = configured(SMALL, dp=8, mp=2), configured(SMALL, dp=1, mp=2, pp=8, micro_batch=16)
    observations = observations_of([position_of(SMALL, near)], [math.log(1.2)])
    assert 1.15 < correction(observations, position_of(SMALL, near)) < 1.2
    assert correction(observations, position_of(SMALL, far)) == pytest.approx(1, abs=1e-3)


def test_a_fitted_profile_survives_its_file():
    found = fitted([measured(SMALL, each, A100_80, 1.1) for each in LAYOUTS[:4]], A100_80)
    again = profile_from(json.loads(found.to_json()))
    assert isinstance(again, DeviceProfile)
    assert again == found


def test_a_fit_of_memory_keeps_the_fitted_times():
    timed = fitted([measured(SMALL, each, A100_80, 1.1) for each in LAYOUTS[:4]], A100_80)
    rows = [replace(measured(SMALL, each, A100_80), step_s=None) for each in LAYOUTS[4:6]]
    heavier = [replace(row, memory_bytes=1.2 * row.memory_bytes) for row in rows]
    found = fitted(heavier, timed)
    assert found.observations == timed.observations
    assert found.numbers.flops_per_s == timed.numbers.flops_per_s
    assert predict(SMALL, LAYOUTS[4], found).memory_bytes == pytest.approx(heavier[0].memory_bytes, rel=0.06)


def test_rows_without_measurements_are_refused():
    rows = [replace(measured(SMALL, LAYOUTS[0], A100_80), step_s=None, memory_bytes=None)]
    with pytest.raises(UsageError, match="none of 1 rows has a measurement"):
        fitted(rows, A100_80)


@pytest.mark.parametrize("chosen", [(1, 4, 7), (1, 5, 9), (2, 5, 8)])
def test_three_rows_of_narayanan_predict_the_other_seven(chosen):
    rows = published("narayanan2021-table1")
    seen = [row for row in rows if int(row.where.rsplit("-", 1)[1]) in chosen]
    found = fitted(seen, starting_profile("A100 80GB", 8))
    assert len(found.fit.fitted) == 3
    assert error_of([row for row in rows if row not in seen], found) <= 0.06


@cache
def fit_of(name, count):
    """The rows of a set that were left out of a fit to some of them, all rows, and the fit."""
    rows = published(name)
    seen = random.Random(2).sample(rows, count)
    return [row for row in rows if row not in seen], rows, fitted(seen, starting_profile("A100", 8))


@pytest.mark.parametrize(("name", "count", "most"), [("vtrain-single", 24, 0.09), ("vtrain-multi", 30, 0.08)])
def test_some_rows_of_vtrain_predict_the_others(name, count, most):
    left_out, _, found = fit_of(name, count)
    assert error_of(left_out, found) <= most


def test_the_predicted_best_layout_is_among_the_fastest():
    _, rows, found = fit_of("vtrain-multi", 30)
    for layers in {row.model.layers for row in rows}:
        those = [row for row in rows if row.model.layers == layers]
        chosen = min(those, key=lambda row: predict(row.model, row.configuration, found).step_s)
        assert chosen.step_s <= 1.05 * min(row.step_s for row in those)


def test_peak_memory_of_bloom():
    rows = [row for row in published("bloom-prequel") if row.memory_bytes]
    for left_out in rows:
        found = fitted([row for row in rows if row is not left_out], starting_profile("A100 80GB", 8))
        predicted = predict(left_out.model, left_out.configuration, found).memory_bytes
        assert predicted == pytest.approx(left_out.memory_bytes, rel=0.08)


def test_rows_without_a_size_are_left_out(tmp_path):
    row = {
        "model": {"layers": 2, "hidden": 64, "heads": 4, "seq": 8, "vocab": 100}, "dp": 2, "mp": 1, "pp": 1,
        "micro_batch": 4, "micro_batches": None, "global_batch": 24, "measured": {"step_s": 1.0},
    }  # fmt: skip
    (tmp_path / "rows.json").write_text(json.dumps({"rows": [row, {**row, "pp": None}, {**row, "global_batch": None}]}))
    found = read_rows(tmp_path / "rows.json")
    assert found.incomplete == 2
    assert [each.configuration.layout.micro_batches for each in found.rows] == [3]
