"""What the optimizer promises of several ranks. Exit 0 when it holds.

The ranks are forked from this process. Everything in float64 but what is about bfloat16.
"""

import math
import random
import sys
from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.distributed.tensor  # else each rank imports it in its first assert_close
from held_bytes import bytes_held
from rank_memory import rank_bytes
from ranks import fork_ranks, own_world
from torch import nn

from launcher.recipes.load import load_settings
from launcher.recipes.transformer.transformer_settings import TransformerSettings
from launcher.trainer.data.tokens import Example
from launcher.trainer.model.transformer import END
from launcher.trainer.optimizer.sharded import ShardedOptimizer
from launcher.trainer.parallel.collectives import ALONE, Group
from launcher.trainer.parallel.placement import Placement
from launcher.trainer.session import NonFiniteReport, Session, rule_of

CPU = torch.device("cpu")
SIZES = [
    "model.vocabulary_size=40", "model.d_model=16", "model.heads=4", "model.feed_forward_dim=32",
    "model.encoder_layers=1", "model.decoder_layers=1", "model.dropout=0", "data.source_length=8", "data.target_length=8",
    "train.batch_size=16", "train.clip_norm=0", "train.weight_decay=0.1", "train.device=cpu",
]  # fmt: skip
PAIRS = 16
STEPS = 3
POISONED = 5  # the number of a pair in the global batch


class Scattering(Group):
    """A group whose backend is said to have a cheap reduce_scatter."""

    scatters = True


def settings_of(*settings):
    return load_settings(TransformerSettings, None, [*SIZES, "train.precision=float64", *settings])


def examples(step=0):
    numbers = random.Random(step)
    return [
        Example(
            [*numbers.choices(range(4, 40), k=numbers.randrange(1, 8)), END],
            [*numbers.choices(range(4, 40), k=numbers.randrange(1, 8)), END],
        )
        for _ in range(PAIRS)
    ]


def weights_of(session):
    return {name: parameter.detach().clone() for name, parameter in session.model.named_parameters()}


def assert_equal(ours, theirs):
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


def assert_same_everywhere(value):
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    assert values == [value] * len(values), values


def ways_to_reduce():
    """In any number of groups, by an exchange, reduce_scatter or shared memory, weights are the same bit for bit."""
    with own_world("shared_memory") as world:
        found = []
        backend = world.dp.ranks, world.dp.index, world.dp.handle
        for groups in (1, 2, 5, 100):
            for dp in (Group(*backend), Scattering(*backend), world.dp):
                recipe = settings_of(f"parallel.gradient_groups={groups}")
                session = Session(recipe, type(world)(world.place, CPU, dp, world.mp, world.pp, world.links))
                layout = session.optimizer.layout
                assert (1 < len(layout.groups) < 50) if groups > 1 else len(layout.groups) == 1
                results = [session.train_step(examples(step), 1e-2, step=step + 1) for step in range(STEPS)]
                found.append((weights_of(session), results))
        for weights, results in found[1:]:
            assert_equal(weights, found[0][0])
            for ours, theirs in zip(results, found[0][1], strict=True):
                assert ours.loss == theirs.loss
                # Of squares that are added in another order.
                assert math.isclose(ours.gradient_norm, theirs.gradient_norm, rel_tol=1e-14)
        assert "torch._dynamo" not in sys.modules  # which takes each rank a second to import


def a_rank_without_some_gradients():
    """Where backward does not reach a parameter on one rank, its group and all later ones wait for the step."""
    with own_world() as world:
        found = []
        for groups, *more in ((1,), (4,), (4, "parallel.gradient_accumulation_shard=true")):
            session = Session(settings_of(f"parallel.gradient_groups={groups}", *more), world)
            for step, missing in enumerate(("head.weight", "encoder.0.attention.query.weight", "decoder_norm.bias")):
                parameter = session.model.get_parameter(missing)
                parameter.requires_grad_(world.dp.index != step % 2)
                session.train_step(examples(step), 1e-2, step=step + 1)
                parameter.requires_grad_(True)
            found.append(weights_of(session))
        assert_equal(*found[:2])
        for name, weight in found[
            2
        ].items():  # of gradients that are added in another order; that of a key's bias is zero but for that
            if not name.endswith("key.bias"):
                torch.testing.assert_close(weight, found[0][name], rtol=1e-12, atol=1e-12)


def one_more_backward_pass():
    """A gradient that changes while it is summed is an error, not a wrong number."""
    with own_world() as world:
        model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
        parameters = dict(model.named_parameters())
        placed = {name: Placement.uncut(parameter.shape) for name, parameter in parameters.items()}
        optimizer = ShardedOptimizer(
            parameters, placed, rule_of(settings_of().train), gradient_groups=2, dp=world.dp, mp=ALONE, pp=ALONE
        )
        optimizer.zero_gradients(backward_passes=1)
        model(torch.ones(1, 16)).sum().backward()
        with pytest.raises(RuntimeError, match="more backward passes"):
            model(torch.ones(1, 16)).sum().backward()
        optimizer.step(1e-2)


def poison_loss(module, arguments, output):
    """Make the loss of the micro batch with the poisoned pair not a number."""
    encoded, decoded = output
    return (encoded, decoded * math.nan) if POISONED in arguments[0].row_B.tolist() else output


def poisoned_steps(*switches):
    """A loss or a gradient that is not finite on one rank stops all alike, and leaves the model of the step before."""
    with own_world() as world:
        recipe = settings_of(*switches)
        untouched, session = Session(recipe, world), Session(recipe, world)
        for one in (untouched, session):
            one.train_step(examples(0), 1e-2, step=1)
        before = weights_of(session)

        hook = session.model.register_forward_hook(poison_loss) if session.own_stages[-1].is_last else None
        result = session.train_step(examples(1), 1e-2, step=2)
        if hook is not None:
            hook.remove()
        assert math.isnan(result.loss)
        assert math.isnan(result.gradient_norm)
        assert result.suspects.parameter == "source_embedding.word.weight"  # backward has carried it to the first
        assert POISONED in result.suspects.pairs
        assert len(result.suspects.pairs) < PAIRS / world.dp.size  # those of one micro batch
        assert_same_everywhere(result.suspects.pairs)
        assert_equal(weights_of(session), before)

        name = "decoder.0.feed_forward.expand.weight"
        if name in before and world.dp.index == 1 and world.mp.index == world.mp.size - 1:
            hook = session.model.get_parameter(name).register_hook(lambda gradient: gradient * math.inf)
        result = session.train_step(examples(1), 1e-2, step=2)
        if name in before and hook is not None:
            hook.remove()
        assert math.isfinite(result.loss)
        assert not math.isfinite(result.gradient_norm)
        assert result.suspects == NonFiniteReport(name, tuple(range(PAIRS)))
        assert_equal(weights_of(session), before)

        for one in (untouched, session):
            assert one.train_step(examples(1), 1e-2, step=2).suspects is None
        assert_equal(weights_of(session), weights_of(untouched))


def low_precision(switch):
    """In bfloat16 both ranks hold the same weights, and the loss falls as in float32."""
    with own_world() as world:
        losses = {}
        for precision in ("float32", "bfloat16"):
            recipe = settings_of(
                f"train.precision={precision}", switch, "parallel.gradient_groups=3", "train.clip_norm=1"
            )
            session = Session(recipe, world)
            losses[precision] = [session.train_step(examples(0), 1e-3, step=1).loss for _ in range(20)]
            validation = session.validate(examples(0))
            assert abs(validation - losses[precision][-1]) < 1
            digest = {name: tensor.double().sum().item() for name, tensor in weights_of(session).items()}
            assert_same_everywhere(digest)
        for ours, theirs in zip(losses["bfloat16"], losses["float32"], strict=True):
            assert abs(ours - theirs) < 0.01 * theirs
        assert losses["bfloat16"][-1] < losses["bfloat16"][0] - 0.1


def memory():
    """In shared memory, too, ranks hold as many bytes as the formulas say."""
    with own_world("shared_memory") as world:
        for switch in ("optimizer_shard=true", "optimizer_shard=false", "gradient_accumulation_shard=true"):
            recipe = settings_of(f"parallel.{switch}")
            held = bytes_held(Session(recipe, world).optimizer)
            expected = vars(rank_bytes(recipe, world.place.layout, 0, "shared_memory"))
            assert held == pytest.approx(expected, rel=0.02), (switch, held, expected)


if __name__ == "__main__":
    fork_ranks("memory", memory, dp=2)
    fork_ranks("ways to reduce", ways_to_reduce, dp=2, micro_batches=2)
    fork_ranks("a rank without some gradients", a_rank_without_some_gradients, dp=2, micro_batches=2)
    fork_ranks("one more backward pass", one_more_backward_pass, dp=2)
    fork_ranks("poisoned steps", poisoned_steps, dp=2, pp=2, micro_batches=2)
    for switch in ("optimizer_shard=true", "optimizer_shard=false", "gradient_accumulation_shard=true"):
        work = partial(poisoned_steps, "parallel.gradient_groups=3", f"parallel.{switch}")
        fork_ranks(f"poisoned steps in groups, {switch}", work, dp=2, mp=2, micro_batches=2)
    for switch in ("optimizer_shard=true", "optimizer_shard=false", "gradient_accumulation_shard=true"):
        work = partial(low_precision, f"parallel.{switch}")
        fork_ranks(f"low precision, {switch}", work, dp=2, micro_batches=2)
