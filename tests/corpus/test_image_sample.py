"""Check the images that `tlaunch data sample --recipe resnet50` writes."""

from collections import Counter

import pytest

from launcher.core.errors import UnreadableError
from launcher.corpus.image_sample import FIGURES, HUES, TEXTURES, image_sample_files, write_image_sample
from launcher.corpus.images import find_images
from tests.images import digest_of

DIGEST = "caeca0435c3dde53d3bbf73a1ad80eb7db11059db8a85f7699ab8b3dba088a05"


@pytest.fixture(name="sample", scope="module")
def _sample(tmp_path_factory):
    directory = tmp_path_factory.mktemp("images")
    assert write_image_sample(directory) == image_sample_files(directory)
    return directory


def test_it_is_in_the_format_that_it_stands_for(sample):
    files = find_images(sample)
    assert [file.count for file in files.train] == [400] * 5
    assert files.test.count == 500
    assert sorted(sample.iterdir()) == sorted(image_sample_files(sample))


def test_names_say_what_the_classes_differ_in(sample):
    """Each hue, figure and texture belongs to two classes, and no two classes are the same in all."""
    names = [name.split("-") for name in find_images(sample).classes]
    assert Counter(part for name in names for part in name) == dict.fromkeys((*HUES, *FIGURES, *TEXTURES), 2)
    assert len(set(map(tuple, names))) == 10


def test_every_file_is_the_same_to_the_byte(sample):
    """Whoever trains on the sample gets the losses that the documentation shows."""
    assert digest_of(image_sample_files(sample)) == DIGEST


def test_a_directory_that_cannot_be_written_is_refused_with_nothing_written(tmp_path):
    blocked = tmp_path / "test_batch.bin"
    blocked.mkdir()
    with pytest.raises(UnreadableError):
        write_image_sample(tmp_path)
    assert list(tmp_path.iterdir()) == [blocked]
