"""Check files of CIFAR-10's binary format for damage."""

import pytest

from launcher.core.errors import UnreadableError
from launcher.corpus.images import RECORD_BYTES, find_images
from tests.images import COUNTS, write_images


@pytest.fixture(name="directory")
def _directory(tmp_path):
    write_images(tmp_path / "cifar-10-batches-bin")
    return tmp_path / "cifar-10-batches-bin"


def refusal(path):
    with pytest.raises(UnreadableError) as caught:
        find_images(path)
    assert caught.value.hint
    return caught.value


def test_files_may_have_any_number_of_records(directory):
    files = find_images(directory)
    assert (*(file.count for file in files.train), files.test.count) == COUNTS
    assert [path.name for path in files.paths] == [
        *(f"data_batch_{number}.bin" for number in range(1, 6)),
        "test_batch.bin",
    ]
    assert files.classes == tuple(f"class-{label}" for label in range(10))


def test_the_directory_that_the_archive_was_unpacked_in_is_enough(directory):
    assert find_images(directory.parent) == find_images(directory)


@pytest.mark.parametrize("name", ["data_batch_3.bin", "test_batch.bin", "batches.meta.txt"])
def test_a_missing_file_is_named(directory, name):
    (directory / name).unlink()
    error = refusal(directory)
    assert str(directory) in error.message
    assert name in error.message


def test_a_directory_of_something_else_is_refused(tmp_path):
    assert "data_batch_1.bin" in refusal(tmp_path).message
    assert str(tmp_path / "nowhere") in refusal(tmp_path / "nowhere").message
    (tmp_path / "file").touch()
    assert str(tmp_path / "file") in refusal(tmp_path / "file").message


@pytest.mark.parametrize(("name", "says"), [("data_batch_1", "Python"), ("train.bin", "CIFAR-100")])
def test_the_other_versions_of_the_set_are_recognised(tmp_path, name, says):
    (tmp_path / name).touch()
    assert says in refusal(tmp_path).hint


@pytest.mark.parametrize("size", [0, 1, RECORD_BYTES - 1, 2 * RECORD_BYTES + 7])
def test_a_file_that_ends_within_a_record_is_refused(directory, size):
    path = directory / "data_batch_2.bin"
    path.write_bytes(bytes(size))
    message = refusal(directory).message
    assert str(path) in message
    assert f"record {size // RECORD_BYTES + 1} begins at byte {size - size % RECORD_BYTES:,}" in message
    assert f"{size:,}" in message


def test_a_label_of_no_class_is_refused(directory):
    path = directory / "test_batch.bin"
    content = bytearray(path.read_bytes())
    content[4 * RECORD_BYTES] = 10
    content[5 * RECORD_BYTES] = 255
    path.write_bytes(content)
    message = refusal(directory).message
    assert str(path) in message
    assert f"record 5 has the label 10 at byte {4 * RECORD_BYTES:,}" in message


@pytest.mark.parametrize("content", [b"one two\n", b"\xff\n"])
def test_names_of_fewer_classes_are_refused(directory, content):
    (directory / "batches.meta.txt").write_bytes(content)
    assert str(directory / "batches.meta.txt") in refusal(directory).message
