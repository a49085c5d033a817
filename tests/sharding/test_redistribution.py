"""Redistribution: after its steps every rank holds what the wanted layout says, and no step needs what nobody has sent."""

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.sharding.layout import TensorLayout
from launcher.sharding.redistribution import steps_between

from .test_layout import elements, layouts

PAIRS = [
    ((2, 2, 2), (2, 2, 2)), ((2, 4), (4, 2)), ((8,), (2, 4)), ((4, 2, 1), (2, 1, 4)), ((2, 3), (3, 2)), ((6,), (2, 3)),
]  # fmt: skip


@pytest.mark.parametrize("pair", PAIRS)
@given(st.data())
def test_every_rank_gets_what_it_needs(pair, data):
    source, target = (data.draw(layouts(devices=devices, dims=3)) for devices in pair)
    ranks = prod(source.devices)
    shape = tuple(ours * theirs for ours, theirs in zip(source.cuts, target.cuts, strict=True))
    current = [source.box_of(rank, shape) for rank in range(ranks)]
    for step in steps_between(source, target):
        after = [step.after.box_of(rank, shape) for rank in range(ranks)]
        for rank in range(ranks):
            group = step.group_of(rank)
            assert (rank in group, len(group)) == (True, step.parts)
            senders = [rank] if step.kind == "slice" else group
            assert elements(after[rank]) <= set().union(*(elements(current[sender]) for sender in senders))
        current = after
    assert current == [target.box_of(rank, shape) for rank in range(ranks)]


@given(layouts(devices=(2, 2, 2), dims=3))
def test_nothing_is_done_for_the_same_layout(found):
    assert steps_between(found, found) == ()


@pytest.mark.parametrize(("source", "target", "kinds"), [
    (((), ()), ((0,), (1, 2)), ["slice", "slice"]),
    (((0,), ()), ((), (0,)), ["all_to_all"]),
    (((0, 1, 2), ()), ((), (0, 1, 2)), ["all_to_all"]),
    (((0,), ()), ((), ()), ["all_gather"]),
    (((0, 1), (2,)), ((), (2,)), ["all_gather"]),
    (((0,), ()), ((), (0, 1)), ["all_to_all", "slice"]),
])  # fmt: skip
def test_the_cheapest_steps_are_taken(source, target, kinds):
    devices = (2, 2, 2)
    found = steps_between(TensorLayout(devices, source), TensorLayout(devices, target))
    assert [step.kind for step in found] == kinds
