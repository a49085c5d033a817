"""Masks are a hash of what is computed: as random as a generator's, and the same on every layout."""

import math
from itertools import combinations

import pytest
import torch

from launcher.trainer.model import dropout as dropout_module
from launcher.trainer.model.dropout import AttentionDropout, Dropout, DropoutBits
from launcher.trainer.session import meta_model

from .transformers import transformer_settings

RATE = 0.3
ROWS, POSITIONS, FEATURES = 64, 33, 128


def dropped(*, place="encoder.0.attention_dropout", rate=RATE, seed=1, step=1, rows=None, length=POSITIONS):
    """Where ones are dropped, as ones."""
    dropout = Dropout(rate)
    dropout.place = place
    draws = DropoutBits.of(torch.arange(ROWS) if rows is None else rows, POSITIONS, seed=seed, step=step)
    return (dropout(torch.ones(len(draws.factor_BT1), length, FEATURES), draws) == 0).double()


def deviations(products):
    """By how many standard deviations a sum of independent terms, each of mean 0 and variance 1, is off."""
    return abs(float(products.sum())) / math.sqrt(products.numel())


def standardised(mask, rate=RATE):
    return (mask - rate) / math.sqrt(rate * (1 - rate))


@pytest.mark.parametrize("rate", [0.05, 0.1, 0.3, 0.5, 0.9])
def test_the_share_that_is_dropped_is_the_rate(rate):
    mask = dropped(rate=rate)
    assert deviations(standardised(mask, rate)) < 5
    for dims in ((1, 2), (0, 2), (0, 1), 2):
        counts = mask.sum(dims)
        expected = mask.numel() / counts.numel() * rate
        chi_square = float(((counts - expected) ** 2).sum()) / (expected * (1 - rate))
        assert abs(chi_square - counts.numel()) < 5 * math.sqrt(2 * counts.numel())


@pytest.mark.parametrize("lag", [1, 2, 3, 16])
@pytest.mark.parametrize("dim", [0, 1, 2], ids=["row", "position", "feature"])
def test_neighbours_are_dropped_independently(dim, lag):
    mask = standardised(dropped())
    count = mask.shape[dim] - lag
    assert deviations(mask.narrow(dim, 0, count) * mask.narrow(dim, lag, count)) < 5


def dropped_weights(*, heads=8, keys=33, part=0, parts=1, rows=None):
    """Where weights of attention are dropped, as ones; so many heads of `parts` times as many."""
    dropout = AttentionDropout(RATE)
    dropout.place, dropout.part, dropout.parts = "decoder.0.cross_attention.dropout", part, parts
    draws = DropoutBits.of(torch.arange(ROWS) if rows is None else rows, POSITIONS, seed=1, step=1)
    return (dropout(torch.ones(len(draws.factor_BT1), heads, POSITIONS, keys), draws) == 0).double()


def test_weights_of_attention_are_dropped_independently():
    mask = standardised(dropped_weights())
    assert deviations(mask) < 5
    for dim in range(4):
        for lag in (1, 2, 3):
            count = mask.shape[dim] - lag
            assert deviations(mask.narrow(dim, 0, count) * mask.narrow(dim, lag, count)) < 5


def test_masks_of_attention_do_not_depend_on_the_layout():
    whole = dropped_weights()
    assert torch.equal(dropped_weights(heads=2, part=3, parts=4), whole[:, 6:])
    assert torch.equal(dropped_weights(keys=17), whole[..., :17])
    assert torch.equal(dropped_weights(rows=torch.tensor([40, 3])), whole[[40, 3]])


def test_a_part_of_the_features_is_dropped_as_in_the_whole():
    dropout = Dropout(RATE)
    dropout.place, dropout.part, dropout.parts = "encoder.0.attention_dropout", 1, 4
    draws = DropoutBits.of(torch.arange(ROWS), POSITIONS, seed=1, step=1)
    part = (dropout(torch.ones(ROWS, POSITIONS, FEATURES // 4), draws) == 0).double()
    assert torch.equal(part, dropped()[..., FEATURES // 4 : FEATURES // 2])


def test_gradients_pass_where_nothing_is_dropped():
    dropout = AttentionDropout(0.4)
    draws = DropoutBits.of(torch.arange(2), 5, seed=1, step=1)
    weights = torch.randn(2, 3, 5, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda given: dropout(given, draws), weights)


def test_masks_of_steps_places_and_seeds_are_independent():
    masks = [
        standardised(dropped(place=f"decoder.{layer}.{name}_dropout", seed=seed, step=step))
        for layer in (0, 1)
        for name in ("attention", "feed_forward")
        for seed, step in ((1, 1), (1, 2), (1, 3), (2, 1), (12, 1))
    ]
    for one, other in combinations(masks, 2):
        assert deviations(one * other) < 5
        assert deviations(one[..., 1:] * other[..., :-1]) < 5


def test_two_features_are_independent_whatever_their_words(monkeypatch):
    """As the hash family promises; numbers in a row, here, are words as bad as can be."""
    monkeypatch.setattr(dropout_module, "feature_words", lambda _, width, __: torch.arange(width, dtype=torch.int32))
    mask = standardised(dropped())
    for other in (1, 2, 3, 16):
        assert deviations(mask[..., 0] * mask[..., other]) < 5


def test_triples_of_features_are_independent():
    """Words of one position differ by multiples of one factor: three of them must not tell of each other, either."""
    mask = standardised(dropped())
    assert deviations(mask[..., :-2] * mask[..., 1:-1] * mask[..., 2:]) < 5


def test_a_rows_mask_depends_neither_on_its_batch_nor_on_padding():
    whole = dropped()
    rows = torch.tensor([5, 60, 7])
    assert torch.equal(dropped(rows=rows, length=20), whole[rows, :20])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_gradient_falls_where_the_values_do(dtype):
    dropout = Dropout(RATE)
    values = torch.full((4, 5, 6), 2.0, dtype=dtype, requires_grad=True)
    output = dropout(values, DropoutBits.of(torch.arange(4), 5, seed=1, step=1))
    output.sum().backward()
    kept = torch.tensor(2 / (1 - RATE), dtype=dtype)
    assert output.dtype == dtype
    assert set(output.unique().tolist()) == {0, float(kept)}
    torch.testing.assert_close(values.grad * 2, output.detach())


def test_no_value_is_waited_for():
    """On the meta device there is none: an accelerator's queue is never emptied to decide what comes next."""
    draws = DropoutBits.of(torch.arange(4, device="meta"), 5, seed=1, step=1)
    values = torch.ones(4, 5, 6, device="meta", requires_grad=True)
    Dropout(RATE)(values, draws).sum().backward()
    assert values.grad.shape == values.shape


def test_nothing_is_dropped_without_draws_or_rate():
    values = torch.ones(2, 3, 4)
    assert Dropout(RATE)(values, None) is values
    assert Dropout(0.0)(values, DropoutBits.of(torch.arange(2), 3, seed=1, step=1)) is values


def test_every_call_in_the_model_has_a_place_of_its_own():
    model = meta_model(transformer_settings())
    places = {name: module.place for name, module in model.named_modules() if isinstance(module, Dropout)}
    assert all(place == name for name, place in places.items())
    assert len(places) == 2 + 2 * 4 + 2 * 6  # embeddings, encoder layers, decoder layers


@pytest.mark.parametrize("rate", [0.05, 0.1, 0.3, 0.9])
def test_all_types_drop_the_same_and_scale_up_what_is_kept(rate):
    dropout, draws = Dropout(rate), DropoutBits.of(torch.arange(ROWS), POSITIONS, seed=1, step=1)
    hidden = torch.randn(ROWS, POSITIONS, FEATURES, generator=torch.Generator().manual_seed(1))
    exact = dropout(hidden.double(), draws)
    assert torch.equal(dropout(hidden, draws), torch.where(exact != 0, hidden * (1 / (1 - rate)), 0 * hidden))
    assert torch.equal(dropout(hidden.bfloat16(), draws) == 0, exact == 0)
