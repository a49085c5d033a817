"""What a model holds and computes, and how its description is read."""

import pytest

from launcher.core.errors import UnreadableError
from launcher.plan.configuration import stage_layers
from launcher.plan.model_shape import model_from

from .models import DECODER_7B, GPT_175B, TRANSLATOR


def test_parameters_and_flops_are_those_of_the_papers():
    """Narayanan et al. 2021, equations 2 and 3, for the model with 175 billion parameters."""
    h, layers, s, vocab, samples = 12288, 96, 2048, 51200, 1536
    assert GPT_175B.parameters == 12 * layers * h * h + vocab * h
    with_recompute = 96 * samples * s * layers * h * h * (1 + s / (6 * h) + vocab / (16 * layers * h))
    assert GPT_175B.step_flops(samples, recompute=True) == pytest.approx(with_recompute, rel=1e-12)
    assert DECODER_7B.parameters == 32 * (4 * 4096**2 + 3 * 4096 * 11008) + 2 * 32000 * 4096


def test_a_decoder_with_an_encoder_has_cross_attention():
    layer, h = TRANSLATOR.decoder_layer, 1024
    assert layer.weights == 8 * h * h + 2 * h * 4096
    assert layer.multiply_adds == 128 * (6 * h * h + 2 * h * 4096) + 128 * 2 * h * h
    assert layer.scores == 16 * 128 * (128 + 128)
    assert (layer.all_reduces, TRANSLATOR.encoder_layer.all_reduces) == (3, 2)


def test_grouped_queries_have_smaller_keys_and_values():
    model = model_from({"layers": 2, "hidden": 64, "heads": 8, "kv_heads": 2, "seq": 8, "vocab": 100}, "here")
    assert model.decoder_layer.weights == 2 * 64 * 64 + 2 * 64 * 16 + 2 * 64 * 256


def test_names_of_other_frameworks():
    own = {
        "layers": 2,
        "hidden": 64,
        "heads": 8,
        "seq": 8,
        "vocab": 100,
        "ffn": 96,
        "kv_heads": 2,
        "gated_mlp": True,
        "tied_embeddings": False,
    }
    hugging_face = {
        "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 8, "seq": 8, "vocab_size": 100,
        "intermediate_size": 96, "num_key_value_heads": 2, "hidden_act": "silu", "tie_word_embeddings": False,
        "max_position_embeddings": 4096,
    }  # fmt: skip
    megatron = {
        "num_layers": 2, "hidden_size": 64, "num_attention_heads": 8, "seq_length": 8, "padded_vocab_size": 100,
        "ffn_hidden_size": 96, "num_query_groups": 2, "swiglu": True, "untie_embeddings_and_output_weights": True,
    }  # fmt: skip
    assert model_from(hugging_face, "config.json") == model_from(megatron, "args.json") == model_from(own, "model.json")


def test_equal_layers_are_divided_evenly_and_others_by_cost():
    assert [sum(number for _, number in held) for held in stage_layers(GPT_175B, 36)] == [3] * 24 + [2] * 12
    first, last = stage_layers(TRANSLATOR, 2)
    # A decoder layer costs more than an encoder layer, so that the first stage also takes one of the encoder's ...
    assert sum(number for _, number in first) > 6 > sum(number for _, number in last)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([], "a model is a JSON object, not list"),
        ({"layers": 2, "hidden": 64, "heads": 4}, "the model lacks `seq`, `vocab`"),
        ({"layers": 2, "hidden": 64, "heads": 5, "seq": 8, "vocab": 9}, "`hidden` 64 is not divisible by `heads` 5"),
        ({"layers": "2", "hidden": 64, "heads": 4, "seq": 8, "vocab": 9}, "`layers` is '2', not a whole number"),
        ({"layers": True, "hidden": 64, "heads": 4, "seq": 8, "vocab": 9}, "`layers` is True"),
        (
            {"layers": 0, "hidden": 64, "heads": 4, "seq": 8, "vocab": 9},
            "`layers` is 0, not a whole number of at least 1",
        ),
    ],
)
def test_what_is_said_about_a_wrong_model(values, said):
    with pytest.raises(UnreadableError) as raised:
        model_from(values, "model.json")
    assert said in str(raised.value)
    assert str(raised.value).startswith("model.json: ")
