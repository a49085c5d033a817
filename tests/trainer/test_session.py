"""What a rank's steps depend on."""

import pytest
import torch

from launcher.trainer.data.tokens import Example
from launcher.trainer.model import linear
from launcher.trainer.model.linear import set_own_rows
from launcher.trainer.model.transformer import END

from .transformers import session_of


@pytest.fixture(autouse=True)
def no_own_rows():
    """Kernels are allowed for a whole process: here they are as in a new one, before and after."""
    set_own_rows(())
    yield
    set_own_rows(())


def new_session():
    sizes = ["model.vocabulary_size=100", "model.d_model=128", "model.feed_forward_dim=128", "model.dropout=0.1"]
    return session_of(*sizes)


def pairs(count, *, words):
    return [Example([*range(4, 4 + words), END], [*range(5, 5 + words), END])] * count


@pytest.mark.parametrize("sizes", [(7, 7), (7, 9)], ids=["alike", "different"])
def test_a_step_does_not_depend_on_the_shapes_of_those_before_it(sizes):
    """In float32, bit by bit: so that a training that begins in the middle is that which never stopped."""
    first_steps = [pairs(size, words=20) for size in sizes]
    unbroken = new_session()
    unbroken.expect(first_steps)
    for step, batch in enumerate([*first_steps, pairs(9, words=20), pairs(9, words=20)], start=1):
        unbroken.train_step(batch, 1e-3, step=step)
    weights = {name: parameter.clone() for name, parameter in unbroken.model.state_dict().items()}
    expected = [gradients(unbroken, pairs(size, words=20)) for size in (7, 9)]
    set_own_rows(())  # as in a new process
    resumed = new_session()
    resumed.expect(first_steps)
    resumed.model.load_state_dict(weights)
    for size, theirs in zip((7, 9), expected, strict=True):
        assert all(map(torch.equal, gradients(resumed, pairs(size, words=20)), theirs))


def gradients(session, batch):
    session.accumulate_gradients(batch, step=5)
    return [parameter.grad.clone() for parameter in session.model.parameters()]


def test_batches_of_one_shape_have_kernels_of_their_own():
    """Not if the first batches differ, or there is but one of them."""
    session = new_session()
    for sizes in ((7, 9), (7,), ()):
        session.expect([pairs(size, words=20) for size in sizes])
        assert not linear._own_rows
    session.expect([pairs(7, words=20), pairs(7, words=20)])
    assert linear._own_rows == {7 * 21}
    session.expect([pairs(7, words=20), pairs(7, words=20), [*pairs(6, words=20), *pairs(1, words=3)]])
    assert not linear._own_rows
