"""Layers to pipeline stages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.core.errors import RefusedLayoutError
from launcher.mesh.stages import split_into_stages


@st.composite
def stacks(draw):
    """(encoder layers, decoder layers, stages) that fit each other."""
    encoder_layers, decoder_layers = draw(st.integers(0, 9)), draw(st.integers(1, 9))
    return encoder_layers, decoder_layers, draw(st.integers(1, encoder_layers + decoder_layers))


@given(stacks())
def test_every_layer_is_on_exactly_one_stage_in_order(stack):
    encoder_layers, decoder_layers, pp = stack
    stages = split_into_stages(encoder_layers, decoder_layers, pp)
    assert [layer for stage in stages for layer in stage.encoder_layers] == list(range(encoder_layers))
    assert [layer for stage in stages for layer in stage.decoder_layers] == list(range(decoder_layers))


@given(stacks())
def test_stages_differ_by_one_layer_at_most_and_none_is_empty(stack):
    """Work is spread evenly, and the last stage, which has the head, is never the larger one."""
    sizes = [len(stage.encoder_layers) + len(stage.decoder_layers) for stage in split_into_stages(*stack)]
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1
    assert sizes[-1] == min(sizes)


@given(stacks())
def test_one_stage_closes_the_encoder_before_any_decoder_layer(stack):
    """The encoder's final norm is applied once: after its last layer, before what reads it."""
    stages = split_into_stages(*stack)
    [closing] = [stage.index for stage in stages if stage.closes_encoder]
    assert all(not stage.encoder_layers for stage in stages[closing + 1 :])
    assert all(not stage.decoder_layers for stage in stages[:closing])


def test_more_stages_than_layers_are_refused():
    """A stage without a layer would only wait."""
    with pytest.raises(RefusedLayoutError, match="1 encoder \\+ 1 decoder = 2 layers") as refusal:
        split_into_stages(1, 1, 3)
    assert "--pp 2 at most" in refusal.value.hint
