"""What the Transformer's parts cost, and the stages that are cut by that."""

import pytest

from launcher.core.errors import RefusedLayoutError
from launcher.recipes.load import load_settings
from launcher.recipes.transformer.cost import pipeline_stages, stage_costs, training_flops
from launcher.recipes.transformer.transformer_settings import ModelConfig, TransformerSettings


def settings_of(encoder_layers, decoder_layers, *more):
    layers = (f"model.encoder_layers={encoder_layers}", f"model.decoder_layers={decoder_layers}")
    return load_settings(TransformerSettings, None, (*layers, *more))


def layer_counts(settings, pp):
    return [(len(stage.encoder_layers), len(stage.decoder_layers)) for stage in pipeline_stages(settings, pp)]


@pytest.mark.parametrize(("vocabulary_size", "pp", "counts"), [
    (10_000, 2, [(4, 3), (0, 1)]), (100, 2, [(4, 1), (0, 3)]), (60_000, 2, [(4, 4), (0, 0)]),
    (60_000, 4, [(4, 0), (0, 2), (0, 2), (0, 0)]),
    (10, 9, [(1, 0)] * 4 + [(0, 1)] * 4 + [(0, 0)]),
])  # fmt: skip
def test_a_larger_head_leaves_fewer_layers_to_the_last_stage(vocabulary_size, pp, counts):
    """None, in the end; a stage may hold layers of one kind alone."""
    sizes = f"model.vocabulary_size={vocabulary_size}", "model.heads=4", "model.feed_forward_dim=256"
    assert layer_counts(settings_of(4, 4, *sizes), pp) == counts


@pytest.mark.parametrize("pp", [2, 3, 4])
def test_no_other_cut_has_a_less_busy_stage(pp):
    """The costs of the stages, too, are those of the layers, of the embeddings and of the head."""
    settings = settings_of(5, 3, "model.vocabulary_size=8000")
    best = max(stage_costs(settings, pipeline_stages(settings, pp)))
    for first in range(9):
        for second in range(first, 9):
            by_hand = {2: (first, 8 - first), 3: (first, second - first, 8 - second), 4: (1, first, second - first, 7 - second)}[pp]  # fmt: skip
            if min(by_hand) >= 0 and 0 not in by_hand[1:-1]:
                other = settings_of(5, 3, "model.vocabulary_size=8000", f"parallel.stages={list(by_hand)}")
                assert max(stage_costs(other, pipeline_stages(other, pp))) >= best


def test_stages_by_hand_are_taken_as_they_are():
    """The first may hold the embeddings alone, the last the head, and others nothing at all."""
    assert layer_counts(settings_of(2, 2, "parallel.stages=[1, 0, 3]"), 3) == [(1, 0), (0, 0), (1, 2)]
    assert layer_counts(settings_of(2, 3, "parallel.stages=[0, 1, 4]"), 3) == [(0, 0), (1, 0), (1, 3)]
    assert layer_counts(settings_of(2, 3, "parallel.stages=[5, 0]"), 2) == [(2, 3), (0, 0)]


@pytest.mark.parametrize(("stages", "pp", "message", "hint"), [
    ("[2, 2]", 4, "parallel.stages = [2, 2] has 2 stages, but pp = 4", "--pp 2"),
    ("[2, 3]", 2, "parallel.stages = [2, 3] has 5 layers, but the model has 2 encoder + 2 decoder = 4 layers", "[]"),
    ("[]", 6, "pp = 6 stages are more than the model's parts", "at most `--pp 5`"),
])  # fmt: skip
def test_stages_that_do_not_fit_are_refused(stages, pp, message, hint):
    with pytest.raises(RefusedLayoutError) as refusal:
        pipeline_stages(settings_of(2, 2, f"parallel.stages={stages}"), pp)
    assert message in refusal.value.message
    assert hint in refusal.value.hint


def test_flops_are_six_for_each_weight_and_token_and_those_of_attention():
    """By hand for one pair of 3 and 2 tokens: of n weights 6n for each position that they are applied to."""
    model = ModelConfig(vocabulary_size=11, d_model=4, heads=2, feed_forward_dim=5, encoder_layers=2, decoder_layers=1)
    of_encoder = 2 * (3 * (4 * 16 + 2 * 20) + 2 * 4 * 3 * 3)
    of_decoder = 2 * (6 * 16 + 2 * 20) + 3 * 2 * 16 + 2 * 4 * (2 * 2 + 2 * 3)
    assert training_flops(model, [3], [2]) == 6 * (of_encoder + of_decoder + 2 * 4 * 11)
    assert training_flops(model, [3, 1], [2, 7]) == training_flops(model, [3], [2]) + training_flops(model, [1], [7])
