"""AdamW over a flat buffer, on one rank."""

import pytest
import torch
from torch import nn

from launcher.recipes.load import load_settings
from launcher.recipes.transformer.config import TransformerSettings
from launcher.trainer.optimizer.adamw import ShardedAdamW
from launcher.trainer.parallel.collectives import ALONE
from launcher.trainer.parallel.placement import Placement
from launcher.trainer.session import learning_rate_at

STEPS, LEARNING_RATE = 7, 3e-2


def two_models():
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3)).double())
    return models


def owner_of(model, **settings):
    config = load_settings(
        TransformerSettings, None, [f"train.{name}={value}" for name, value in settings.items()]
    ).train
    parameters = dict(model.named_parameters())
    placed = {name: Placement(parameter.shape) for name, parameter in parameters.items()}
    return ShardedAdamW(parameters, placed, config, dp=ALONE, mp=ALONE, pp=ALONE)


@pytest.mark.parametrize("clip_norm", [0, 0.5])
def test_steps_are_those_of_torch(clip_norm):
    """Weights follow torch.optim.AdamW with decay on matrices only, and clip_grad_norm_."""
    ours, theirs = two_models()
    optimizer = owner_of(ours, weight_decay=0.1, clip_norm=clip_norm)
    groups = [
        {"params": [parameter for parameter in theirs.parameters() if parameter.dim() > 1], "weight_decay": 0.1},
        {"params": [parameter for parameter in theirs.parameters() if parameter.dim() == 1], "weight_decay": 0.0},
    ]
    reference = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.98), eps=1e-9)
    for step in range(STEPS):
        inputs = torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        optimizer.zero_gradients()
        ours(inputs).square().sum().backward()
        norm = optimizer.step(LEARNING_RATE)
        reference.zero_grad()
        theirs(inputs).square().sum().backward()
        expected_norm = nn.utils.clip_grad_norm_(theirs.parameters(), clip_norm or float("inf"))
        reference.step()

        assert norm == pytest.approx(float(expected_norm), rel=1e-6 if clip_norm else 1e-12)
    for parameter, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        # clip_grad_norm_ adds 1e-6 to the norm it divides by.
        torch.testing.assert_close(parameter, expected, rtol=1e-5 if clip_norm else 1e-11, atol=1e-12)


def test_matrices_decay_and_vectors_do_not():
    """With gradients of zero, only matrices shrink."""
    [model, before] = two_models()
    with torch.no_grad():
        model[0].bias.add_(1)
        before[0].bias.add_(1)

    owner_of(model, weight_decay=0.5).step(0.1)

    torch.testing.assert_close(model[0].weight, before[0].weight * (1 - 0.1 * 0.5))
    assert torch.equal(model[0].bias, before[0].bias)
    assert torch.equal(model[1].weight, before[1].weight)


def test_the_learning_rate_warms_up_and_falls():
    """Linear to its peak at the last warm-up step, then as the inverse square root; constant without warm-up."""
    config = load_settings(TransformerSettings, None, ["train.learning_rate=0.4", "train.warmup_steps=4"]).train

    assert [learning_rate_at(step, config) for step in (1, 2, 4, 16)] == pytest.approx([0.1, 0.2, 0.4, 0.2])
    constant = load_settings(TransformerSettings, None, ["train.learning_rate=0.4", "train.warmup_steps=0"]).train
    assert [learning_rate_at(step, constant) for step in (1, 100)] == [0.4, 0.4]
