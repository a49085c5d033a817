"""Batches as a pure function of (seed, epoch, step) and the layout."""

import math
import random
from itertools import combinations_with_replacement, islice, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from launcher.core.errors import UsageError
from launcher.core.records import Layout
from launcher.corpus.dataset import PairText, read_pairs
from launcher.corpus.sample import PACKED, SIZES
from launcher.mesh.coordinates import coordinate_of
from launcher.recipes.transformer.transformer_checks import check_layout
from launcher.recipes.transformer.transformer_settings import TransformerTrainConfig
from launcher.trainer.data import order
from launcher.trainer.data.batches import (
    global_batches,
    own_micro_batches,
    padding_share,
    token_count,
    validation_batches,
)
from launcher.trainer.data.tokenizer import Tokenizer, train_tokenizer
from launcher.trainer.data.tokens import Example, TokenizedPairs, tokenize
from launcher.trainer.model.transformer import BEGIN, END, PAD
from launcher.trainer.programs import transformer
from launcher.trainer.programs.transformer import unigram_perplexity

from .transformers import transformer_settings

CPU = torch.device("cpu")
LONGEST = 9


def example(numbers):
    words = [numbers.randrange(4, 50) for _ in range(numbers.randrange(1, LONGEST))]
    return Example([*words, END], [*reversed(words), END])


def examples(count):
    numbers = random.Random(count)
    return [example(numbers) for _ in range(count)]


def numbered(count):
    """Pairs whose sources begin with their number; lengths vary."""
    numbers = random.Random(count)
    return [
        Example([number, *[5] * numbers.randrange(LONGEST), END], [*[6] * numbers.randrange(LONGEST), END])
        for number in range(count)
    ]


def train_settings(*settings):
    return transformer_settings(*(f"train.{setting}" for setting in settings)).train


def micro_batches_of_all(batch, layout):
    """The micro batches of every data-parallel rank."""
    coordinates = [coordinate_of(rank, layout) for rank in range(layout.world_size)]
    firsts = [coordinate for coordinate in coordinates if coordinate.mp == coordinate.pp == 0]
    return [part for coordinate in firsts for part in own_micro_batches(batch, layout, coordinate, CPU)]


@pytest.mark.parametrize("count", [16, 13, 3, 1])
@pytest.mark.parametrize("layout", [Layout(), Layout(dp=2, micro_batches=4), Layout(dp=2, mp=2, pp=2)], ids=str)
def test_the_ranks_share_a_global_batch_without_loss(count, layout):
    batch = examples(count)
    parts = micro_batches_of_all(batch, layout)
    labels = sorted([token for token in row if token != PAD] for part in parts for row in part.labels_BT.tolist())
    assert [row for row in labels if row] == sorted(pair.target for pair in batch)
    assert sum(int((part.labels_BT != PAD).sum()) for part in parts) == token_count(batch)
    assert all((part.source_BS != PAD).any(dim=1).all() for part in parts)


def cost_of(part):
    """Of a micro batch: its positions, padding included, and its target tokens."""
    return math.prod(part.streams_shape) + int((part.labels_BT != PAD).sum())


def least_cost(lengths, parts):
    """The cost of the largest part of the best way to cut pairs of these lengths, in this order; by trying all of them."""
    cuts = combinations_with_replacement(range(len(lengths) + 1), parts - 1)
    return min(
        max(
            len(part) * (max(s for s, _ in part) + max(t for _, t in part)) + sum(t for _, t in part)
            for start, stop in pairwise([0, *cut, len(lengths)])
            if (part := lengths[start:stop])
        )
        for cut in cuts
    )


@given(count=st.integers(1, 9), dp=st.integers(1, 2), micro_batches=st.integers(1, 2))
def test_no_other_cut_of_a_global_batch_has_a_cheaper_largest_part(count, dp, micro_batches):
    """Of all cuts of the pairs by length."""
    batch = numbered(count)
    parts = micro_batches_of_all(batch, Layout(dp=dp, micro_batches=micro_batches))
    real = [part for part in parts if (part.labels_BT != PAD).any()]
    lengths = [(len(pair.source), len(pair.target)) for pair in batch]
    ordered = sorted(lengths, key=lambda pair: (pair[1], pair[0] if pair[1] % 2 == 0 else -pair[0]))
    assert max(map(cost_of, real)) == least_cost(ordered, len(parts))


@given(count=st.integers(1, 300), dp=st.integers(1, 5), micro_batches=st.integers(1, 4))
def test_all_parts_of_a_global_batch_cost_about_the_same(count, dp, micro_batches):
    batch = numbered(count)
    parts = micro_batches_of_all(batch, Layout(dp=dp, micro_batches=micro_batches))
    real = [part for part in parts if (part.labels_BT != PAD).any()]
    rows = [row for part in real for row in part.row_B.tolist()]
    costs = list(map(cost_of, parts))
    assert len(parts) == dp * micro_batches
    assert sorted(rows) == list(range(count))
    assert rows == [int(number) for part in real for number in part.source_BS[:, 0]]
    if count >= 10 * len(parts):
        assert max(costs) < 1.15 * sum(costs) / len(costs)


def test_a_part_has_pairs_of_about_one_length():
    layouts = [Layout(dp=dp, micro_batches=micro_batches) for dp, micro_batches in ((1, 1), (1, 4), (4, 4))]
    one, four, sixteen = (padding_share(micro_batches_of_all(numbered(256), layout)) for layout in layouts)
    assert sixteen < 0.75 * four < 0.75 * 0.75 * one


def test_the_decoder_reads_what_comes_before_each_label():
    [batch] = own_micro_batches([Example([7, END], [8, 9, END])], Layout(), coordinate_of(0, Layout()), CPU)
    assert batch.target_BT.tolist() == [[BEGIN, 8, 9]]
    assert batch.labels_BT.tolist() == [[8, 9, END]]


def test_micro_batches_are_padded_to_their_own_longest():
    batch = [Example([5] * 9 + [END], [5, END]), Example([6, END], [6, END])]
    short, long = own_micro_batches(batch, Layout(micro_batches=2), coordinate_of(0, Layout()), CPU)
    assert (long.streams_shape, short.streams_shape) == ((1, 12), (1, 4))


MODES = {"pairs": "batch_size=7", "tokens": "batch_tokens=40"}


@pytest.fixture(params=[1, 2, 3], ids="{} pools".format)
def pools(request, monkeypatch):
    """Of 300 pairs: so small that an epoch has several."""
    monkeypatch.setattr(order, "BLOCK_PAIRS", 8)
    monkeypatch.setattr(order, "MIN_POOL_PAIRS", 300 // request.param)
    monkeypatch.setattr(order, "POOL_PAIRS_PER_TOKEN", 1)
    return request.param


def numbers_of(batch):
    return [pair.source[0] for pair in batch.examples]


@pytest.mark.parametrize("mode", MODES)
def test_each_epoch_visits_every_pair_once_in_its_own_order(mode, pools):
    batches = list(global_batches(numbered(300), train_settings(MODES[mode], "epochs=2")))
    first, second = (
        [number for batch in batches if batch.epoch == epoch for number in numbers_of(batch)] for epoch in (1, 2)
    )
    left_out = 300 % 7 if mode == "pairs" else 0
    assert [batch.step_of_epoch for batch in batches] == 2 * list(range(1, len(batches) // 2 + 1))
    assert len(set(first)) == len(first) == len(second) == len(set(second)) == 300 - left_out
    assert first != second
    assert max(first[:21]) - min(first[:21]) > 100  # from all over the corpus
    assert pools == 1 or not set(first[:30]) <= set(second[: len(second) // pools + 8])  # pools have other blocks


def test_batches_of_short_and_long_pairs_come_in_any_order(pools):
    batches = list(global_batches(numbered(300), train_settings("batch_tokens=40", "epochs=2")))
    first, second = ([len(batch.examples[0].target) for batch in batches if batch.epoch == epoch] for epoch in (1, 2))
    assert first != second
    assert first != sorted(first)
    assert second != sorted(second)


@pytest.mark.parametrize("mode", MODES)
def test_a_step_is_the_same_whatever_came_before(mode, pools):
    pairs, config = numbered(300), train_settings(MODES[mode], "epochs=3")
    whole = [numbers_of(batch) for batch in global_batches(pairs, config)]
    for step in random.Random(1).sample(range(1, len(whole) + 1), 12):
        [again] = islice(global_batches(pairs, config, first_step=step), 1)
        assert (again.step, numbers_of(again)) == (step, whole[step - 1])
    assert whole[0] != numbers_of(next(global_batches(pairs, train_settings(MODES[mode], "seed=2"))))


@given(count=st.integers(1, 200), batch_tokens=st.integers(2 * LONGEST, 400))
def test_batches_have_as_many_tokens_as_asked_for(count, batch_tokens):
    pairs = examples(count)
    tokens = [
        token_count(batch.examples) for batch in global_batches(pairs, train_settings(f"batch_tokens={batch_tokens}"))
    ]
    mean = token_count(pairs) / len(tokens)
    assert len(tokens) == math.ceil(token_count(pairs) / batch_tokens)
    assert all(each > 0 and abs(each - mean) <= LONGEST for each in tokens)


def test_batches_by_tokens_have_little_padding():
    """On the packaged sample: of the positions of 1,024-token batches, 4 % are padding, of 32 random pairs half."""
    pairs = read_pairs(PairText(PACKED))[: SIZES["train"]]
    tokenizer = Tokenizer(train_tokenizer([side for pair in pairs for side in pair], 1200))
    pairs = tokenize(pairs, tokenizer, transformer_settings().data)

    def padding(*settings):
        positions = tokens = 0
        for batch in global_batches(pairs, train_settings(*settings)):
            [part] = own_micro_batches(batch.examples, Layout(), coordinate_of(0, Layout()), CPU)
            for ids in (part.source_BS, part.labels_BT):
                positions, tokens = positions + ids.numel(), tokens + int((ids != PAD).sum())
        return 1 - tokens / positions

    assert padding("batch_tokens=1024") < 0.05
    assert padding("batch_size=32") > 0.4


@pytest.mark.parametrize("mode", MODES)
def test_a_validation_takes_every_pair_once(mode):
    batches = list(validation_batches(numbered(33), train_settings(MODES[mode])))
    assert sorted(pair.source[0] for batch in batches for pair in batch) == list(range(33))
    assert all(len(batch) <= 7 if mode == "pairs" else token_count(batch) <= 40 + LONGEST for batch in batches)


def test_batches_without_room_for_a_sentence_are_refused():
    settings = transformer_settings("train.batch_tokens=63", "data.target_length=32")
    with pytest.raises(UsageError, match=r"train\.batch_tokens = 63") as error:
        check_layout(settings, Layout())
    assert "train.batch_tokens=64" in error.value.hint


class Words:
    """A tokenizer whose ids are the lengths of words."""

    def encode(self, sentences):
        return [[len(word) for word in sentence.split()] for sentence in sentences]


def test_long_sentences_are_cut_and_keep_their_end():
    config = transformer_settings("data.source_length=3", "data.target_length=2").data
    pairs = tokenize([("aaaa aaaaa aaaaaa", "aaaa aaaaa"), ("aaaa aaaaa", "aaaa")], Words(), config)
    source_BS, target_BT = pairs.padded()
    assert list(pairs) == [Example([4, 5, END], [4, END]), Example([4, 5, END], [4, END])]
    assert (source_BS.tolist(), target_BT.tolist()) == ([[4, 5, END]] * 2, [[4, END]] * 2)
    assert pairs.cut_count() == 1
    assert pairs.uncut()[0] == Example([4, 5, 6, END], [4, 5, END])


def test_a_choice_of_pairs_is_those_pairs():
    whole = numbered(20)
    pairs = TokenizedPairs.of(whole)
    places = np.array([3, 0, 5])
    assert [pairs[4], pairs[-1]] == [whole[4], whole[-1]]
    assert list(pairs[5:12].take(places)) == [whole[8], whole[5], whole[10]]
    assert list(pairs.take(places)[1:]) == [whole[0], whole[5]]
    assert [side.tolist() for side in pairs.take(places).lengths()] == [
        [len(getattr(whole[place], side)) for place in places] for side in ("source", "target")
    ]


def test_the_unigram_model_is_the_formula():
    """Two tokens, three ids: p = (count + 1) / (total + V)."""
    valid = TokenizedPairs.of([Example([END], [4, END])])
    counts = np.array([0, 0, 0, 1, 2])
    assert unigram_perplexity(counts, valid, 5) == pytest.approx(math.exp(-(math.log(3 / 8) + math.log(2 / 8)) / 2))


@pytest.mark.parametrize(("steps", "count"), [(0, 6), (5, 5), (8, 8)])
def test_batches_run_through_the_epochs_or_the_steps(steps, count):
    config = transformer_settings("train.batch_size=3", "train.epochs=2", f"train.steps={steps}").train
    batches = list(global_batches(examples(10), config))
    assert [batch.step for batch in batches] == list(range(1, count + 1))
    assert [(batch.epoch, batch.step_of_epoch) for batch in batches[2:5]] == [(1, 3), (2, 1), (2, 2)]
    assert [batch.is_last for batch in batches] == [False] * (count - 1) + [True]
    assert all(len(batch.examples) == 3 for batch in batches)


def test_a_loss_far_above_that_of_guessing_is_a_divergence():
    assert transformer.divergence(math.log(1200) + 1, 1200) is None
    assert "7.09" in transformer.divergence(46626.0, 1200)
    assert [transformer.perplexity_text(loss) for loss in (1.0, 46626.0, math.inf)] == ["2.72", *2 * ["over 1,000,000"]]


def test_a_warm_up_that_is_longer_than_the_training_is_noted():
    config = TransformerTrainConfig(warmup_steps=150)
    assert [transformer.short_warmup(config, step) is None for step in (149, 150)] == [False, True]
    assert "train.warmup_steps=9`" in transformer.short_warmup(config, 96)
