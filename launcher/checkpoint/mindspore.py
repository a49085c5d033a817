"""Read and write MindSpore's checkpoint files (.ckpt), which are protocol buffers, without MindSpore.

    message Checkpoint  { repeated Value value = 1; }
    message Value       { required string tag = 1; oneof value { TensorProto tensor = 2; MapTensorProto maptensor = 3; } }
    message TensorProto { repeated int64 dims = 1; required string tensor_type = 2; required bytes tensor_content = 3; }

MindSpore appends a Checkpoint for each value, and the concatenation parses as one Checkpoint. A large tensor is split
into consecutive values with the same tag, each with the dims of the full tensor. The file may end with the word crc_num
and a CRC-32 of all preceding bytes, in ten bytes.
"""

# The protobuf package would load the complete file into memory, and is installed only with tensorboard.

from __future__ import annotations

import mmap
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path

from launcher.core.errors import UnreadableError
from launcher.core.frozen import frozen
from launcher.core.regular_files import open_regular

# Bytes per element by MindSpore's type names. Strings are not included.
ITEM_BYTES: Mapping[str, int] = {
    "Bool": 1, "Int8": 1, "UInt8": 1, "Int16": 2, "UInt16": 2, "Int32": 4, "UInt32": 4, "Int64": 8, "UInt64": 8,
    "Float16": 2, "BFloat16": 2, "Float32": 4, "Float64": 8,
}  # fmt: skip
# Prefixes of parameter names, by train.optimizer: for weights, first moments and second moments, as in nn.Adam and
# nn.AdamWeightDecay.
PREFIXES = {"adamw": ("", "moment1.", "moment2."), "adam_weight_decay": ("", "adam_m.", "adam_v.")}
STEP = "global_step"
MINDSPORE_SUFFIX = ".ckpt"  # required for files that MindSpore reads
POWERS = ("beta1_power", "beta2_power")  # of nn.Adam: beta1 and beta2 to the power of the number of steps
MAX_FIELDS = 8 << 20  # in all messages; a value has about 8
MAX_TEXT_BYTES = 4096  # of a tag or a type
MAX_DIMS = 64
_CRC_WORD, _CRC_BYTES = b"crc_num", 10
_CRC_BLOCK_BYTES = 8 << 20
_VARINT, _FIXED_64, _LENGTH, _FIXED_32 = 0, 1, 2, 5  # wire types
_HINT = "give a complete, unencrypted file written by `mindspore.save_checkpoint`"


@frozen
class Value:
    """The type, shape and position of one value in a .ckpt file. Nearly all values are tensors."""

    type: str  # "str" for text; "" if not a tensor
    shape: tuple[int, ...]
    pieces: tuple[range, ...]  # byte ranges of its content in the file


class _MalformedError(Exception):
    def __init__(self, offset: int, problem: str) -> None:
        super().__init__(f"offset {offset}: {problem}")


def read_values(path: Path) -> dict[str, Value]:
    """Return the type, shape and position of each value in a .ckpt file, by tag (name)."""
    try:
        with (
            os.fdopen(open_regular(path), "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            return _Parser(content).values()
    except _MalformedError as error:
        raise UnreadableError(f"{path} is not a MindSpore checkpoint: {error}", hint=_HINT) from None
    except OSError as error:
        raise UnreadableError(f"{path}: {error.strerror}") from None
    except ValueError:  # from mmap
        raise UnreadableError(f"{path} is empty", hint=_HINT) from None


class _Parser:
    def __init__(self, content: mmap.mmap) -> None:
        self._content = content
        self._fields_left = MAX_FIELDS

    def values(self) -> dict[str, Value]:
        found: dict[str, tuple[str, tuple[int, ...], list[range]]] = {}
        last = None
        for field, offset, content in self._fields(range(self._checked_end())):
            if field != 1:
                raise _MalformedError(offset, f"field {field}, expected a value")
            tag, value = self._value(_message(content, offset))
            kind, shape, pieces = found.setdefault(tag, (value.type, value.shape, []))
            if (pieces and tag != last) or (value.type, value.shape) != (kind, shape):
                raise _MalformedError(offset, f"{tag!r} occurs twice")
            pieces += value.pieces
            last = tag
        return {tag: _checked(tag, Value(kind, shape, tuple(pieces))) for tag, (kind, shape, pieces) in found.items()}

    def _checked_end(self) -> int:
        """Return the offset at which the protobuf messages end. If a CRC follows them, check it."""
        end = len(self._content) - len(_CRC_WORD) - _CRC_BYTES
        if end < 0 or self._content[end : end + len(_CRC_WORD)] != _CRC_WORD:
            return len(self._content)
        found, crc = int.from_bytes(self._content[-_CRC_BYTES:], "big"), 0
        for start in range(0, end, _CRC_BLOCK_BYTES):
            crc = zlib.crc32(self._content[start : min(start + _CRC_BLOCK_BYTES, end)], crc)
        if found != crc:
            raise _MalformedError(end, f"CRC mismatch: the stored CRC is {found}, but the computed CRC is {crc}")
        return end

    def _value(self, where: range) -> tuple[str, Value]:
        tag, tensor = None, None
        for field, offset, content in self._fields(where):
            if field == 1:
                tag = self._text(_message(content, offset))
            elif field == 2:
                tensor = self._tensor(_message(content, offset))
        if tag is None:
            raise _MalformedError(where.start, "a value without a tag")
        return tag, tensor or Value("", (), ())

    def _tensor(self, where: range) -> Value:
        kind: str | None = None
        dims: list[int] = []
        piece: range | None = None
        for field, offset, content in self._fields(where):
            if field == 1:
                dims += [content] if isinstance(content, int) else self._packed(content)
            elif field == 2:
                kind = self._text(_message(content, offset))
            elif field == 3:
                piece = _message(content, offset)
            if len(dims) > MAX_DIMS:
                raise _MalformedError(offset, f"more than {MAX_DIMS} dims")
        if kind is None or piece is None:
            raise _MalformedError(where.start, "the type or content of a tensor is missing")
        return Value(kind, tuple(dims), (piece,))

    def _fields(self, where: range) -> Iterator[tuple[int, int, int | range]]:
        """Yield (number, offset, value) for each field of a message. The value is an integer or a byte range."""
        at = where.start
        while at < where.stop:
            self._fields_left -= 1
            if self._fields_left < 0:
                raise _MalformedError(at, f"more than {MAX_FIELDS} fields")
            start = at
            key, at = self._varint(at, where.stop)
            field, wire = key >> 3, key & 7
            if wire == _VARINT:
                number, at = self._varint(at, where.stop)
                yield field, start, number
                continue
            if wire == _LENGTH:
                size, at = self._varint(at, where.stop)
            elif wire in {_FIXED_32, _FIXED_64}:
                size = 4 if wire == _FIXED_32 else 8
            else:
                raise _MalformedError(start, f"unknown wire type {wire} of a field")
            if size > where.stop - at:
                raise _MalformedError(start, f"a field of {size} bytes, but only {where.stop - at} are left")
            if wire == _LENGTH:
                yield field, start, range(at, at + size)
            at += size

    def _varint(self, at: int, stop: int) -> tuple[int, int]:
        """Return the varint at the offset `at`, and the offset after it."""
        number = 0
        for place in range(10):
            if at + place >= stop:
                raise _MalformedError(at, "a truncated number")
            byte = self._content[at + place]
            number |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                return number, at + place + 1
        raise _MalformedError(at, "an encoded integer is longer than 10 bytes")

    def _packed(self, where: range) -> list[int]:
        if len(where) > 10 * MAX_DIMS:
            raise _MalformedError(where.start, f"more than {MAX_DIMS} dims")
        numbers, at = [], where.start
        while at < where.stop:
            number, at = self._varint(at, where.stop)
            numbers.append(number)
        return numbers

    def _text(self, where: range) -> str:
        if len(where) > MAX_TEXT_BYTES:
            raise _MalformedError(where.start, f"a name of {len(where)} bytes")
        try:
            return self._content[where.start : where.stop].decode()
        except UnicodeDecodeError:
            raise _MalformedError(where.start, "a name is not valid UTF-8") from None


def _message(content: int | range, offset: int) -> range:
    if isinstance(content, int):
        raise _MalformedError(offset, "expected a protobuf string or message, but found an integer")
    return content


def _checked(tag: str, value: Value) -> Value:
    if value.type not in ITEM_BYTES:
        return value
    size = sum(map(len, value.pieces))
    # Older versions write a scalar with shape (0,).
    shape = () if value.shape == (0,) and size else value.shape
    if prod(shape) * ITEM_BYTES[value.type] != size:
        start = value.pieces[0].start
        raise _MalformedError(start, f"{tag!r} has {size} bytes, which does not match {list(shape)} of {value.type}")
    return Value(value.type, shape, value.pieces)


def value_head(tag: str, kind: str, shape: Sequence[int], size_bytes: int) -> bytes:
    """Encode the header of a value in a .ckpt file. The tensor's bytes must follow, little-endian and row-major."""
    dims = b"".join(_encoded(1 << 3 | _VARINT) + _encoded(dim) for dim in shape)
    type_bytes, tag_bytes = kind.encode(), tag.encode()
    before = dims + _head(2, len(type_bytes)) + type_bytes + _head(3, size_bytes)
    value = _head(1, len(tag_bytes)) + tag_bytes + _head(2, len(before) + size_bytes) + before
    return _head(1, len(value) + size_bytes) + value


def _head(number: int, size_bytes: int) -> bytes:
    """Encode the key and the length that precede the content of the protobuf field `number`."""
    return _encoded(number << 3 | _LENGTH) + _encoded(size_bytes)


def _encoded(number: int) -> bytes:
    """Encode a number as a varint: 7 bits per byte, least significant bits first.

    >>> _encoded(300).hex()
    'ac02'
    """
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
