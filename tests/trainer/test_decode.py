"""Greedy and beam search with kept keys and values, against a search that is written out and keeps nothing."""

import copy
import dataclasses
import unicodedata

import pytest
import torch

from launcher.trainer.data.tokenizer import Tokenizer, train_tokenizer
from launcher.trainer.decode.beam import Search, largest, search
from launcher.trainer.decode.cache import CachedDecoder
from launcher.trainer.decode.translator import Translator
from launcher.trainer.model.initial import initial_weight
from launcher.trainer.model.transformer import BEGIN, END, PAD, attention_mask
from launcher.trainer.saved import single_device_model
from launcher.trainer.session import model_shapes

from .transformers import transformer_settings

VOCABULARY = 23
SETTINGS = transformer_settings(
    *(f"model.vocabulary_size={VOCABULARY}", "model.d_model=12", "model.heads=3", "model.feed_forward_dim=20"),
    *("data.source_length=20", "data.target_length=20"),
)
SOURCES = [[5, 6, 7, END], [9, END], [4, 8, 15, 16, 22, 11, 10, END], [12, 13, END], [END], [20, 19, 18, 17, 5, END]]
LIMITS = [12, 7, 20, 9, 4, 15]


def model_of(dtype, seed=3):
    """Weights larger than initial ones, so that some tokens are much likelier than others."""
    shapes = model_shapes(SETTINGS)
    weights = {name: initial_weight(name, torch.Size(shape), seed).to(dtype) for name, shape in shapes.items()}
    weights["head.weight"] *= 60
    for name in weights:
        if name.endswith("position.weight"):
            weights[name] *= 5
    return single_device_model(SETTINGS, weights, torch.device("cpu"))


def batch_of(sources):
    width = max(map(len, sources))
    return torch.tensor([[*ids, *[PAD] * (width - len(ids))] for ids in sources])


def found(model, sources, limits, how):
    decoder = CachedDecoder(copy.deepcopy(model))
    return search(decoder, batch_of(sources), limits, how, VOCABULARY)


def log_p_after(model, source, live):
    """The log-probability of each token after each of these hypotheses, which are equally long, computed from the beginning."""
    source_BS, target_BT = torch.tensor([source] * len(live)), torch.tensor([[BEGIN, *ids] for ids in live])
    mask = attention_mask(source_BS)
    encoded = model.encode(model.source_embedding(source_BS), mask)
    decoded = model.decode(model.target_embedding(target_BT), encoded, mask)
    return model.project(decoded)[:, -1].log_softmax(dim=-1).tolist()


@torch.no_grad()
def searched(model, source, limit, how):
    """The best finished hypothesis and its score, by the rules of decode/beam.py without its early end."""
    live, finished = [(0.0, ())], []
    for length in range(1, limit + 1):
        continued = []
        together = log_p_after(model, source, [ids for _, ids in live])
        for (score, ids), after in zip(live, together, strict=True):
            if length == limit:
                finished.append(((score + after[END]) / length**how.alpha, ids))
            continued += [(score + after[token], ids, token) for token in range(END, VOCABULARY)]
        if length == limit:
            break
        continued = sorted(continued, key=lambda each: -each[0])[: 2 * how.beam]
        finished += [(score / length**how.alpha, ids) for score, ids, token in continued[: how.beam] if token == END]
        if len(finished) >= how.beam:
            break
        live = [(score, (*ids, token)) for score, ids, token in continued if token != END][: how.beam]
    score, ids = max(finished, key=lambda each: each[0])
    return ids, score


@pytest.mark.parametrize("seed", [1, 3])
@pytest.mark.parametrize("how", [Search(1, 1.0), Search(2, 0.6), Search(5, 1.0), Search(4, 0.0)])
def test_a_batch_is_searched_as_one_sentence_without_cache(how, seed):
    model = model_of(torch.float64, seed)
    together = found(model, SOURCES, LIMITS, how)
    for source, limit, hypothesis in zip(SOURCES, LIMITS, together, strict=True):
        ids, score = searched(model, source, limit, how)
        assert hypothesis.ids == ids
        assert hypothesis.score == pytest.approx(score, rel=1e-12)


def test_sentences_end_at_different_lengths():
    """What the comparison above is worth: some hypotheses end early, some at their limit, and beams find other ones than greed does."""
    model = model_of(torch.float64)
    lengths = [len(each.ids) + 1 for each in found(model, SOURCES, LIMITS, Search(5))]
    assert len(set(lengths)) > 2
    assert any(length < limit for length, limit in zip(lengths, LIMITS, strict=True))
    assert found(model, SOURCES, LIMITS, Search(5)) != found(model, SOURCES, LIMITS, Search(1))


def test_a_batch_in_float32_has_the_tokens_of_each_sentence_alone():
    model = model_of(torch.float32)
    alone = [found(model, [source], [limit], Search())[0] for source, limit in zip(SOURCES, LIMITS, strict=True)]
    together = found(model, SOURCES, LIMITS, Search())
    assert [each.ids for each in together] == [each.ids for each in alone]
    assert [each.score for each in together] == pytest.approx([each.score for each in alone], rel=1e-5)


def test_a_larger_beam_than_there_are_tokens():
    model = model_of(torch.float64)
    [hypothesis] = found(model, SOURCES[:1], [3], Search(beam=40))
    assert len(hypothesis.ids) < 3
    assert hypothesis.score == pytest.approx(searched(model, SOURCES[0], 3, Search(beam=40))[1], rel=1e-12)


def test_weights_that_are_not_numbers_end_the_search():
    model = model_of(torch.float32)
    model.head.weight.data.fill_(torch.nan)
    assert [each.ids for each in found(model, SOURCES, LIMITS, Search(3))] == [()] * len(SOURCES)


@pytest.mark.parametrize(("width", "count"), [(5000, 10), (1280, 5), (1290, 5), (700, 10), (10, 10)])
def test_the_largest_are_those_of_topk(width, count):
    values = torch.randn(7, width, generator=torch.Generator().manual_seed(width))
    values[0, -3:] = 9.0 + torch.arange(3)  # beyond the last whole block
    for ours, theirs in zip(largest(values, count), values.topk(count), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def translator_of(sentences, dtype, **data):
    tokenizer = Tokenizer(train_tokenizer(sentences, 290))
    settings = transformer_settings("model.vocabulary_size=290", "model.d_model=16")
    shapes = model_shapes(settings)
    weights = {name: initial_weight(name, torch.Size(shape), 1).to(dtype) for name, shape in shapes.items()}
    weights["head.weight"] *= 60
    model = single_device_model(settings, weights, torch.device("cpu"))
    return Translator(model, tokenizer, dataclasses.replace(settings.data, **data))


def test_a_sentence_is_translated_as_training_saw_it():
    sentences = ["où est l'été", "il aime le café"]

    def translated(texts, **data):
        return [each.text for each in translator_of(sentences, torch.float32, **data).translate(texts, Search(2))]

    plain = sentences[0]
    decomposed = unicodedata.normalize("NFD", plain)
    forms = [plain, decomposed, plain.replace(" ", " \t  "), f"\ufeff {plain}\u00a0", plain.replace(" ", "\u200b ")]
    first, *others = translated([*forms, "\u200b", "\u200d \u3000"])
    assert first
    assert others == [first] * 4 + ["", ""]
    raw = translated([plain, decomposed], normalise=False)
    assert raw[0] == first
    assert raw[1] != first


def test_sentences_are_cut_batched_and_given_back_in_order():
    sentences = ["le chat noir dort", "the black cat sleeps", "un chat", "a b c d e f g h i j k l m n o p q r s t u v"]
    translator = translator_of(sentences, torch.float64)
    together = translator.translate(sentences, Search(3))
    by_twos = translator.translate(sentences, Search(3), batch_tokens=20)
    assert [each.text for each in by_twos] == [each.text for each in together]
    assert len({each.text for each in together}) == len(sentences)
    assert [each.cut_tokens > 0 for each in together] == [False, False, False, True]
    assert not any("\n" in each.text or "\r" in each.text for each in together)
