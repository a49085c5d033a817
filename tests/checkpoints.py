"""Checkpoints made by hand, of any boxes: element by element, with nothing of what reads and writes them in blocks."""

import hashlib
import itertools
import json
from array import array
from math import prod

from launcher.checkpoint.index import (
    BUFFERS,
    INDEX,
    KINDS,
    TOKENIZER,
    Index,
    NamedBox,
    PartFile,
    index_text,
    with_schema,
)
from launcher.core.records import Layout
from launcher.mesh.boxes import full_box

ARRAYS = {"F32": "f", "F64": "d"}
TOKENS = b"a tokenizer"


def numbered(shapes, dtype="F32"):
    numbers = itertools.count(1)
    return {
        name: [array(ARRAYS[dtype], itertools.islice(numbers, prod(shape))) for _ in KINDS]
        for name, shape in shapes.items()
    }


def write(
    path, shapes, values, files=None, *,
    step=5, dtype="F32", layout=None, settings=None, kinds=KINDS, buffers=None, tokens=TOKENS, **facts,
):  # fmt: skip
    path.mkdir(parents=True)
    buffers = buffers or {}
    files = files or {"rank0.safetensors": [NamedBox(name, full_box(shape)) for name, shape in shapes.items()]}
    parts = {}
    if tokens is not None:
        parts[TOKENIZER] = PartFile(len(tokens), hashlib.sha256(tokens).hexdigest())
        (path / TOKENIZER).write_bytes(tokens)
    if buffers:
        files = {**files, BUFFERS: [NamedBox(name, full_box(shape)) for name, shape in buffers.items()]}
    for name, boxes in files.items():
        content = b"".join(
            elements(values[each.name][kind], {**shapes, **buffers}[each.name], each.box).tobytes()
            for kind in range(1 if name == BUFFERS else len(kinds))
            for each in boxes
        )
        (path / name).write_bytes(content)
        parts[name] = PartFile(len(content), hashlib.sha256(content).hexdigest(), 0, tuple(boxes))
    known = {
        "program": "transformer",
        "settings": settings or {},
        "layout": layout or Layout(),
        "text": "text",
        "data": "",
    }
    known |= {"step": step, "dtype": dtype, "shapes": shapes, "files": parts, "kinds": kinds, "buffers": buffers}
    index = with_schema(Index(**{**known, **facts}))
    (path / INDEX).write_text(index_text(index))
    return path


def elements(values, shape, box):
    found = array(values.typecode)
    for place in itertools.product(*(range(start, stop) for start, stop in zip(box.start, box.stop, strict=True))):
        number = 0
        for at, size in zip(place, shape, strict=True):
            number = number * size + at
        found.append(values[number])
    return found


def tensors_in(path):
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
