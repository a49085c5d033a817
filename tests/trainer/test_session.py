"""What a rank's steps depend on."""

import pytest
import torch

from launcher.recipes.load import load_settings
from launcher.recipes.transformer.config import TransformerSettings
from launcher.trainer.data.tokens import Example
from launcher.trainer.model import linear
from launcher.trainer.model.transformer import END
from launcher.trainer.parallel.collectives import ALONE
from launcher.trainer.parallel.pipeline import Links
from launcher.trainer.parallel.world import World, place_from_environment
from launcher.trainer.session import Session

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def no_own_rows(monkeypatch):
    monkeypatch.setattr(linear, "_own_rows", frozenset())


def new_session():
    sizes = ["model.vocabulary_size=100", "model.d_model=128", "model.feed_forward_dim=128", "model.dropout=0.1"]
    place = place_from_environment({}, micro_batches=1)
    alone = World(place, torch.device("cpu"), dp=ALONE, mp=ALONE, pp=ALONE, links=Links())
    return Session(load_settings(TransformerSettings, None, sizes), alone)


def pairs(count, *, words):
    return [Example([*range(4, 4 + words), END], [*range(5, 5 + words), END])] * count


def test_a_step_does_not_depend_on_the_shapes_of_those_before_it():
    """In float32, bit by bit: so that a training that goes on from the middle is that which never stopped."""
    first_steps = [pairs(7, words=20), pairs(9, words=20)]
    unbroken, resumed = new_session(), new_session()
    unbroken.expect(first_steps)
    for step, batch in enumerate([*first_steps, pairs(9, words=20)], start=1):
        unbroken.train_step(batch, 1e-3, step=step)
    resumed.model.load_state_dict(unbroken.model.state_dict())
    gradients = []
    for session in (unbroken, resumed):
        session.expect(first_steps)
        session.accumulate_gradients(pairs(9, words=20), step=4)
        gradients.append([parameter.grad.clone() for parameter in session.model.parameters()])

    assert all(map(torch.equal, *gradients))


def test_batches_of_one_shape_have_kernels_of_their_own():
    """Those of rows that only some of the first batches have do not."""
    session = new_session()
    session.expect([pairs(7, words=20), pairs(9, words=20)])
    assert not linear._own_rows

    session.expect([pairs(7, words=20), pairs(7, words=20)])
    assert linear._own_rows == {7 * 21}
