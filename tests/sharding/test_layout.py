"""Layouts on a device matrix: which rank holds what."""

from collections import Counter
from itertools import product
from math import prod

from hypothesis import given
from hypothesis import strategies as st

from launcher.sharding.layout import TensorLayout, common_refinement, groups_along, refined, simplified

MATRICES = st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4).map(tuple)


@st.composite
def layouts(draw, devices=None, dims=2):
    """A layout on a matrix, in which every axis cuts one dim or none."""
    devices = draw(MATRICES) if devices is None else devices
    homes = [draw(st.integers(0, dims)) for _ in devices]
    axes = draw(st.permutations([axis for axis, size in enumerate(devices) if size > 1]))
    return TensorLayout(devices, tuple(tuple(axis for axis in axes if homes[axis] == dim) for dim in range(dims)))


@given(layouts())
def test_boxes_cover_the_tensor_once_for_each_copy(found):
    shape = (found.cuts[0] * 2, found.cuts[1] * 3)
    held = Counter()
    for rank in range(prod(found.devices)):
        box = found.box_of(rank, shape)
        assert box.size == found.local_shape(shape)
        held.update(elements(box))
    copies = prod(found.devices) // prod(found.cuts)
    assert held == dict.fromkeys(product(*map(range, shape)), copies)


@given(layouts(), st.data())
def test_ranks_along_free_axes_hold_the_same(found, data):
    shape = (found.cuts[0], found.cuts[1])
    group = data.draw(st.sampled_from(groups_along(found.devices, found.free_axes)))
    assert len({(box.start, box.size) for box in (found.box_of(rank, shape) for rank in group)}) == 1


@given(layouts())
def test_one_rank_of_those_that_hold_the_same_is_the_first(found):
    shape = (found.cuts[0], found.cuts[1])
    holders = {}
    for rank in range(prod(found.devices)):
        holders.setdefault(found.box_of(rank, shape), []).append(rank)
    assert {len(ranks) for ranks in holders.values()} == {found.copies}
    for ranks in holders.values():
        assert [rank for rank in ranks if found.is_first(rank)] == ranks[:1]


@given(MATRICES, MATRICES, st.data())
def test_a_refined_layout_gives_every_rank_the_same_box(one, other, data):
    found = data.draw(layouts(devices=one))
    devices = common_refinement(one, other) if prod(one) == prod(other) else common_refinement(one, one)
    if devices is None:
        return
    finer = refined(found, devices)
    shape = (found.cuts[0] * 5, found.cuts[1])
    assert [finer.box_of(rank, shape) for rank in range(prod(one))] == [
        found.box_of(rank, shape) for rank in range(prod(one))
    ]


@given(layouts(), layouts())
def test_layouts_are_the_same_once_simplified_if_ranks_hold_the_same(one, other):
    shape = (one.cuts[0] * other.cuts[0], one.cuts[1] * other.cuts[1])
    ranks = prod(one.devices)
    boxes = [one.box_of(rank, shape) for rank in range(ranks)]
    simple = simplified(one)
    assert [simple.box_of(rank, shape) for rank in range(ranks)] == boxes
    assert simplified(simple) == simple
    if prod(other.devices) == ranks:
        same = [other.box_of(rank, shape) for rank in range(ranks)] == boxes
        assert (simplified(other) == simple) == same


def elements(box):
    return set(product(*map(range, box.start, box.stop)))
