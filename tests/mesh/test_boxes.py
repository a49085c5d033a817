"""Boxes of tensors, against numpy."""

import random
from math import prod

import numpy as np
import pytest

from launcher.mesh.boxes import Box, bounding, boxes_of_run, full_box


def some_shape(numbers):
    return tuple(numbers.randint(1, 5) for _ in range(numbers.randint(1, 4)))


@pytest.mark.parametrize("seed", range(20))
def test_a_run_is_made_of_few_boxes(seed):
    """Each element once, in order; 2n - 1 boxes at most of n dims."""
    numbers = random.Random(seed)
    for _ in range(100):
        shape = some_shape(numbers)
        start, stop = sorted(numbers.choices(range(prod(shape) + 1), k=2))
        elements = np.arange(prod(shape)).reshape(shape)
        made = boxes_of_run(start, stop, shape)
        found = [element for box in made for element in elements[box.within(full_box(shape))].ravel()]
        assert found == list(range(start, stop))
        assert len(made) <= 2 * len(shape) - 1


def test_one_element_of_no_dims():
    assert boxes_of_run(0, 1, ()) == [Box((), ())]
    assert boxes_of_run(0, 0, ()) == []


@pytest.mark.parametrize("seed", range(5))
def test_what_boxes_have_in_common(seed):
    numbers = random.Random(seed)
    for _ in range(200):
        shape = some_shape(numbers)
        elements = np.arange(prod(shape)).reshape(shape)
        one, other = (some_box(numbers, shape) for _ in range(2))
        first, second = elements[one.within(full_box(shape))], elements[other.within(full_box(shape))]
        both = set(first.ravel()) & set(second.ravel())
        common = one.common(other)
        assert (common is None) == (not both)
        if common is not None:
            assert set(elements[common.within(full_box(shape))].ravel()) == both
            assert (first[common.within(one)] == second[common.within(other)]).all()
            assert common.count == len(both)


def some_box(numbers, shape):
    starts = tuple(numbers.randrange(size) for size in shape)
    return Box(starts, tuple(numbers.randint(1, size - start) for size, start in zip(shape, starts, strict=True)))


def test_a_part_of_a_part():
    assert Box((0, 1), (2, 3)).moved((4, 0)) == Box((4, 1), (2, 3))


@pytest.mark.parametrize("seed", range(5))
def test_a_box_in_rows(seed):
    numbers = random.Random(seed)
    for _ in range(100):
        shape = some_shape(numbers)
        box, most = some_box(numbers, shape), numbers.randint(1, 30)
        elements = np.arange(prod(shape)).reshape(shape)
        rows = list(box.rows(most))
        found = [element for each in rows for element in elements[each.within(full_box(shape))].ravel()]
        assert found == elements[box.within(full_box(shape))].ravel().tolist()
        assert all(each.count <= most or each.size[0] == 1 for each in rows)
        assert bounding(rows) == box


def test_a_single_number_has_no_rows():
    assert list(Box((), ()).rows(7)) == [Box((), ())] == [bounding([Box((), ())])]
