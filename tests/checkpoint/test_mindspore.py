"""Write MindSpore's checkpoint files in pieces; read or reject them without reading tensor contents."""

import random
import zlib

import pytest

from launcher.checkpoint import mindspore
from launcher.checkpoint.mindspore import read_values, value_head
from launcher.core.errors import UnreadableError


def write(file, tag, kind, shape, content):
    file.write(value_head(tag, kind, shape, len(content)) + content)


@pytest.fixture(name="path")
def _path(tmp_path):
    path = tmp_path / "model.ckpt"
    with path.open("wb") as file:
        write(file, "encoder.0.weight", "Float32", (2, 3), bytes(range(24)))
        write(file, "scalar", "Int64", (), bytes(8))
        write(file, "n" * 300, "Float16", (150,), bytes(300))
    return path


def content_of(path, value):
    content = path.read_bytes()
    return b"".join(content[piece.start : piece.stop] for piece in value.pieces)


def test_what_is_written_is_read(path):
    found = read_values(path)
    assert [(name, value.type, value.shape) for name, value in found.items()] == [
        ("encoder.0.weight", "Float32", (2, 3)),
        ("scalar", "Int64", ()),
        ("n" * 300, "Float16", (150,)),
    ]
    assert content_of(path, found["encoder.0.weight"]) == bytes(range(24))


def test_pieces_of_one_tensor_are_joined(tmp_path):
    path = tmp_path / "model.ckpt"
    with path.open("wb") as file:
        for piece in (bytes(range(16)), bytes(range(16, 40))):
            write(file, "large", "Float32", (10,), piece)
    [value] = read_values(path).values()
    assert [len(piece) for piece in value.pieces] == [16, 24]
    assert (value.shape, content_of(path, value)) == ((10,), bytes(range(40)))


def test_the_crc_is_compared(path):
    content = path.read_bytes()
    path.write_bytes(content + b"crc_num" + zlib.crc32(content).to_bytes(10, "big"))
    assert len(read_values(path)) == 3
    path.write_bytes(content[:-1] + b"x" + b"crc_num" + zlib.crc32(content).to_bytes(10, "big"))
    with pytest.raises(UnreadableError, match="CRC"):
        read_values(path)


@pytest.mark.parametrize("content", [
    b"", b"PK\x03\x04",
    b"\x0a\xff\xff\xff\xff\x0f",  # a value of 4 GiB
    b"\x0a" + b"\xff" * 12,  # a number without an end
    b"\x0a\x02\x08\x01",  # a tag that is a number
    b"".join(b"\x0a\x0c\x0a\x01" + tag + b"\x12\x07\x12\x03str\x1a\x00" for tag in (b"a", b"b", b"a")),
    b"\x0a\x10\x0a\x01a\x12\x0b\x08\x05\x12\x03Int\x1a\x01x" + b"\x0b",
    b"\x08" + b"\xff" * 9 + b"\x01",
    b"\x0a\x1b\x0a\x01a\x12\x16\x08" + b"\xff" * 8 + b"\x7f\x12\x07Float32\x1a\x01x",
])  # fmt: skip
def test_what_is_no_such_file_is_refused(tmp_path, content):
    path = tmp_path / "model.ckpt"
    path.write_bytes(content)
    with pytest.raises(UnreadableError, match=r"model\.ckpt"):
        read_values(path)


def test_a_changed_file_is_read_or_refused(path):
    """Whatever bytes are changed or cut, it is no other error, and what is read lies within the file."""
    whole, numbers = path.read_bytes(), random.Random(1)
    refused = 0
    for _ in range(1000):
        content = bytearray(whole)
        for _ in range(numbers.randint(1, 3)):
            content[numbers.randrange(len(content))] = numbers.randrange(256)
        path.write_bytes(content[: numbers.choice([len(content), numbers.randrange(1, len(content))])])
        try:
            values = read_values(path)
        except UnreadableError:
            refused += 1
        else:
            assert all(piece.stop <= len(whole) for value in values.values() for piece in value.pieces)
    assert refused > 500


def test_more_fields_than_any_model_needs_are_refused(tmp_path, monkeypatch):
    """A file of many small ones would take long, and much memory."""
    monkeypatch.setattr(mindspore, "MAX_FIELDS", 20)
    path = tmp_path / "model.ckpt"
    with path.open("wb") as file:
        for number in range(6):
            write(file, str(number), "Int32", (), bytes(4))
    with pytest.raises(UnreadableError, match="more than 20"):
        read_values(path)
