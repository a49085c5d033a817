"""Backward that computes activations again gives the gradients of one that keeps them, bit by bit."""

import gc

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from launcher.trainer.data.tokens import Example
from launcher.trainer.model.transformer import END, EncoderLayer
from launcher.trainer.parallel.recompute import _Activations, recompute_in_backward

from .transformers import session_of, transformer_settings

EXAMPLES = [Example([5, 6, 7, END], [6, 5, END]), Example([8, END], [8, 9, 10, 11, END])]
SIZES = ["model.vocabulary_size=40", "model.d_model=16", "model.heads=4", "model.dropout=0.3"]


def session(*, recompute):
    switch = f"parallel.recompute={str(recompute).lower()}"
    return session_of(*SIZES, switch, micro_batches=2)


def gradients(session, *, steps):
    for step in range(1, steps + 1):
        session.train_step(EXAMPLES, 1e-2, step=step)
    session.accumulate_gradients(EXAMPLES, step=steps + 1)
    return {name: parameter.grad for name, parameter in session.model.named_parameters()}


def test_gradients_are_bitwise_those_without_recompute():
    kept, recomputed = (gradients(session(recompute=switch), steps=3) for switch in (False, True))
    assert kept.keys() == recomputed.keys()
    assert all(torch.equal(kept[name], recomputed[name]) for name in kept)


@pytest.fixture(name="layer")
def _layer():
    layer = EncoderLayer(transformer_settings(*SIZES).model).requires_grad_()
    recompute_in_backward(layer)
    return layer


def waiting():
    """What waits for backward, in the order of its making."""
    return [one for one in gc.get_objects() if isinstance(one, _Activations)]


def test_a_layer_keeps_what_it_was_called_with_until_backward(layer):
    kept = []
    before = torch.ones(2, 3, 16, requires_grad=True) * 2
    gc.collect()
    gc.disable()  # what only a collection would free waits too long
    try:
        with saved_tensors_hooks(kept.append, lambda _: None):
            output = layer(before, torch.ones(2, 1, 1, 3, dtype=torch.bool))
        [activations] = waiting()
        assert not kept
        assert not activations._computed
        assert activations._inputs[0].grad_fn is None
        output.sum().backward()
        del activations, output
        assert not waiting()
    finally:
        gc.enable()


def test_what_follows_the_last_product_is_not_computed_again(layer):
    """Backward needs what went into it, and not what came out: under model parallelism that saves an exchange."""
    calls = []
    for name in ("attention.output", "feed_forward.expand", "feed_forward.contract"):
        layer.get_submodule(name).register_forward_hook(lambda *_, name=name: calls.append(name))
    layer(torch.ones(2, 3, 16), torch.ones(2, 1, 1, 3, dtype=torch.bool)).sum().backward()
    first = ["attention.output", "feed_forward.expand", "feed_forward.contract"]
    assert calls == [*first, *first[:-1]]


def test_validation_computes_once(layer):
    with torch.no_grad():
        layer(torch.ones(2, 3, 16), torch.ones(2, 1, 1, 3, dtype=torch.bool))
    assert not waiting()
