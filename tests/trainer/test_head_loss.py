"""The model's head and its loss in one, against torch's own parts."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from launcher.trainer.data.tokens import Example
from launcher.trainer.model import linear
from launcher.trainer.model.transformer import END
from launcher.trainer.parallel import head_loss as module
from launcher.trainer.parallel.head_loss import head_loss

from .transformers import session_of

VOCABULARY, D_MODEL = 67, 16


def parts(tokens, dtype=torch.float64, scale=1.0):
    torch.manual_seed(tokens)
    hidden = (scale * torch.randn(tokens, D_MODEL, dtype=torch.float64)).to(dtype).requires_grad_()
    head = nn.Linear(D_MODEL, VOCABULARY, bias=False, dtype=torch.float64).to(dtype)
    return hidden, head, torch.randint(VOCABULARY, (tokens,))


@pytest.mark.parametrize("tokens", [0, 1, 511, 513])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_value_and_gradients_are_those_of_torch(tokens, smoothing, scale, monkeypatch):
    """In one chunk or several, times any factor, also where exp() alone would overflow. Only gradients are smoothed."""
    monkeypatch.setattr(module, "MIN_CHUNK_TOKENS", 512)
    monkeypatch.setattr(module, "CPU_BYTES", 1)
    hidden, head, labels = parts(tokens, scale=scale)
    expected = functional.cross_entropy(head(hidden), labels, reduction="sum")
    smoothed = functional.cross_entropy(head(hidden), labels, label_smoothing=smoothing, reduction="sum")
    loss = head_loss(hidden, head, labels, smoothing=smoothing, scale=0.25)
    assert loss.item() == pytest.approx(expected.item() / 4, rel=1e-12)
    for factor in (1, 3):
        ours = torch.autograd.grad(factor * loss, [hidden, head.weight], retain_graph=True)
        theirs = torch.autograd.grad(factor * smoothed / 4, [hidden, head.weight], retain_graph=True)
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12 * scale)
    with torch.no_grad():
        assert head_loss(hidden, head, labels, smoothing=smoothing, scale=0.25).item() == loss.item()


@pytest.mark.parametrize(
    ("dtype", "by_onednn", "tolerance"),
    [(torch.float32, True, 1e-6), (torch.float32, False, 1e-6), (torch.bfloat16, True, 1e-2)],
)
def test_in_narrow_types_only_the_inputs_are_rounded(dtype, by_onednn, tolerance, monkeypatch):
    """Of 3,000 tokens the loss is that of float64 to the fifth digit at least, gradients to that of the type."""
    monkeypatch.setattr(linear, "_ONEDNN", linear._OPERATION if by_onednn else None)
    hidden, head, labels = parts(3000, dtype)
    exact_hidden, exact_head = hidden.double().detach().requires_grad_(), head.weight.double().detach().requires_grad_()
    logits = exact_hidden @ exact_head.t()
    expected = functional.cross_entropy(logits, labels, reduction="sum")
    functional.cross_entropy(logits, labels, label_smoothing=0.1, reduction="sum").backward()
    loss = head_loss(hidden, head, labels, smoothing=0.1)
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    for ours, theirs in ((hidden.grad, exact_hidden.grad), (head.weight.grad, exact_head.grad)):
        assert (ours.double() - theirs).norm() < tolerance * theirs.norm()


class Largest(TorchDispatchMode):
    """Notes the elements of the largest tensor that an operation gives."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = function(*args, **(kwargs or {}))
        sizes = [value.numel() for value in tree_leaves(given) if isinstance(value, torch.Tensor)]
        self.elements = max([self.elements, *sizes])
        return given


def test_a_step_never_holds_the_logits_of_a_batch():
    """Forward and backward of 2,000 tokens with a vocabulary of 20,000: no tensor is larger than a chunk's logits."""
    sizes = ["model.vocabulary_size=20000", "model.d_model=8", "model.heads=1", "model.feed_forward_dim=8"]
    session = session_of(*sizes, "model.encoder_layers=0", "model.decoder_layers=1")
    examples = [Example([5, END], [*range(4, 29), END])] * 77  # 2,002 tokens
    with Largest() as largest:
        session.accumulate_gradients(examples, step=1)
    assert largest.elements == module.MIN_CHUNK_TOKENS * 20_000


def test_padding_does_not_count():
    """Rows whose label is PAD add nothing; a batch of nothing else has a loss and gradients of zero."""
    session = session_of("model.vocabulary_size=67", "train.precision=float64")
    model = session.model
    decoded = torch.randn(2, 3, session.settings.model.d_model, dtype=torch.float64, requires_grad=True)
    for labels in (torch.tensor([[5, 0, 7], [0, 0, 9]]), torch.zeros(2, 3, dtype=torch.long)):
        hidden, counted = model.last_hidden(decoded, labels, labels.flatten().nonzero()[:, 0])
        loss = head_loss(hidden, model.head, counted, smoothing=0.1)
        gradient, weight_gradient = torch.autograd.grad(loss, [decoded, model.head.weight])
        logits = model.project(decoded).flatten(0, 1)
        expected = functional.cross_entropy(logits, labels.flatten(), ignore_index=0, reduction="sum")
        assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
        assert (gradient[labels == 0] == 0).all()
        assert (gradient[labels != 0] != 0).any(dim=1).all()
        assert bool(weight_gradient.any()) == bool(labels.any())
