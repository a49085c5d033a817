"""ResNet-50's settings, and what is refused before it starts."""

import pytest

from launcher.core.errors import RefusedLayoutError, UnreadableError, UsageError
from launcher.core.records import Layout
from launcher.recipes.load import load_settings
from launcher.recipes.resnet50.resnet50_recipe import Resnet50Settings, check_data, check_layout, own_layout
from tests.images import COUNTS, write_images


def checked(settings, layout):
    """Check as the launcher does: the layout that the mode makes of the one that was asked for."""
    return check_layout(settings, own_layout(settings, layout))


def settings_of(*settings):
    return load_settings(Resnet50Settings, None, settings)


@pytest.mark.parametrize(("settings", "layout", "message", "hint"), [
    ([], Layout(pp=2), "pp = 2", "--pp 1"),
    ([], Layout(dp=2, mp=2), "mp = 2, but parallel.mode = data_parallel", "--mp 1"),
    (["parallel.mode=stand_alone"], Layout(dp=4), "only one device, but there are 4", "--set parallel.mode=data_parallel"),
    ([], Layout(dp=4, micro_batches=9), "train.batch_size = 32 and dp * micro_batches = 4 * 9 = 36", "train.batch_size=36"),
    ([], Layout(dp=32), "data.image_size = 32", "--set train.batch_size=64`, or `--set model.batch_norm=synchronised"),
    (["parallel.mode=auto_parallel"], Layout(dp=2, mp=4), "uses all devices as one group", "hybrid_parallel"),
    (["parallel.mode=hybrid_parallel"], Layout(dp=3, mp=2), "32 is not divisible by dp = 3", "train.batch_size=30"),
    (["parallel.mode=hybrid_parallel", "model.batch_norm=synchronised"], Layout(dp=2, mp=2), "one copy", "--dp 1"),
    (["model.batch_norm=synchronised"], Layout(micro_batches=2), "micro_batches = 2", "--micro-batches 1"),
    (["model.batch_norm=synchronised"], Layout(dp=2, micro_batches=16), "micro_batches = 16", "model.batch_norm=local"),
    (["model.batch_norm=synchronised", "parallel.mode=stand_alone"], Layout(micro_batches=4), "micro_batches = 4", "local"),
    (["parallel.mode=auto_parallel"], Layout(micro_batches=2), "micro_batches = 2", "--micro-batches 1"),
    (["train.batch_size=63"], Layout(dp=32), "63 and dp * micro_batches = 32 * 1 = 32", "train.batch_size=64"),
])  # fmt: skip
def test_a_layout_that_does_not_fit_is_refused(settings, layout, message, hint):
    with pytest.raises(RefusedLayoutError) as refusal:
        checked(settings_of(*settings), layout)
    assert message in refusal.value.message
    assert hint in refusal.value.hint


@pytest.mark.parametrize(("settings", "layout"), [
    ([], Layout(dp=16)), ([], Layout(dp=5, micro_batches=3)), (["data.image_size=33"], Layout(dp=32)),
    (["model.batch_norm=synchronised"], Layout(dp=32)),
    (["model.batch_norm=local"], Layout(dp=2, micro_batches=8)),
    (["parallel.mode=stand_alone"], Layout()),
    (["parallel.mode=auto_parallel"], Layout(dp=8)),
    (["parallel.mode=hybrid_parallel"], Layout(dp=2, mp=4)),
])  # fmt: skip
def test_a_layout_that_fits_is_accepted(settings, layout):
    """Shares of a batch may differ; a pixel more than 32 leaves four in the last layers."""
    assert checked(settings_of(*settings), layout) is None


def test_data_must_be_whole_and_fill_a_batch(tmp_path):
    write_images(tmp_path)
    count = sum(COUNTS[:5])
    assert check_data(settings_of(f"train.batch_size={count}"), [tmp_path]) is None
    with pytest.raises(UsageError) as refusal:
        check_data(settings_of(), [tmp_path])
    assert f"{count} training images do not fill one batch of 32" in refusal.value.message
    assert f"train.batch_size={count}" in refusal.value.hint
    with pytest.raises(UnreadableError):
        check_data(settings_of(), [tmp_path / "nowhere"])
    with pytest.raises(UsageError, match="two text files are given"):
        check_data(settings_of(), [tmp_path, tmp_path])
