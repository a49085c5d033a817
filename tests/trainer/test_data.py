"""Batches as a pure function of (seed, epoch, step) and the layout."""

import math
import random

import pytest
import torch

from launcher.core.records import Layout
from launcher.mesh.coordinates import coordinate_of
from launcher.recipes.load import load_settings
from launcher.recipes.transformer.config import TransformerSettings
from launcher.trainer.data.baseline import unigram_perplexity
from launcher.trainer.data.batches import Example, epoch_order, global_batches, own_micro_batches, token_count, tokenize
from launcher.trainer.model.transformer import BEGIN, END, PAD

CPU = torch.device("cpu")


def example(numbers):
    words = [numbers.randrange(4, 50) for _ in range(numbers.randrange(1, 9))]
    return Example([*words, END], [*reversed(words), END])


def examples(count):
    numbers = random.Random(count)
    return [example(numbers) for _ in range(count)]


@pytest.mark.parametrize("count", [16, 13, 3, 1])
@pytest.mark.parametrize("layout", [Layout(), Layout(dp=2, micro_batches=4), Layout(dp=2, mp=2, pp=2)], ids=str)
def test_the_ranks_share_a_global_batch_without_loss(count, layout):
    """The labels of all data-parallel ranks together are those of the batch, fillers counting nothing."""
    batch = examples(count)
    firsts = [rank for rank in range(layout.world_size) if coordinate_of(rank, layout).mp == 0]
    firsts = [rank for rank in firsts if coordinate_of(rank, layout).pp == 0]
    parts = [part for rank in firsts for part in own_micro_batches(batch, layout, coordinate_of(rank, layout), CPU)]
    labels = sorted([token for token in row if token != PAD] for part in parts for row in part.labels_BT.tolist())

    assert [row for row in labels if row] == sorted(pair.target for pair in batch)
    assert sum(int((part.labels_BT != PAD).sum()) for part in parts) == token_count(batch)
    assert all((part.source_BS != PAD).any(dim=1).all() for part in parts)


def test_the_decoder_reads_what_comes_before_each_label():
    """Inputs are the labels shifted by one, behind BEGIN."""
    [batch] = own_micro_batches([Example([7, END], [8, 9, END])], Layout(), coordinate_of(0, Layout()), CPU)

    assert batch.target_BT.tolist() == [[BEGIN, 8, 9]]
    assert batch.labels_BT.tolist() == [[8, 9, END]]


def test_micro_batches_are_padded_to_their_own_longest():
    """One long sentence does not slow the other micro batches down."""
    batch = [Example([5] * 9 + [END], [5, END]), Example([6, END], [6, END])]
    long, short = own_micro_batches(batch, Layout(micro_batches=2), coordinate_of(0, Layout()), CPU)

    assert (long.streams_shape, short.streams_shape) == ((1, 12), (1, 4))


def test_each_epoch_visits_every_example_once_in_its_own_order():
    """The order is a permutation that seed and epoch alone decide."""
    first, second = (epoch_order(100, seed=1, epoch=epoch) for epoch in (0, 1))

    assert sorted(first) == sorted(second) == list(range(100))
    assert first != second
    assert first == epoch_order(100, seed=1, epoch=0)
    assert first != epoch_order(100, seed=2, epoch=0)


class Words:
    """A tokenizer whose ids are the lengths of words."""

    def encode(self, sentences):
        return [[len(word) for word in sentence.split()] for sentence in sentences]


def test_long_sentences_are_cut_and_keep_their_end():
    """No sequence is longer than configured, and each ends with END."""
    config = load_settings(TransformerSettings, None, ["data.source_length=3", "data.target_length=2"]).data

    assert tokenize([("aaaa aaaaa aaaaaa", "aaaa aaaaa")], Words(), config) == [
        Example([4, 5, END], [4, END], is_cut=True)
    ]


def test_the_unigram_model_is_the_formula():
    """Two tokens, three ids: p = (count + 1) / (total + V)."""
    train, valid = [Example([END], [4, 4, END])], [Example([END], [4, END])]

    assert unigram_perplexity(train, valid, 5) == pytest.approx(math.exp(-(math.log(3 / 8) + math.log(2 / 8)) / 2))


@pytest.mark.parametrize(("steps", "count"), [(0, 6), (5, 5), (8, 8)])
def test_batches_run_through_the_epochs_or_the_steps(steps, count):
    """Ten pairs in batches of three give three steps an epoch; a number of steps overrides the number of epochs."""
    config = load_settings(
        TransformerSettings, None, ["train.batch_size=3", "train.epochs=2", f"train.steps={steps}"]
    ).train
    batches = list(global_batches(examples(10), config))

    assert [batch.step for batch in batches] == list(range(1, count + 1))
    assert [(batch.epoch, batch.step_of_epoch) for batch in batches[2:5]] == [(1, 3), (2, 1), (2, 2)]
    assert [batch.is_last for batch in batches] == [False] * (count - 1) + [True]
    assert all(len(batch.examples) == 3 for batch in batches)
