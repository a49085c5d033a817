"""AdamW over flat tensors: its numbers, what belongs to whom, and what a gradient that is not finite leaves whole."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from launcher.mesh.boxes import Box, full_box
from launcher.trainer.optimizer import update_rules
from launcher.trainer.optimizer.flat import ALIGNMENT, arrange
from launcher.trainer.optimizer.sharded import ShardedOptimizer
from launcher.trainer.optimizer.update_rules import AdamW, Momentum, Step, Tensors
from launcher.trainer.parallel.collectives import ALONE
from launcher.trainer.parallel.placement import Placement
from launcher.trainer.programs.transformer import learning_rate_at
from launcher.trainer.session import rule_of

from .transformers import transformer_settings

STEPS, LEARNING_RATE, DECAY, BETAS, EPSILON = 20, 3e-2, 0.1, (0.9, 0.98), 1e-9


def model_of(dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3)).to(dtype)


def owner_of(model, *, gradient_groups=1, rule=None, **settings):
    config = transformer_settings(*(f"train.{name}={value}" for name, value in settings.items()))
    parameters = dict(model.named_parameters())
    placed = {name: Placement.uncut(parameter.shape) for name, parameter in parameters.items()}
    return ShardedOptimizer(
        parameters,
        placed,
        rule or rule_of(config.train),
        clip_norm=config.train.clip_norm,
        gradient_groups=gradient_groups,
        dp=ALONE,
        mp=ALONE,
        pp=ALONE,
    )


def backward(model, step):
    inputs = torch.randn(4, 5, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
    model(inputs.to(next(model.parameters()).dtype)).square().sum().backward()


def reference_of(model, make, decay, **options):
    """Return torch's optimizer, with decay on matrices only."""
    matrices, vectors = ([each for each in model.parameters() if (each.dim() > 1) == many] for many in (True, False))
    groups = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    return make(groups, lr=LEARNING_RATE, **options)


def trained_beside(optimizer, ours, reference, theirs, clip_norm):
    """Train both; gradients are clipped to the norm of all of them."""
    for step in range(STEPS):
        optimizer.zero_gradients()
        backward(ours, step)
        norm = optimizer.step(LEARNING_RATE)
        reference.zero_grad()
        backward(theirs, step)
        expected_norm = nn.utils.get_total_norm([parameter.grad for parameter in theirs.parameters()])
        for parameter in theirs.parameters():
            parameter.grad *= min(1, (clip_norm or math.inf) / expected_norm)
        reference.step()
        assert norm == pytest.approx(float(expected_norm), rel=1e-12)


@pytest.fixture(params=["fused", "plain"])
def kernel(request, monkeypatch):
    assert all(update_rules.has_fused_kernel(kind, torch.device("cpu"), torch.float64) for kind in ("adamw", "sgd"))
    if request.param == "plain":
        monkeypatch.setattr(update_rules, "has_fused_kernel", lambda *_: False)


@pytest.mark.parametrize("clip_norm", [0, 0.5])
@pytest.mark.usefixtures("kernel")
def test_steps_are_those_of_torch(clip_norm):
    ours, theirs = model_of(), model_of()
    optimizer = owner_of(ours, weight_decay=DECAY, clip_norm=clip_norm, gradient_groups=3)
    reference = reference_of(theirs, torch.optim.AdamW, DECAY, betas=BETAS, eps=EPSILON)
    trained_beside(optimizer, ours, reference, theirs, clip_norm)
    for parameter, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("decay", [0, DECAY])
@pytest.mark.parametrize("clip_norm", [0, 0.5])
@pytest.mark.usefixtures("kernel")
def test_momentum_is_that_of_torch(clip_norm, decay):
    ours, theirs = model_of(), model_of()
    rule = Momentum(0.9, weight_decay=decay)
    optimizer = owner_of(ours, rule=rule, clip_norm=clip_norm, gradient_groups=3)
    reference = reference_of(theirs, torch.optim.SGD, decay, momentum=0.9)
    trained_beside(optimizer, ours, reference, theirs, clip_norm)
    for parameter, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-12, atol=1e-14)
    assert optimizer.kinds == ("weight", "first_moment")
    moments = {name: reference.state[parameter]["momentum_buffer"] for name, parameter in theirs.named_parameters()}
    for each in optimizer.owned_boxes():
        weight, moment = each.values
        here = each.box.within(full_box(moments[each.name].shape))
        torch.testing.assert_close(moment, moments[each.name][here], rtol=1e-12, atol=1e-14)
        assert torch.equal(weight, ours.get_parameter(each.name)[here])


@pytest.mark.usefixtures("kernel")
def test_adam_weight_decay_has_no_bias_correction():
    """The formula that MindSpore documents, written out."""
    model, reference = model_of(), model_of()
    optimizer = owner_of(model, optimizer="adam_weight_decay", weight_decay=DECAY, clip_norm=0)
    moments = [(torch.zeros_like(weight), torch.zeros_like(weight)) for weight in reference.parameters()]
    for step in range(STEPS):
        optimizer.zero_gradients()
        backward(model, step)
        optimizer.step(LEARNING_RATE)
        reference.zero_grad()
        backward(reference, step)
        with torch.no_grad():
            for weight, (m, v) in zip(reference.parameters(), moments, strict=True):
                m[:] = BETAS[0] * m + (1 - BETAS[0]) * weight.grad
                v[:] = BETAS[1] * v + (1 - BETAS[1]) * weight.grad**2
                weight.sub_(LEARNING_RATE * (m / (v.sqrt() + EPSILON) + DECAY * (weight.dim() > 1) * weight))
    for weight, expected in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(weight, expected, rtol=1e-12, atol=1e-12)


def test_single_precision_is_clipped_within_the_kernel():
    """In float32, where the kernel divides gradients itself, clipping halves them to the last bit."""
    stepped = []
    for clip_norm, factor in ((0.0, 0.5), (0.5, 1.0)):
        model = model_of(torch.float32)
        optimizer = owner_of(model, clip_norm=clip_norm)
        for parameter in model.parameters():
            parameter.grad.zero_()
        model[0].bias.grad[0] = factor
        assert optimizer.step(LEARNING_RATE) == factor
        stepped.append(torch.cat([parameter.flatten() for parameter in model.parameters()]))
    assert torch.equal(*stepped)


def test_votes_are_asked_for_when_the_gradient_is_there():
    norms = []
    for votes in (None, (1.0, 0.0)):
        model = model_of()
        optimizer = owner_of(model)
        optimizer.zero_gradients()
        asked = []
        backward(model, 0)
        norms.append(optimizer.step(LEARNING_RATE, lambda given=votes, asked=asked: asked.append(1) or given or ()))
        assert (optimizer.votes, asked) == (votes or (), [1])
    assert norms[0] == norms[1]


def test_a_gradient_that_is_not_finite_changes_nothing():
    found = []
    for poison in (None, math.nan, math.inf, 1e200):  # whose square is infinite
        model = model_of()
        optimizer = owner_of(model)
        for step in range(3):
            if step == 1 and poison is not None:
                before = [parameter.clone() for parameter in model.parameters()]
                optimizer.zero_gradients()
                backward(model, step)
                model[2].weight.grad[1, 1] = poison
                assert not math.isfinite(optimizer.step(LEARNING_RATE))
                assert optimizer.not_finite() == ["2.weight"]
                assert all(map(torch.equal, before, model.parameters()))
            optimizer.zero_gradients()
            backward(model, step)
            assert math.isfinite(optimizer.step(LEARNING_RATE))
        found.append(torch.cat([parameter.flatten() for parameter in model.parameters()]))
    assert all(torch.equal(found[0], other) for other in found[1:])


def test_steps_below_the_rounding_of_bfloat16_add_up():
    """A weight of 1 in bfloat16 does not move by 0.0005, twenty times; with its float32 copy it moves by 0.01."""
    model = nn.Linear(1, 1).bfloat16()
    nn.init.ones_(model.weight)
    optimizer = owner_of(model, weight_decay=0, clip_norm=0)
    alone = torch.ones(1, dtype=torch.bfloat16)
    moments = [torch.zeros(1, dtype=torch.bfloat16) for _ in range(2)]
    for number in range(1, STEPS + 1):
        optimizer.zero_gradients()
        for _ in range(2):  # gradients of 1 and 1/512, whose sum bfloat16 would round to 1
            model(torch.tensor([[1.0]], dtype=torch.bfloat16)).sum().backward()
            (model(torch.tensor([[1.0]], dtype=torch.bfloat16)).sum() / 512).backward()
        assert optimizer.step(5e-4) == pytest.approx(math.sqrt(2) * 2 * (1 + 1 / 512), rel=1e-6)
        tensors = Tensors([alone], [torch.ones_like(alone)], (moments[:1], moments[1:]))
        AdamW(*BETAS, EPSILON, weight_decay=0).update(tensors, Step(number, 5e-4), decays=True)
    assert float(alone) == 1
    assert model.weight.item() == pytest.approx(0.99, abs=0.002)


def test_momentum_in_bfloat16_keeps_its_weights_in_float32():
    model = nn.Linear(1, 1).bfloat16()
    nn.init.ones_(model.weight)
    optimizer = owner_of(model, rule=Momentum(0.0), clip_norm=0)
    for _ in range(STEPS):
        optimizer.zero_gradients()
        model(torch.tensor([[1.0]], dtype=torch.bfloat16)).sum().backward()
        optimizer.step(5e-4)
    assert model.weight.item() == pytest.approx(1 - STEPS * 5e-4, abs=0.002)


def test_a_part_that_some_ranks_hold_is_counted_once_in_the_norm():
    """On one of four model-parallel ranks: what two of them hold counts half there, so that all together have it once."""
    parameters = {name: nn.Parameter(torch.zeros(2, 2, dtype=torch.float64)) for name in ("alone", "twice", "by all")}
    placed = {
        name: Placement(torch.Size((4, 4)), Box((2, 0), (2, 2)), copies=copies)
        for name, copies in zip(parameters, (1, 2, 4), strict=True)
    }
    rule = Momentum(0.9)
    optimizer = ShardedOptimizer(parameters, placed, rule, dp=ALONE, mp=ALONE, pp=ALONE)
    optimizer.zero_gradients()
    for parameter in parameters.values():
        parameter.sum().backward()  # of which each element's gradient is 1
    assert optimizer.step(0.0) == pytest.approx(math.sqrt(4 + 4 / 2 + 4 / 4), rel=1e-15)
    boxes = {each.name: each.box for each in optimizer.owned_boxes()}
    assert boxes == {name: Box((2, 0), (2, 2)) for name in parameters}


SHAPES = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=2).map(tuple), min_size=1, max_size=12)


@given(SHAPES, st.integers(1, 5), st.integers(1, 6), st.data())
def test_ranks_own_every_element_once(shapes, dp, groups, data):
    placed = {
        str(index): Placement(shape, full_box(shape), copies=data.draw(st.sampled_from((1, 2, 4))))
        for index, shape in enumerate(map(torch.Size, shapes))
    }
    layout = arrange(placed, dp=dp, groups=groups)
    owners, states = [], []
    for index in range(dp):
        parts = layout.own_parts(index)
        states.append([element for part in parts for element in range(part.state.start, part.state.stop)])
        for part in parts:
            owners += range(part.flat.start, part.flat.stop)
            for name, elements in layout.elements.items():
                if elements.start < part.flat.stop and part.flat.start < elements.stop:
                    treatment = (len(placed[name].full_shape) > 1, placed[name].copies)
                    assert (part.decays, part.copies) == treatment
    assert sorted(owners) == list(range(layout.size))
    assert states == [list(range(layout.state_size))] * dp
    assert [len(layout.elements[name]) for name in placed] == [placed[name].shape.numel() for name in placed]
    starts = sorted(layout.elements.values(), key=lambda elements: elements.start)
    assert all(one.stop <= other.start for one, other in pairwise(starts))
    assert all(elements.start % ALIGNMENT == 0 for elements in starts)
    in_groups = [[int(name) for name in placed if layout.elements[name].start in group] for group in layout.groups]
    assert sum(in_groups[::-1], []) == list(range(len(placed)))  # noqa: RUF017 - a few short lists
    assert 1 <= len(layout.groups) <= groups
    largest = max(placement.shape.numel() for placement in placed.values())
    total = sum(placement.shape.numel() for placement in placed.values())
    for names in in_groups:
        assert sum(placed[str(name)].shape.numel() for name in names) <= total / groups + largest


def test_the_learning_rate_warms_up_and_falls():
    """Linear to its peak at the last warm-up step, then as the inverse square root; constant without warm-up."""
    assert rates([1, 2, 4, 16]) == pytest.approx([0.1, 0.2, 0.4, 0.2])
    assert rates([1, 100], "train.warmup_steps=0") == [0.4, 0.4]


@pytest.mark.parametrize(("schedule", "expected"), [
    ("constant", [0.1, 0.4, 0.4, 0.4, 0.4]), ("linear", [0.1, 0.4, 0.325, 0.25, 0.1]),
    ("cosine", [0.1, 0.4, 0.25 + 0.15 * math.cos(math.pi / 4), 0.25, 0.1]),
])  # fmt: skip
def test_the_learning_rate_falls_to_the_last_step(schedule, expected):
    found = rates([1, 4, 28, 52, 100], f"train.schedule={schedule}", "train.minimum_rate=0.1")
    assert found == pytest.approx(expected)
    assert rates([1, 2], f"train.schedule={schedule}", "train.warmup_steps=8", last_step=2) == [0.05, 0.1]
    assert rates([1], f"train.schedule={schedule}", "train.warmup_steps=0", last_step=1)[0] in {0.0, 0.4}


def rates(steps, *more, last_step=100):
    given = ["train.learning_rate=0.4", "train.warmup_steps=4", *more]
    config = transformer_settings(*given).train
    return [learning_rate_at(step, config, last_step) for step in steps]
