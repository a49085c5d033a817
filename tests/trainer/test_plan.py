"""What each rank holds of the model."""

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from launcher.core.records import Layout
from launcher.mesh.coordinates import Coordinate
from launcher.recipes.transformer.cost import pipeline_stages
from launcher.trainer.data.batches import collate
from launcher.trainer.data.tokens import Example
from launcher.trainer.model.initial import initial_weight
from launcher.trainer.model.transformer import END
from launcher.trainer.parallel.collectives import Group
from launcher.trainer.parallel.styles import part_bounds
from launcher.trainer.plan import apply_plan, placements
from launcher.trainer.session import meta_model, placements_at

from .transformers import transformer_settings

SETTINGS = transformer_settings("model.vocabulary_size=67")


@given(st.integers(1, 300), st.integers(1, 16))
def test_parts_cover_all_rows_once(size, ranks):
    bounds = [part_bounds(size, Group(ranks=tuple(range(ranks)), index=index)) for index in range(ranks)]
    assert [row for start, stop in bounds for row in range(start, stop)] == list(range(size))
    assert max(stop - start for start, stop in bounds) - min(stop - start for start, stop in bounds) <= 1


@pytest.mark.parametrize("share", ["none", "decoder", "all"])
@pytest.mark.parametrize("mp", [2, 4, 8])
@pytest.mark.parametrize("pp", [1, 2, 4])
def test_the_parts_of_all_ranks_are_the_whole_model(mp, pp, share):
    settings = transformer_settings("model.vocabulary_size=67", f"model.share={share}")
    counted = {name: torch.zeros(parameter.shape) for name, parameter in meta_model(settings).named_parameters()}
    for stage in range(pp):
        for index in range(mp):
            at = Coordinate(pp=stage, dp=0, mp=index)
            for name, placement in placements_at(settings, Layout(mp=mp, pp=pp), at).items():
                placement.part_of(counted[name]).add_(1)
                assert placement.part_of(counted[name]).shape == placement.shape
    for name, count in counted.items():
        assert set(count.unique().tolist()) <= {1.0, float(mp)}, name
        assert len(count.unique()) == 1, name


def test_most_of_the_model_is_sharded():
    placed = placements(meta_model(SETTINGS), Group(ranks=(0, 1), index=0))
    whole = {name for name, placement in placed.items() if placement.copies == 2}
    held_whole = ("norm.weight", "norm.bias", "position.weight", "output.bias", "contract.bias")
    assert whole == {name for name in placed if name.endswith(held_whole)}


@pytest.mark.parametrize("decoder_layers", [1, 3])
def test_what_decoder_layers_attend_to_is_summed_once_for_all(decoder_layers, monkeypatch):
    """Sums over mp: two embeddings; per encoder layer 2 forward, 2 backward, per decoder layer 3 and 3; and one for memory."""
    settings = transformer_settings(f"model.decoder_layers={decoder_layers}")
    model = meta_model(settings)
    [whole] = pipeline_stages(settings, 1)
    two = Group(ranks=(0, 1), index=0)
    apply_plan(model, [whole], two, seed=1, device=torch.device("cpu"), dtype=torch.float32)
    summed = []
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, **_: summed.append(tensor.shape))
    encoded, decoded = model(collate([Example([5, 6, END], [7, END])]))
    forward = len(summed)
    (encoded.sum() + decoded.sum()).backward()
    assert forward == 2 + 2 * 2 + 3 * decoder_layers
    assert len(summed) - forward == 2 * 2 + 3 * decoder_layers + 1


def test_initial_weights_depend_on_name_and_seed_alone():
    shape = torch.Size((4, 6))
    first = initial_weight("encoder.0.feed_forward.expand.weight", shape, 1)
    assert torch.equal(first, initial_weight("encoder.0.feed_forward.expand.weight", shape, 1))
    assert not torch.equal(first, initial_weight("encoder.1.feed_forward.expand.weight", shape, 1))
    assert not torch.equal(first, initial_weight("encoder.0.feed_forward.expand.weight", shape, 2))
