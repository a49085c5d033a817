"""`tlaunch plan layout` and `tlaunch plan fit`."""

import json

import pytest

from launcher.plan.packaged_profiles import A100_80
from launcher.plan.prediction import predict
from tests.plan.models import SMALL, configured

MODEL = {"layers": 24, "hidden": 1024, "heads": 16, "seq": 1024, "vocab": 50304}


@pytest.fixture(name="here")
def _here(launcher):
    """The directory in which commands are typed, with a model and measured rows."""
    (launcher.directory / "model.json").write_text(json.dumps(MODEL))
    (launcher.directory / "rows.json").write_text(json.dumps({"rows": [row(dp, mp, pp, 1.2) for dp, mp, pp in SHAPES]}))
    return launcher.directory


SHAPES = ((1, 1, 1), (8, 1, 1), (2, 4, 1), (2, 2, 2))


def row(dp, mp, pp, factor):
    found = predict(SMALL, configured(SMALL, dp=dp, mp=mp, pp=pp, micro_batches=4, micro_batch=2), A100_80)
    return {
        "model": MODEL, "device": {"name": "A100 80GB", "per_server": 8}, "dp": dp, "mp": mp, "pp": pp,
        "micro_batch": 2, "micro_batches": 4, "schedule": "1f1b", "recompute": "none",
        "measured": {"step_s": found.step_s * factor, "memory_gb": found.memory_bytes / 1e9},
    }  # fmt: skip


def test_what_they_say(launcher, here, snapshot):
    layout = ("plan", "layout", "--model", "model.json")
    done = [
        launcher.call(*layout, "--device", "A100-80", "--devices", 8, "--global-batch", 64, code=0),
        launcher.call("plan", "fit", "--rows", "rows.json", "--output", "device.json", code=0),
        launcher.call(*layout, "--device", "device.json", "-n", "2x4", "--global-batch", 64, "--tp", 2, "--pp", 1, code=0),
        launcher.call(*layout, "--device", "ascend-910b", "--dp", 2, "--mp", 2, "--pp", 2, "--micro-batches", 4, "--micro-batch", 2, code=0),
    ]  # fmt: skip
    assert launcher.transcript(*done) == snapshot


def test_what_is_refused(launcher, here, snapshot):
    (here / "wrong.json").write_text('{"layers": 24}')
    (here / "mixed.json").write_text(
        json.dumps({"rows": [row(1, 1, 1, 1.0), {**row(1, 1, 1, 1.0), "device": {"name": "V100"}}]})
    )
    (here / "few.json").write_text(json.dumps({"rows": [{**row(1, 1, 1, 1.0), "dp": 0}]}))
    given = ("plan", "layout", "--model", "model.json", "--device", "H100")
    one = (*given, "--dp", 2, "--mp", 2, "--pp", 2)
    done = [
        launcher.call(*given, "--global-batch", 64, code=2),
        launcher.call(*given, "--devices", 8, code=2),
        launcher.call(*given, "--devices", "8y8", "--global-batch", 64, code=2),
        launcher.call(*one, "--micro-batches", 4, "--micro-batch", 2, "--global-batch", 64, code=3),
        launcher.call(*one, "--micro-batches", 4, "--micro-batch", 2, "--devices", 4, code=3),
        launcher.call(*given, "--dp", 1, "--mp", 3, "--pp", 1, "--micro-batches", 4, "--micro-batch", 2, code=3),
        launcher.call("plan", "layout", "--model", "model.json", "--device", "TPU", "--devices", 8, code=2),
        launcher.call("plan", "layout", "--model", "wrong.json", "--device", "H100", "--devices", 8, code=2),
        launcher.call("plan", "layout", "--model", "none.json", "--device", "H100", "--devices", 8, code=2),
        launcher.call("plan", "layout", "--model", "model.json", "--device", "model.json", "--devices", 8, code=2),
        launcher.call("plan", "fit", "--rows", "mixed.json", "--output", "device.json", code=2),
        launcher.call("plan", "fit", "--rows", "few.json", "--output", "device.json", code=2),
        launcher.call("plan", "fit", "--rows", "model.json", "--output", "device.json", code=2),
        launcher.call("plan", "fit", "--rows", "rows.json", "--output", ".", code=2),
    ]
    assert launcher.transcript(*done) == snapshot


def test_if_nothing_fits_every_class_has_its_reason(launcher, here):
    words = ("plan", "layout", "--model", "model.json", "--device", "H100", "--devices", 2, "--global-batch", 8)
    done = launcher.call(*words, "--memory", "4G", code=3)
    assert "GB or more on stage 0" in done.stdout
    assert "no layout of 2 devices is possible within 4.1 GB" in done.stderr
    assert json.loads(launcher.call(*words, "--memory", "4G", "--json", code=3).stdout)["best"] == []


def test_json_of_one_layout_has_the_predicted_figures(launcher, here):
    words = ("--dp", 2, "--mp", 2, "--pp", 2, "--micro-batches", 4, "--micro-batch", 2, "--json")
    values = json.loads(
        launcher.call("plan", "layout", "--model", "model.json", "--device", "A100-80", *words, code=0).stdout
    )
    expected = predict(SMALL, configured(SMALL, dp=2, mp=2, pp=2, micro_batches=4, micro_batch=2), A100_80)
    for key in ("step_s", "memory_bytes", "tokens_per_s", "tflops_per_device"):
        assert values[key] == pytest.approx(getattr(expected, key))
    assert values["margin"] is None


def test_a_fitted_device_predicts_the_rows_with_their_settings(launcher, here):
    full = [{**row(dp, mp, pp, 1.5), "recompute": "full", "optimizer_shard": True} for dp, mp, pp in SHAPES]
    (here / "full.json").write_text(json.dumps({"rows": full}))
    launcher.call("plan", "fit", "--rows", "full.json", "--output", "device.json", code=0)
    words = ("--dp", 2, "--mp", 4, "--pp", 1, "--micro-batches", 4, "--micro-batch", 2, "--json")
    values = json.loads(
        launcher.call("plan", "layout", "--model", "model.json", "--device", "device.json", *words, code=0).stdout
    )
    assert values["step_s"] == pytest.approx(full[2]["measured"]["step_s"], rel=0.05)
    assert values["layout"]["recompute"] == "full"
    assert values["layout"]["optimizer_shard"] is True


def test_a_row_is_also_a_model_and_states_its_settings(launcher, here):
    (here / "row.json").write_text(json.dumps({**row(1, 1, 1, 1.0), "recompute": "full"}))
    words = ("--dp", 1, "--mp", 1, "--pp", 1, "--micro-batches", 4, "--micro-batch", 2, "--json")
    values = json.loads(
        launcher.call("plan", "layout", "--model", "row.json", "--device", "A100-80", *words, code=0).stdout
    )
    assert values["layout"]["recompute"] == "full"


def test_the_length_of_samples_can_be_given(launcher, here):
    (here / "config.json").write_text(json.dumps({name: size for name, size in MODEL.items() if name != "seq"}))
    words = (
        "plan",
        "layout",
        "--model",
        "config.json",
        "--device",
        "A100-80",
        "--devices",
        1,
        "--global-batch",
        4,
        "--json",
    )
    assert "lacks `seq`" in launcher.call(*words, code=2).stderr
    short, long = (json.loads(launcher.call(*words, "--seq", seq, code=0).stdout)["best"][0] for seq in (512, 1024))
    assert long["step_s"] > short["step_s"]


def test_devices_of_a_rank_table(launcher, here):
    launcher.call("table", "generate", "--devices", 4, "-o", "table.json", code=0)
    words = (
        "plan",
        "layout",
        "--model",
        "model.json",
        "--device",
        "Ascend 910",
        "-t",
        "table.json",
        "--global-batch",
        16,
    )
    values = json.loads(launcher.call(*words, "--json", code=0).stdout)
    layout = values["best"][0]["layout"]
    assert layout["dp"] * layout["mp"] * layout["pp"] == 4
    launcher.call(*words, "--devices", 4, code=2)
