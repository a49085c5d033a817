"""What the Transformer's parts cost, and the stages that are cut by that."""

import pytest

from launcher.core.errors import RefusedLayoutError
from launcher.core.records import Layout
from launcher.recipes.load import load_settings
from launcher.recipes.transformer.cost import pipeline_stages, stage_costs, training_flops
from launcher.recipes.transformer.layers import LayerSettings, layers_per_stage, settings_by
from launcher.recipes.transformer.transformer_checks import check_layout, notes
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


def test_flops_are_six_for_each_weight_and_token_and_those_of_attention():
    """By hand for one pair of 3 and 2 tokens: of n weights 6n for each position that they are applied to."""
    model = ModelConfig(vocabulary_size=11, d_model=4, heads=2, feed_forward_dim=5, encoder_layers=2, decoder_layers=1)
    of_encoder = 2 * (3 * (4 * 16 + 2 * 20) + 2 * 4 * 3 * 3)
    of_decoder = 2 * (6 * 16 + 2 * 20) + 3 * 2 * 16 + 2 * 4 * (2 * 2 + 2 * 3)
    assert training_flops(model, [3], [2]) == 6 * (of_encoder + of_decoder + 2 * 4 * 11)
    assert training_flops(model, [3, 1], [2, 7]) == training_flops(model, [3], [2]) + training_flops(model, [1], [7])


# --- layers in the style of MindSpore ---


def of_the_tutorial(layers_per_stage):
    def pipeline_func(network, layer_id, offset, parallel_config, layers):
        pp_id = max(int(layer_id + offset) / layers_per_stage, 1)
        network.pipeline_stage = int(pp_id)

    return pipeline_func


@pytest.mark.parametrize(
    ("encoder_layers", "decoder_layers", "pp", "expected"),
    [(3, 3, 2, (0, 6)), (4, 4, 4, (0, 4, 2, 2)), (1, 1, 2, (0, 2)), (2, 2, 4, (0, 2, 1, 1))],
)
def test_the_tutorials_formula_is_taken_as_written(encoder_layers, decoder_layers, pp, expected):
    function = of_the_tutorial((encoder_layers + decoder_layers) // pp)
    assert settings_by(function, encoder_layers, decoder_layers, None, pp).stages == expected


def test_a_formula_that_divides_by_zero_says_so_itself():
    with pytest.raises(ZeroDivisionError):
        settings_by(of_the_tutorial(4 // 8), 2, 2, None, 8)


def test_a_function_may_choose_recomputed_layers_and_fusion():
    """It is called as MindSpore calls it: the decoder's layers from 0, with an offset, and the configuration handed on."""
    calls = []

    def choose(network, layer_id, offset, parallel_config, layers):
        calls.append((layer_id, offset, parallel_config, layers))
        network.set_comm_fusion((layer_id + offset) // 2 + 1)
        if layer_id == 0:
            network.recompute()

    found = settings_by(choose, 1, 3, "mine", 2)
    assert calls == [(0, 0, "mine", 1), (0, 1, "mine", 3), (1, 1, "mine", 3), (2, 1, "mine", 3)]
    assert found == LayerSettings(stages=(), recompute_layers=(0, 1), gradient_groups=2)


@pytest.mark.parametrize(("stage_of_layer", "pp", "message", "hint"), [
    ([0, 2], 2, "layer 1 is on stage 2, but pp = 2 stages are numbered from 0 to 1", "--pp 3"),
    ([-1, 0], 2, "layer 0 is on stage -1", "0 or higher"),
    ([1, 0], 2, "layer 1 is on stage 0, but the previous layer is on stage 1", "in ascending order"),
])  # fmt: skip
def test_layers_on_stages_that_do_not_fit_are_refused(stage_of_layer, pp, message, hint):
    with pytest.raises(RefusedLayoutError) as refusal:
        layers_per_stage(stage_of_layer, pp)
    assert message in refusal.value.message
    assert hint in refusal.value.hint


def test_a_stage_for_some_layers_only_is_refused():
    def choose(network, layer_id, offset, **_):
        if layer_id + offset != 2:
            network.pipeline_stage = 0

    with pytest.raises(RefusedLayoutError, match="for 3 of 4 layers, but not for layer 2"):
        settings_by(choose, 2, 2, None, 2)


def told(stages, layout, *more):
    settings = load_settings(TransformerSettings, None, [f"parallel.stages={stages}", *more])
    check_layout(settings, layout)
    return notes(settings, layout)


def test_stages_that_leave_ranks_idle_are_taken_with_a_warning():
    layout = Layout(pp=2, micro_batches=4)
    [warning] = told([0, 4], layout)
    assert warning.startswith("warning: parallel.stages = [0, 4]: ranks are predicted to wait for ")
    assert "% of each step; with stages balanced by cost (parallel.stages = [])" in warning
    [warning] = told([2, 0, 2], Layout(pp=3, micro_batches=4))
    assert "leaves stage 1 nothing to compute" in warning
    assert told([3, 1], layout) == told([], layout) == told([4], Layout()) == ()


def test_more_stages_than_parts_are_taken_if_they_are_written():
    [warning] = told([1, 1, 1, 0, 0, 1], Layout(pp=6))
    assert "leaves stage 3 nothing to compute" in warning
    assert warning.endswith("of each step")
