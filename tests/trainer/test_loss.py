"""Label-smoothed cross entropy over a sharded vocabulary."""

import pytest
import torch

from launcher.trainer.model.transformer import PAD
from launcher.trainer.parallel.collectives import ALONE
from launcher.trainer.parallel.loss import token_loss_sum, vocabulary_parallel_token_loss_sum

TOKENS, VOCABULARY = 9, 11


@pytest.fixture(name="labels")
def _labels():
    labels = torch.randint(1, VOCABULARY, (TOKENS,), generator=torch.Generator().manual_seed(3))
    labels[[2, 5]] = PAD
    return labels


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_value_and_gradient_are_those_of_torch(labels, smoothing, scale):
    """On one rank the parallel loss is torch's, also where exp() alone would overflow."""
    logits = torch.randn(TOKENS, VOCABULARY, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * scale
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()

    loss = vocabulary_parallel_token_loss_sum(
        ours, labels, smoothing, first_id=0, vocabulary_size=VOCABULARY, group=ALONE
    )
    expected = token_loss_sum(theirs, labels, smoothing)
    (2 * loss).backward()
    (2 * expected).backward()

    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-14)


def test_padding_does_not_count(labels):
    """Tokens labelled PAD add nothing to the loss and get no gradient."""
    logits = torch.randn(TOKENS, VOCABULARY, dtype=torch.float64, requires_grad=True)

    vocabulary_parallel_token_loss_sum(
        logits, labels, 0.1, first_id=0, vocabulary_size=VOCABULARY, group=ALONE
    ).backward()

    assert (logits.grad[labels == PAD] == 0).all()
    assert (logits.grad[labels != PAD] != 0).any(dim=1).all()
