"""Layouts against the Transformer's sizes."""

import pytest

from launcher.core.errors import RefusedLayoutError, UsageError
from launcher.core.records import Layout
from launcher.recipes.load import load_settings
from launcher.recipes.transformer.checks import check_layout
from launcher.recipes.transformer.config import TransformerSettings


@pytest.mark.parametrize(
    ("settings", "layout", "message", "hint"),
    [
        ([], Layout(mp=3), "model.heads = 8 cannot be divided by mp = 3", "--mp can be 1, 2, 4, 8"),
        (["model.feed_forward_dim=6"], Layout(mp=4), "model.feed_forward_dim = 6 cannot be divided by mp = 4", "1, 2"),
        (["model.d_model=100"], Layout(), "model.d_model = 100 cannot be divided by model.heads = 8", "96 or 104"),
        ([], Layout(pp=6), "2 encoder + 2 decoder = 4 layers, and a head", "--pp 5 at most"),
        (["parallel.stages=[3, 1]"], Layout(pp=4), "parallel.stages = [3, 1] has 2 stages, but pp = 4", "--pp 2"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused(settings, layout, message, hint):
    with pytest.raises(RefusedLayoutError) as refusal:
        check_layout(load_settings(TransformerSettings, None, settings), layout)
    assert message in refusal.value.message
    assert hint in refusal.value.hint


@pytest.mark.parametrize("layout", [Layout(dp=2, mp=2, pp=2, micro_batches=4), Layout(dp=3), Layout(micro_batches=64)])
def test_a_layout_that_fits_is_accepted(layout):
    """A batch need not divide into as many parts."""
    assert check_layout(load_settings(TransformerSettings, None), layout) is None


@pytest.mark.parametrize(
    ("settings", "message", "hint"),
    [
        (["train.minimum_rate=0.001"], "train.schedule = inverse_sqrt does not fall to it", "linear or cosine"),
        (["train.minimum_rate=1", "train.schedule=cosine"], "train.minimum_rate = 1 is above", "0.003 at most"),
        (["train.early_stopping=3"], "train.early_stopping = 3 counts validations", "--set train.validate_every=N"),
    ],
)
def test_settings_without_effect_are_refused(settings, message, hint):
    with pytest.raises(UsageError) as refusal:
        check_layout(load_settings(TransformerSettings, None, settings), Layout())
    assert message in refusal.value.message
    assert hint in refusal.value.hint
