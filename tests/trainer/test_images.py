"""The images of a training: which, in which order, how changed, on which rank."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from torch.nn import functional

from launcher.corpus.image_sample import write_image_sample
from launcher.corpus.images import find_images
from launcher.trainer.data.images import (
    DEVIATION_C,
    MEAN_C,
    NO_LABEL,
    ImageOrder,
    ImageSet,
    ImageShape,
    Shard,
    augmented,
    draws,
    resized,
    training_batches,
    validation_batches,
)
from tests.images import write_images

SHAPE = ImageShape(32, torch.float64)


@pytest.fixture(name="sets")
def _sets(tmp_path):
    """The records of 15 images for training and 7 for the test, and both sets."""
    records = np.array([list(record) for record in write_images(tmp_path)], np.uint8)
    files = find_images(tmp_path)
    return records, ImageSet(files.train), ImageSet((files.test,))


def pixels(count):
    return np.random.default_rng(1).integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)


def test_images_are_numbered_through_all_files(sets):
    records, train, test = sets
    number_B = np.array([14, 0, 3, 2, 3, 8])
    pixels_BCHW, label_B = train.take(number_B)
    assert (len(train), len(test)) == (15, 7)
    assert label_B.tolist() == records[number_B, 0].tolist()
    assert (pixels_BCHW == records[number_B, 1:].reshape(-1, 3, 32, 32)).all()
    assert test.take(np.array([6]))[1].tolist() == [records[-1, 0]]


def test_an_epoch_has_every_image_once_but_for_those_that_fill_no_batch():
    order = ImageOrder(103, 10, seed=1)
    epochs = [np.concatenate([order.batch(epoch, index) for index in range(10)]) for epoch in range(2)]
    assert order.steps_per_epoch == 10
    for epoch in epochs:
        assert len(set(epoch.tolist())) == 100
        assert epoch.min() >= 0
        assert epoch.max() < 103
    assert (epochs[0] != epochs[1]).any()
    assert (ImageOrder(103, 10, seed=2).batch(0, 0) != epochs[0][:10]).any()
    assert (ImageOrder(103, 10, seed=1).batch(1, 3) == epochs[1][30:40]).all()


def batches_of(images, *, dp=1, rank=0, first=1, last=6, batch_size=7):
    order = ImageOrder(len(images), batch_size, seed=1)
    shard = Shard(dp, rank)
    return list(training_batches(images, order, first_step=first, last_step=last, seed=1, shard=shard, shape=SHAPE))


@pytest.mark.parametrize("dp", [2, 3, 4, 8])
def test_ranks_share_each_global_batch(sets, dp):
    _, images, _ = sets
    for whole, *parts in zip(
        batches_of(images), *(batches_of(images, dp=dp, rank=rank) for rank in range(dp)), strict=True
    ):
        sizes = [len(part.label_B) for part in parts]
        assert sum(sizes) == whole.count == len(whole.label_B) == 7
        assert max(sizes) - min(sizes) <= 1
        for rank, part in enumerate(parts):
            assert part.count == 7
            assert torch.equal(part.label_B, whole.label_B[rank::dp])
            assert torch.equal(part.image_BCHW, whole.image_BCHW[rank::dp])


def test_a_training_that_begins_in_the_middle_goes_on_with_the_same_images(sets):
    _, images, _ = sets
    assert [(each.epoch, each.step_of_epoch, each.step, each.is_last) for each in batches_of(images, first=4)] == [
        (2, 2, 4, False), (3, 1, 5, False), (3, 2, 6, True)
    ]  # fmt: skip
    for before, after in zip(batches_of(images)[3:], batches_of(images, first=4), strict=True):
        assert torch.equal(before.image_BCHW, after.image_BCHW)
        assert torch.equal(before.label_B, after.label_B)


def test_an_image_is_changed_differently_in_each_epoch(sets):
    _, images, _ = sets
    pixels_BCHW, _ = images.take(np.arange(15))
    first, second, again = (augmented(pixels_BCHW, np.arange(15), seed=1, epoch=epoch) for epoch in (0, 1, 0))
    assert (first == again).all()
    assert (first != second).any(axis=(1, 2, 3)).sum() >= 10


def test_images_are_moved_and_mirrored_as_drawn():
    pixels_BCHW, number_B = pixels(40), np.arange(100, 140)
    before = pixels_BCHW.copy()
    changed_BCHW = augmented(pixels_BCHW, number_B, seed=3, epoch=2)
    assert (pixels_BCHW == before).all()
    for image, changed, top, left, flips in zip(
        pixels_BCHW, changed_BCHW, *draws(number_B, seed=3, epoch=2), strict=True
    ):
        expected = np.zeros((3, 32, 32), np.uint8)
        for row, column in itertools.product(range(32), range(32)):
            y, x = row + top - 4, column + left - 4
            if 0 <= y < 32 and 0 <= x < 32:
                expected[:, row, 31 - column if flips else column] = image[:, y, x]
        assert (changed == expected).all()


def test_draws_are_even_and_independent():
    """Of 50,000 images every one of 9 x 9 x 2 ways has its share to 5 standard deviations, in each epoch."""
    seen = [draws(np.arange(50_000), seed=1, epoch=epoch) for epoch in range(2)]
    for top_B, left_B, flips_B in seen:
        counts = Counter(zip(top_B.tolist(), left_B.tolist(), flips_B.tolist(), strict=True))
        assert set(counts) == set(itertools.product(range(9), range(9), (False, True)))
        assert max(abs(count - 50_000 / 162) for count in counts.values()) < 5 * (50_000 / 162) ** 0.5
    same = np.mean([first == second for first, second in zip(seen[0], seen[1], strict=True)], axis=1)
    assert np.allclose(same, [1 / 9, 1 / 9, 1 / 2], atol=0.012)


@pytest.mark.parametrize("size", [33, 64, 100, 224])
def test_resizing_is_bilinear_interpolation_as_torch_has_it(size):
    value_BCHW = np.random.default_rng(1).standard_normal((5, 3, 32, 32))
    expected = functional.interpolate(torch.from_numpy(value_BCHW), size=(size, size), mode="bilinear")
    assert np.allclose(resized(value_BCHW, size), expected.numpy(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("size", [32, 224])
def test_images_are_normalised_to_the_type_and_size_of_the_model(dtype, size):
    """(value / 255 - mean) / deviation for each channel, which commutes with interpolation."""
    pixels_BCHW = pixels(2)
    found = ImageShape(size, dtype).normalised(pixels_BCHW)
    mean_C, deviation_C = (
        torch.tensor(numbers, dtype=torch.float64)[:, None, None] for numbers in (MEAN_C, DEVIATION_C)
    )
    expected = (torch.from_numpy(pixels_BCHW).double() / 255 - mean_C) / deviation_C
    if size != 32:
        expected = functional.interpolate(expected, size=(size, size), mode="bilinear")
    assert found.dtype == dtype
    assert found.shape == (2, 3, size, size)
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dp", [1, 2, 3, 4, 5])
def test_validation_has_every_image_once_as_it_is(sets, dp):
    records, _, images = sets
    parts = [list(validation_batches(images, 4, shard=Shard(dp, rank), shape=SHAPE)) for rank in range(dp)]
    assert [batch.count for batch in parts[0]] == [4, 3]
    found = []
    for batches in zip(*parts, strict=True):
        assert len({len(batch.label_B) for batch in batches}) == 1
        pairs = [
            (image, label)
            for row in range(len(batches[0].label_B))
            for batch in batches
            for image, label in [(batch.image_BCHW[row], int(batch.label_B[row]))]
        ]
        found += [(image, label) for image, label in pairs if label != NO_LABEL]
    assert [label for _, label in found] == records[15:, 0].tolist()
    expected = SHAPE.normalised(records[15:, 1:].reshape(-1, 3, 32, 32))
    assert torch.equal(torch.stack([image for image, _ in found]), expected)


def test_a_linear_model_cannot_tell_the_classes_of_the_sample(tmp_path):
    write_image_sample(tmp_path)
    files = find_images(tmp_path)
    train, test, shape = ImageSet(files.train), ImageSet((files.test,)), ImageShape()
    torch.manual_seed(1)
    model = torch.nn.Linear(3072, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    order = ImageOrder(len(train), 32, seed=1)
    last_step = 10 * order.steps_per_epoch
    for batch in training_batches(train, order, last_step=last_step, seed=1, shard=Shard(), shape=shape):
        optimizer.zero_grad()
        functional.cross_entropy(model(batch.image_BCHW.flatten(1)), batch.label_B).backward()
        optimizer.step()
    [batch] = validation_batches(test, len(test), shard=Shard(), shape=shape)
    accuracy = float((model(batch.image_BCHW.flatten(1)).argmax(dim=1) == batch.label_B).double().mean())
    assert 0.35 < accuracy < 0.65
