"""Checkpoints made by hand, of any boxes: element by element, with nothing of what reads and writes them in blocks."""

import hashlib
import itertools
import json
from array import array
from math import prod

from launcher.checkpoint.copies import has_copies
from launcher.checkpoint.index import (
    INDEX,
    KINDS,
    SCHEMA,
    SCHEMA_OF_COPIES,
    TOKENIZER,
    Index,
    NamedBox,
    PartFile,
    index_text,
)
from launcher.core.records import Layout
from launcher.mesh.boxes import whole

ARRAYS = {"F32": "f", "F64": "d"}
TOKENS = b"a tokenizer"


def numbered(shapes, dtype="F32"):
    """Different values for every element of every kind, by the name of a parameter."""
    numbers = itertools.count(1)
    return {
        name: [array(ARRAYS[dtype], itertools.islice(numbers, prod(shape))) for _ in KINDS]
        for name, shape in shapes.items()
    }


def write(path, shapes, values, files=None, *, step=5, dtype="F32", layout=None, settings=None, **facts):
    """Write a checkpoint of the boxes of each file, without names: of all tensors whole in one file if none are given."""
    path.mkdir(parents=True)
    files = files or {"rank0.safetensors": [NamedBox(name, whole(shape)) for name, shape in shapes.items()]}
    parts = {TOKENIZER: PartFile(len(TOKENS), hashlib.sha256(TOKENS).hexdigest())}
    (path / TOKENIZER).write_bytes(TOKENS)
    for name, boxes in files.items():
        content = b"".join(
            elements(values[each.name][kind], shapes[each.name], each.box).tobytes()
            for kind in range(len(KINDS))
            for each in boxes
        )
        (path / name).write_bytes(content)
        parts[name] = PartFile(len(content), hashlib.sha256(content).hexdigest(), 0, tuple(boxes))
    schema = SCHEMA_OF_COPIES if has_copies(parts) else SCHEMA
    known = {
        "program": "transformer",
        "settings": settings or {},
        "layout": layout or Layout(),
        "text": "text",
        "data": "",
    }
    index = Index(step=step, dtype=dtype, shapes=shapes, files=parts, schema=schema, **{**known, **facts})
    (path / INDEX).write_text(index_text(index))
    return path


def elements(values, shape, box):
    """The elements of a box in row-major order."""
    found = array(values.typecode)
    for place in itertools.product(*(range(start, stop) for start, stop in zip(box.start, box.stop, strict=True))):
        number = 0
        for at, size in zip(place, shape, strict=True):
            number = number * size + at
        found.append(values[number])
    return found


def tensors_in(path):
    """Every tensor of a safetensors file: its shape and its values."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header.pop("__metadata__", None)
    found = {}
    for name, each in header.items():
        values = array(ARRAYS[each["dtype"]])
        values.frombytes(content[slice(*(start + offset for offset in each["data_offsets"]))])
        found[name] = tuple(each["shape"]), values
    return found


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
