"""The bytes of a rank's tensors are those of the formulas; activations are as many as schedule and recompute leave."""

from itertools import product
from weakref import WeakSet, finalize

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from launcher.core.records import Layout
from launcher.mesh.coordinates import coordinate_of
from launcher.trainer.data.tokens import Example
from launcher.trainer.model.transformer import END
from launcher.trainer.optimizer.sharded import ShardedOptimizer
from launcher.trainer.parallel.collectives import ALONE, Group
from launcher.trainer.plan import apply_plan, copied
from launcher.trainer.session import meta_model, pipeline_stages, rule_of
from tests.programs.held_bytes import bytes_held
from tests.programs.rank_memory import rank_bytes

from .transformers import session_of, transformer_settings

SIZES = ["model.vocabulary_size=501", "model.d_model=64", "model.heads=4", "model.feed_forward_dim=128"]
SWITCHES = {
    "default": [],
    "tables": ["parallel.vocab_emb_dp=true"],
    "whole optimizer": ["parallel.optimizer_shard=false"],
    "gradient shards": ["parallel.gradient_accumulation_shard=true", "parallel.gradient_groups=3"],
    "bfloat16": ["train.precision=bfloat16"],
    "bfloat16, whole optimizer": ["train.precision=bfloat16", "parallel.optimizer_shard=false"],
    "a shared matrix": ["model.share=all", "model.norm=post", "model.positions=sinusoidal"],
    "a tied head": ["model.share=decoder"],
    "chunks": ["parallel.schedule=interleaved", "parallel.interleave=2"],
}


def optimizer_of(settings, layout, rank):
    """That of a rank which has never met the others."""
    place = coordinate_of(rank, layout)
    mp, dp, pp = (
        Group(tuple(range(getattr(layout, axis))), getattr(place, axis)) if getattr(layout, axis) > 1 else ALONE
        for axis in ("mp", "dp", "pp")
    )
    model, parallel = meta_model(settings), settings.parallel
    stages = pipeline_stages(settings, layout.pp)[place.pp :: layout.pp]
    dtype = getattr(torch, settings.train.precision)
    placed = apply_plan(model, stages, mp, seed=1, device=torch.device("cpu"), dtype=dtype, parallel=parallel)
    shards = {"shards_state": parallel.optimizer_shard, "shards_gradients": parallel.gradient_accumulation_shard}
    groups = parallel.gradient_groups
    named = {name: parameter for name, parameter in model.named_parameters() if name not in copied(stages)}
    return ShardedOptimizer(
        named, placed, rule_of(settings.train), gradient_groups=groups, **shards, dp=dp, mp=mp, pp=pp
    )


@pytest.mark.parametrize("layout", [Layout(*sizes) for sizes in product((1, 2), repeat=3)], ids=str)
@pytest.mark.parametrize("switches", SWITCHES.values(), ids=SWITCHES)
def test_weights_gradients_and_state_take_the_bytes_that_formulas_say(switches, layout):
    """Within 2 %, on every rank: what aligns parameters, and a row of the vocabulary, are not counted in them."""
    settings = transformer_settings(*SIZES, *switches)
    for rank in range(layout.world_size):
        held = bytes_held(optimizer_of(settings, layout, rank))
        expected = rank_bytes(settings, layout, coordinate_of(rank, layout).pp, "gloo")
        for kind in ("weights", "gradients", "state"):
            assert held[kind] == pytest.approx(getattr(expected, kind), rel=0.02), (rank, kind)


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all tensors that are made inside `with` and not freed yet; `most` is their largest number."""

    def __init__(self):
        super().__init__()
        self._known, self._live, self.most = WeakSet(), 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        output = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(output):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage not in self._known:
                    self._known.add(storage)
                    self._live += storage.nbytes()
                    finalize(storage, self._free, storage.nbytes())
        self.most = max(self.most, self._live)
        return output

    def _free(self, size):
        self._live -= size


def activations(*switches, micro_batches=1):
    """The most bytes that are made in a step of one process and alive at once: of activations, and of gradients."""
    session = session_of(
        *SIZES, "model.encoder_layers=4", "model.decoder_layers=4", *switches, micro_batches=micro_batches
    )
    examples = [Example([5] * 30 + [END], [6] * 30 + [END])] * 16 * micro_batches
    session.accumulate_gradients(examples, step=1)
    with LiveBytes() as live:
        session.accumulate_gradients(examples, step=1)
    return live.most


def test_recompute_keeps_fewer_activations_the_more_layers_it_is_for():
    """Of all layers their inputs and one layer's activations; of half of the layers about half of what that saves."""
    none = activations()
    some = activations("parallel.recompute_layers=[0, 2, 4, 6]")
    of_all = activations("parallel.recompute=true")
    print(f"activations: {none} bytes, {some / none:.2f} with half of the layers, {of_all / none:.2f} with all")
    assert of_all < 0.5 * none
    assert (none - some) / (none - of_all) == pytest.approx(0.5, abs=0.15)


def test_gpipe_keeps_the_activations_of_all_micro_batches():
    """They grow with the number of micro batches as the formula says; 1F1B has one at a time on a single stage."""
    counts = (2, 4, 8)  # gradients are made by the first backward pass, and are there in later forward passes
    one_by_one = [activations(micro_batches=count) for count in counts]
    all_of_them = [activations("parallel.schedule=gpipe", micro_batches=count) for count in counts]
    assert one_by_one == [pytest.approx(one_by_one[0], rel=0.02)] * 3
    first, second, last = all_of_them
    assert (last - second) / (second - first) == pytest.approx(2, rel=0.02)
    assert (second - first) / first > 0.6  # the rest is made for a time only
