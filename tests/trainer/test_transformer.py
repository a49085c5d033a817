"""The model's parts against torch's own, and against formulas written out."""

import math

import pytest
import torch
from torch import nn

from launcher.recipes.load import load_settings
from launcher.recipes.transformer.transformer_settings import TransformerSettings
from launcher.trainer.data.batches import collate
from launcher.trainer.data.tokens import Example
from launcher.trainer.model.dropout import DropoutBits
from launcher.trainer.model.transformer import END, SHARED_WEIGHT, Embedding, Sinusoids, attention_mask
from launcher.trainer.parallel.collectives import ALONE
from launcher.trainer.parallel.head_loss import head_loss
from launcher.trainer.plan import apply_plan
from launcher.trainer.session import meta_model, model_shapes, pipeline_stages

from .transformers import transformer_settings

SIZES = ["model.vocabulary_size=40", "model.d_model=16", "model.heads=4", "model.feed_forward_dim=32"]
CPU = torch.device("cpu")
BATCH = collate([Example([5, 6, 7, END], [8, 9, END]), Example([6, END], [7, 8, 9, 10, END])])


def settings_of(*more):
    return transformer_settings(*SIZES, *more)


def model_of(*more):
    settings = settings_of(*more)
    model, [whole] = meta_model(settings), pipeline_stages(settings, 1)
    apply_plan(model, [whole], ALONE, seed=3, device=CPU, dtype=torch.float64)
    with torch.no_grad():  # norms and biases that are 1 and 0 would hide that they are in the wrong place
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.linspace(-0.3, 0.3, len(parameter), dtype=torch.float64))
    return model


def copy_attention(ours, theirs):
    projections = (ours.query, ours.key, ours.value)
    theirs.in_proj_weight.copy_(torch.cat([one.weight for one in projections]))
    theirs.in_proj_bias.copy_(torch.cat([one.bias for one in projections]))
    theirs.out_proj.load_state_dict(ours.output.state_dict())


@torch.no_grad()
def torch_layer(ours, *, norm_first):
    """Torch's layer with the weights of one of ours, of the encoder or of the decoder."""
    is_decoder = hasattr(ours, "cross_attention")
    kind = nn.TransformerDecoderLayer if is_decoder else nn.TransformerEncoderLayer
    theirs = kind(16, 4, 32, dropout=0.0, batch_first=True, norm_first=norm_first, dtype=torch.float64)
    copy_attention(ours.attention, theirs.self_attn)
    norms = [ours.attention_norm, ours.feed_forward_norm]
    if is_decoder:
        copy_attention(ours.cross_attention, theirs.multihead_attn)
        norms.insert(1, ours.cross_attention_norm)
    for number, norm in enumerate(norms, start=1):
        getattr(theirs, f"norm{number}").load_state_dict(norm.state_dict())
    theirs.linear1.load_state_dict(ours.feed_forward.expand.state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward.contract.state_dict())
    return theirs.train()  # in eval, torch takes another way


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_norms_stand_where_torch_has_them(norm):
    model = model_of(f"model.norm={norm}")
    encoder = [torch_layer(layer, norm_first=norm == "pre") for layer in model.encoder.values()]
    decoder = [torch_layer(layer, norm_first=norm == "pre") for layer in model.decoder.values()]
    ours_encoded, ours_decoded = model(BATCH)
    source_padding = BATCH.source_BS == 0
    encoded = model.source_embedding(BATCH.source_BS)
    for layer in encoder:
        encoded = layer(encoded, src_key_padding_mask=source_padding)
    decoded = model.target_embedding(BATCH.target_BT)
    causal = nn.Transformer.generate_square_subsequent_mask(decoded.shape[1], dtype=torch.float64)
    memory = encoded if norm == "post" else model.encoder_norm(encoded)
    for layer in decoder:
        decoded = layer(decoded, memory, tgt_mask=causal, memory_key_padding_mask=source_padding, tgt_is_causal=True)
    torch.testing.assert_close(ours_encoded, memory, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ours_decoded, decoded, rtol=1e-12, atol=1e-12)
    assert ("encoder_norm.weight" in dict(model.named_parameters())) == (norm == "pre")
    logits = model.project(ours_decoded)
    last = decoded if norm == "post" else model.decoder_norm(decoded)
    torch.testing.assert_close(logits, last @ model.head.weight.T, rtol=1e-12, atol=1e-12)


def test_sinusoids_are_those_of_the_paper():
    vectors = Sinusoids(9, 6)(torch.arange(9))
    for position in range(9):
        angles = [position / 10000 ** (2 * i / 6) for i in range(3)]
        expected = [*map(math.sin, angles), *map(math.cos, angles)]
        assert vectors[position].tolist() == pytest.approx(expected, abs=1e-15)
    assert Sinusoids(4, 5)(torch.arange(4)).shape == (4, 5)


def test_words_are_scaled_and_positions_are_not():
    settings = settings_of("model.scale_embedding=true", "model.positions=sinusoidal")
    embedding = Embedding(settings.model, 8)
    nn.init.normal_(embedding.word.weight)
    ids = torch.tensor([[7, 9, 3]])
    expected = embedding.word.weight[ids] * 4 + Sinusoids(8, 16)(torch.arange(3)).float()
    torch.testing.assert_close(embedding(ids), expected)
    assert [name for name, _ in embedding.named_parameters()] == ["word.weight"]


@pytest.mark.parametrize("cross", [False, True], ids=["causal", "masked"])
def test_attention_drops_weights_as_dropout_of_the_softmax_does(cross):
    """Its mask is that which the dropout gives of ones; without it, it is scaled_dot_product_attention."""
    layer = next(iter(model_of("model.attention_dropout=0.4").decoder.values()))
    attention = layer.cross_attention if cross else layer.attention
    numbers = torch.Generator().manual_seed(1)
    hidden, memory = (torch.randn(2, size, 16, generator=numbers, dtype=torch.float64) for size in (5, 4))
    mask = attention_mask(BATCH.source_BS) if cross else None
    memory = memory if cross else hidden
    draws = DropoutBits.of(torch.arange(2), 5, seed=1, step=1)
    found = attention(hidden, memory, mask=mask, causal=not cross, draws=draws)
    query, key, value = (
        project(of).unflatten(-1, (4, 4)).transpose(1, 2)
        for project, of in ((attention.query, hidden), (attention.key, memory), (attention.value, memory))
    )
    scores = query @ key.transpose(2, 3) / 2
    allowed = mask if cross else torch.ones(5, 5, dtype=torch.bool).tril()
    weights = scores.masked_fill(~allowed, -math.inf).softmax(dim=-1)
    scales = attention.dropout(torch.ones_like(weights), draws)
    expected = attention.output((weights * scales @ value).transpose(1, 2).flatten(2))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert set(scales.unique().tolist()) == {0, 1 / 0.6}
    plain = attention(hidden, memory, mask=mask, causal=not cross)
    attention.dropout.rate = 0.0
    torch.testing.assert_close(attention(hidden, memory, mask=mask, causal=not cross, draws=draws), plain)
    assert not torch.allclose(plain, found)


def test_the_recipe_for_multi30k_has_its_table_once():
    """Its parameters are counted by hand: layers, and one matrix for both embeddings and the head."""
    shapes = model_shapes(load_settings(TransformerSettings, "recipes/transformer/multi30k.toml"))
    d, f = 128, 256
    attention, feed_forward, norm = 4 * (d * d + d), 2 * d * f + d + f, 2 * d
    encoder, decoder = attention + feed_forward + 2 * norm, 2 * attention + feed_forward + 3 * norm
    assert sum(map(math.prod, shapes.values())) == 10000 * d + 4 * encoder + 4 * decoder == 2_605_056


@pytest.mark.parametrize("share", ["none", "decoder", "all"])
def test_a_shared_matrix_is_one_parameter(share):
    """Its gradient is the sum of what embeddings and head would have if each had a matrix of its own, with the same numbers."""
    model, apart = model_of(f"model.share={share}"), model_of()
    shared = dict(model.named_parameters()).get(SHARED_WEIGHT)
    tied = {"none": (), "decoder": ("target_embedding.word", "head"), "all": ("source_embedding.word", "target_embedding.word", "head")}[share]  # fmt: skip
    for name, parameter in apart.named_parameters():
        given = shared if name.removesuffix(".weight") in tied else dict(model.named_parameters())[name]
        parameter.data.copy_(given.data)
    losses = [
        head_loss(hidden, one.head, labels)
        for one in (model, apart)
        for hidden, labels in [one.last_hidden(one(BATCH)[1], BATCH.labels_BT, BATCH.labelled_N)]
    ]
    torch.testing.assert_close(*losses, rtol=1e-12, atol=0)
    for loss in losses:
        loss.backward()
    names = {name for name, _ in model.named_parameters()}
    assert names == set(model.state_dict())
    assert names == {name for name, _ in apart.named_parameters() if name.removesuffix(".weight") not in tied} | (
        {SHARED_WEIGHT} if tied else set()
    )
    for name, parameter in apart.named_parameters():
        if name in names:
            torch.testing.assert_close(dict(model.named_parameters())[name].grad, parameter.grad)
    if tied:
        expected = sum(apart.get_submodule(name).weight.grad for name in tied)
        torch.testing.assert_close(shared.grad, expected)
