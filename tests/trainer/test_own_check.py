"""A batch and its parts: which networks have the same loss for both, and which are found not to."""

import functools
import random
import re
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from launcher.core.errors import RefusedLayoutError
from launcher.core.records import Layout
from launcher.trainer.own.check import Comparison, NotComparedError, checked_division, difference
from launcher.trainer.own.divide import Division, divisions_to_check
from launcher.trainer.own.trial import seen_in_a_call

from .over_rows import OverRows

ROWS, LENGTH, WORDS, HIDDEN = 8, 5, 11, 6


class Net(nn.Module):
    """Gives each position of a sentence logits; `kind` makes a loss of them, the labels, and a mask of other lengths in each row."""

    def __init__(self, kind, **modules):
        super().__init__()
        self.kind = kind
        self.word, self.head = nn.Embedding(WORDS, HIDDEN), nn.Linear(HIDDEN, WORDS)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("cache", torch.zeros(()), persistent=False)
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, source, label, mask):
        return self.kind(self, self.word(source), label, mask)

    def losses(self, hidden, label):
        return functional.cross_entropy(self.head(hidden).flatten(0, 1), label.flatten(), reduction="none").view_as(
            label
        )


def batches(count=3, rows=ROWS, seed=0):
    numbers = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        source, label = (torch.randint(0, WORDS, (rows, LENGTH), generator=numbers) for _ in range(2))
        lengths = torch.randint(1, LENGTH + 1, (rows, 1), generator=numbers)
        found.append((source, label, (torch.arange(LENGTH) < lengths).double()))
    return found


def divided(whole, dp=1, micro_batches=2):
    size = len(whole[0]) // (dp * micro_batches)
    parts = [tuple(each[first : first + size] for each in whole) for first in range(0, dp * micro_batches * size, size)]
    return Division(whole, [parts[rank::dp] for rank in range(dp)])


def compared(network, dp=1, micro_batches=2, **options):
    torch.manual_seed(1)
    return difference(network, [divided(each, dp, micro_batches) for each in batches()], Comparison(**options))


def masked(net, hidden, label, mask):
    return (net.losses(hidden, label) * mask).sum() / mask.sum()


def weighted(net, hidden, label, _mask):
    weight = torch.linspace(0.5, 2, WORDS)
    return functional.cross_entropy(net.head(hidden).flatten(0, 1), label.flatten(), weight=weight)


def summed(net, hidden, label, _mask):
    return net.losses(hidden, label).sum() / 1000


def auxiliary(net, hidden, label, mask):
    """Add a masked term that is lost in float32."""
    squares = net.head(hidden).logsumexp(-1).square()
    return net.losses(hidden, label).mean() + 1e-7 * (squares * mask).sum() / mask.sum()


def batch_norm(net, hidden, label, _mask):
    return net.losses(net.norm(hidden.transpose(1, 2)).transpose(1, 2), label).mean()


def contrastive(_net, hidden, _label, _mask):
    rows = functional.normalize(hidden.mean(1), dim=-1)
    return functional.cross_entropy(rows @ rows.T, torch.arange(len(rows)))


def longest(net, hidden, label, mask):
    length = int(mask.sum(1).max())
    return net.losses(hidden[:, :length], label[:, :length]).mean()


def centred_with_dropout(net, hidden, label, _mask):
    """Rows meet in training only, where functions of torch drop."""
    return plain(
        net, functional.dropout(hidden - hidden.mean(0) if net.training else hidden, 0.5, net.training), label, _mask
    )


def penalty_of_gradients(net, hidden, label, mask):
    """Compute gradients in the forward, as a gradient penalty does, and sum their squares."""
    hidden = hidden.detach().requires_grad_()
    [gradient] = torch.autograd.grad(net.head(hidden).logsumexp(-1).sum(), hidden, create_graph=True)
    return plain(net, hidden, label, mask) + gradient.square().sum()


def counting(net, hidden, label, _mask):
    net.count.add_(1)
    return net.losses(hidden, label).mean()


def averaging(net, hidden, label, _mask):
    net.mean.mul_(0.9).add_(hidden.detach().square().mean().sqrt(), alpha=0.1)
    return net.losses(hidden, label).mean()


FOUND = {
    "ignored": lambda net, hidden, label, mask:
        functional.cross_entropy(net.head(hidden).flatten(0, 1), label.where(mask > 0, -100).flatten()),
    "masked": masked, "weighted": weighted, "summed": summed,
    "root of a mean": lambda net, hidden, label, _mask: net.losses(hidden, label).mean().sqrt(),
    "auxiliary": auxiliary,
    "centred": lambda net, hidden, label, _mask: net.losses(hidden - hidden.mean(0), label).mean(),
    "contrastive": contrastive,
    "neighbours": lambda net, hidden, label, _mask: net.losses(hidden + hidden.roll(1, 0), label).mean(),
    "longest": longest,
    "masked with noise": lambda net, hidden, label, mask:
        masked(net, functional.dropout(hidden, 0.5, net.training), label, mask),
    "masked in training": lambda net, hidden, label, mask:
        masked(net, hidden, label, mask) if net.training else net.losses(hidden, label).mean(),
    "in float32": lambda net, hidden, label, mask: masked(net, hidden.float().double(), label, mask),
    "counting": counting,
    "refuses doubles": lambda net, hidden, label, mask:
        masked(net, hidden @ torch.ones(HIDDEN, HIDDEN, dtype=torch.float32), label, mask),
    "centred with dropout": centred_with_dropout, "penalty of gradients": penalty_of_gradients,
}  # fmt: skip


@pytest.mark.parametrize("kind", FOUND.values(), ids=FOUND)
def test_a_loss_that_depends_on_the_division_is_found(kind):
    assert compared(Net(kind))


def test_statistics_of_a_batch_are_found_unless_they_are_meant():
    def net():
        return Net(batch_norm, norm=nn.BatchNorm1d(HIDDEN))

    assert "the loss" in compared(net())
    assert not compared(net(), keeps_norms=True)
    assert not compared(net().eval())


def test_a_head_of_zeros_hides_nothing():
    """All positions have the same loss at first, so that weights of positions change nothing."""
    net = Net(masked)
    nn.init.zeros_(net.head.weight)
    nn.init.zeros_(net.head.bias)
    assert compared(net)


def test_a_buffer_that_ranks_change_alike_is_equal():
    """Each of two ranks counts once, as one process does; its mean is of its own rows."""
    assert not compared(Net(counting), dp=2, micro_batches=1)
    assert "count" in compared(Net(counting), dp=2, micro_batches=2)
    assert "mean" in compared(Net(averaging), dp=2, micro_batches=1)


def test_only_a_network_that_is_validated_is_compared_in_evaluation():
    def kind(net, hidden, label, mask):
        return net.losses(hidden, label).mean() if net.training else masked(net, hidden, label, mask)

    assert not compared(Net(kind))
    assert compared(Net(kind), is_validated=True)


def plain(net, hidden, label, _mask):
    return net.losses(hidden, label).mean()


def mean_of_rows(net, hidden, label, mask):
    return ((net.losses(hidden, label) * mask).sum(1) / mask.sum(1)).mean()


def by_length(net, hidden, label, mask):
    return (net.losses(hidden, label) * mask).sum() / mask.numel()


def attending(net, hidden, label, _mask):
    return net.losses(net.attention(hidden, hidden, hidden)[0], label).mean()


def cached(net, hidden, label, _mask):
    net.cache = hidden.detach()
    return net.losses(hidden, label).mean()


def penalised(net, hidden, label, _mask):
    return net.losses(hidden, label).mean() + sum(each.square().sum() for each in net.parameters())


def chance(net, hidden, label, mask):
    """Scale what is hidden, in training, by chance: two calls in a row may well have the same loss."""
    return plain(net, hidden * (2 if net.training and random.random() < 0.5 else 1), label, mask)


def attending_with_dropout(net, hidden, label, mask):
    rate = 0.5 * net.training
    return plain(net, functional.scaled_dot_product_attention(hidden, hidden, hidden, None, rate), label, mask)


def functional_gradients(net, hidden, label, mask):
    slopes = torch.func.vmap(torch.func.grad(lambda row: net.head(row).logsumexp(-1).sum()))(hidden)
    return plain(net, hidden, label, mask) + slopes.square().mean()


EQUAL = {
    "chance": chance, "attending with dropout": attending_with_dropout, "functional gradients": functional_gradients,
    "plain": plain, "mean of rows": mean_of_rows, "by length": by_length,
    "in half": lambda net, hidden, label, _mask: net.losses((hidden.bfloat16() * 3).to(hidden.dtype), label).mean(),
    "dropped": lambda net, hidden, label, _mask:
        net.losses(functional.dropout(net.dropout(hidden), 0.5, net.training), label).mean(),
    "recurrent": lambda net, hidden, label, _mask: net.losses(net.gru(hidden)[0], label).mean(),
    "attending": attending,
    "recomputed": lambda net, hidden, label, _mask:
        net.losses(checkpoint(torch.tanh, hidden, use_reentrant=False), label).mean(),
    "cached": cached,
    "doubled": lambda net, hidden, label, _mask:
        net.losses(hidden @ torch.ones(HIDDEN, HIDDEN, dtype=net.dtype), label).mean(),
    "penalised": penalised,
    "by values": lambda net, hidden, label, _mask:
        net.losses(hidden, label).mean() if bool(torch.isfinite(hidden).all()) else hidden.sum(),
}  # fmt: skip


@pytest.mark.parametrize("kind", EQUAL.values(), ids=EQUAL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_mean_over_rows_is_equal(kind, dtype):
    gru = nn.GRU(HIDDEN, HIDDEN, num_layers=2, dropout=0.1, batch_first=True)
    attention = nn.MultiheadAttention(HIDDEN, 2, dropout=0.1, batch_first=True)
    modules = {"gru": gru, "attention": attention, "dropout": nn.Dropout(0.3)}
    net = Net(kind, **modules).to(dtype)
    net.dtype = dtype
    assert not compared(net, dp=2, is_validated=True)


def test_nothing_is_left_behind():
    """Weights, buffers, modes, generators and the default type are as before; no gradient is made."""

    def kind(*arguments):
        random.random()  # changes nothing
        np.random.rand()  # noqa: NPY002 - the global generator
        return averaging(*arguments)

    net = Net(kind, norm=nn.BatchNorm1d(HIDDEN))
    drawn = random.getstate(), np.random.get_state()[2]  # noqa: NPY002
    before = {name: value.clone() for name, value in net.state_dict().items()}
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    difference(net, [divided(batches()[0])], Comparison(is_validated=True))
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert (random.getstate(), np.random.get_state()[2]) == drawn  # noqa: NPY002
    assert torch.get_default_dtype() == torch.float32
    assert all(each.training for each in net.modules())
    assert all(each.grad is None for each in net.parameters())


def test_tables_that_code_keeps_have_their_own_type():

    @functools.cache
    def table(length):
        return torch.full((length, length), -torch.inf).triu(1)

    def kind(net, hidden, label, mask):
        seen = (hidden @ hidden.transpose(1, 2) + table(LENGTH)).softmax(-1)
        return plain(net, seen @ hidden, label, mask)

    assert not compared(Net(kind))
    assert table(LENGTH).dtype == torch.float32


def test_complex_buffers_are_compared():
    def kind(net, hidden, label, mask):
        net.spectrum.add_(1j * hidden.detach().mean())
        return plain(net, hidden, label, mask)

    net = Net(kind)
    net.register_buffer("spectrum", torch.zeros(3, dtype=torch.complex64))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "spectrum" in compared(net)


@pytest.mark.parametrize("kind", [
    lambda net, hidden, label, _mask: net.losses(hidden + torch.randn_like(hidden), label).mean(),
    lambda net, hidden, label, _mask: net.losses(hidden.view(4, LENGTH, HIDDEN), label).mean(),
], ids=["noisy", "of four rows"])  # fmt: skip
def test_a_network_that_cannot_be_compared_is_told(kind):
    with pytest.raises(NotComparedError):
        compared(Net(kind))


def test_moved_weights_that_the_code_cannot_take_are_left_out():
    def kind(net, hidden, label, _mask):
        assert float(net.head.bias.detach().abs().max()) == 0, "as it began"
        return net.losses(hidden, label).mean()

    net = Net(kind)
    nn.init.zeros_(net.head.bias)
    assert not compared(net)


def of_own_backward(net, hidden, label, mask):
    return plain(net, OverRows.apply(hidden), label, mask)


def test_gradients_are_compared_on_request():
    """A loss that is a mean over rows may have a gradient that is not."""
    assert not compared(Net(of_own_backward))
    words = compared(Net(of_own_backward), gradients=True)
    number = r"(-?[\d.e-]+)"
    told = rf"the gradient of word\.weight over 8 rows is {number}; the mean over 2 parts of 4 is {number}: this gradient is not a mean over rows"
    whole, mean = map(float, re.fullmatch(told, words).groups())
    assert mean == pytest.approx(2 * whole, rel=1e-3)
    for kind in (plain, mean_of_rows, by_length, penalised):
        assert not compared(Net(kind), dp=2, gradients=True)


def test_a_refusal_shows_both_losses():
    torch.manual_seed(0)
    network, division = Net(summed), divided(batches(rows=64)[0])
    with pytest.raises(RefusedLayoutError) as told:
        checked_division(network, [division], layout="dp = 2", may_differ=False)
    assert told.value.message == (
        "dp = 2; the loss of 64 rows is 0.825; the mean over 2 parts of 32 is 0.4125: this loss is not a mean over rows"
    )
    assert "parts_may_differ" in told.value.hint
    [remark] = checked_division(network, [division], layout="dp = 2", may_differ=True)
    assert remark.removesuffix("; training minimises the mean over the parts") in told.value.message


@pytest.mark.parametrize(
    "layout", [Layout(dp=2), Layout(micro_batches=4), Layout(dp=4, micro_batches=2), Layout(dp=64)]
)
@pytest.mark.parametrize("batch_size", [64, 512, 4096])
def test_a_check_costs_one_batch(layout, batch_size):
    """All rows that it computes, at once and in parts, are fewer than twice those of a batch: forward passes without backward."""
    numbers = []

    def collate(rows):
        numbers.extend(rows)
        return (torch.zeros(len(rows), 1),)

    found = list(divisions_to_check(100_000, batch_size, layout, collate))
    parts = layout.dp * layout.micro_batches
    assert len(numbers) <= batch_size + 48
    assert len(found[0].parts[0][0][0]) == batch_size // parts
    assert all(sum(len(part[0]) for own in each.parts for part in own) == len(each.whole[0]) for each in found)


def test_what_a_call_draws_and_changes_is_seen():
    net = Net(attending, attention=nn.MultiheadAttention(HIDDEN, 2, dropout=0.1, batch_first=True))
    where, changed = seen_in_a_call(net, batches()[0][:1] + batches()[0][1:2] + (batches()[0][2].float(),))
    assert where.startswith("test_own_check.py:")
    assert not changed
    assert seen_in_a_call(Net(averaging), batches()[0]) == ("", "mean")
    assert seen_in_a_call(Net(plain), batches()[0]) == ("", "")
