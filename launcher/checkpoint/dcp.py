"""Read a checkpoint of torch.distributed.checkpoint (DCP) from its .metadata, a pickle, without unpickling it.

A pickle is a program for a stack machine, and some opcodes import and call any name. This module uses pickletools to
list the opcodes. It interprets only opcodes that build plain values and records of torch's metadata. A record is kept
as its class name and arguments. Nothing named in the pickle is imported or called, and unexpected names are rejected.
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

from launcher.core.errors import UnreadableError
from launcher.core.frozen import frozen
from launcher.core.regular_files import read_regular
from launcher.mesh.boxes import Box

DCP_METADATA = ".metadata"
# Enough for about 480,000 chunks. An opcode's result takes at most 72 bytes plus its argument.
MAX_METADATA_BYTES, MAX_INSTRUCTIONS = 64 << 20, 32 << 20
MAX_DIMS = 64
MAX_NAME_CHARS = 4096

_RECORDS, _STORAGE = "torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem"
_DTYPES = (
    *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128"),
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
)
# Names that a .metadata may contain. None of them is called or instantiated.
ALLOWED = frozenset(
    {
        *(f"{_RECORDS}.{name}" for name in ("Metadata", "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING")),
        *(f"{_RECORDS}.{name}" for name in ("TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata")),
        *(f"{_RECORDS}.TensorProperties", f"{_STORAGE}._StorageInfo"),
        *(f"torch.{name}" for name in ("Size", *_DTYPES)),
        "torch.serialization._get_layout",
        # An enum member as pickled by Python 3.11, and the path that the checkpoint was written to.
        *("builtins.getattr", "pathlib.PosixPath", "pathlib._local.PosixPath"),
    }
)
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_LITERALS = frozenset(
    {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
)
_EMPTY = {"EMPTY_TUPLE": tuple, "EMPTY_LIST": list, "EMPTY_DICT": dict}
# Opcodes that take items from the stack, and how many; None: all since the last mark.
_ITEMS = {
    "TUPLE1": 1,
    "TUPLE2": 2,
    "TUPLE3": 3,
    "TUPLE": None,
    "APPEND": 1,
    "APPENDS": None,
    "SETITEM": 2,
    "SETITEMS": None,
    "STACK_GLOBAL": 2,
    "REDUCE": 2,
    "NEWOBJ": 2,
    "BUILD": 1,
}


@frozen
class Chunk:
    """A part of a tensor that torch.save has stored in a byte range of a file."""

    box: Box
    file: str  # its name, without a directory
    bytes: range


@frozen
class StoredTensor:
    dtype: str  # torch's name without "torch."
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]  # without empty chunks


@frozen
class Stored:
    tensors: Mapping[str, StoredTensor]
    others: tuple[str, ...]  # pickled Python objects, which are never read


class _Named:
    """A class, function or dtype that a pickle refers to by name. It is never imported."""

    def __init__(self, name: str) -> None:
        self.name = name


class _Record:
    """A call in a pickle. It is recorded and never executed."""

    def __init__(self, name: str, arguments: Any) -> None:
        self.name, self.arguments = name, arguments
        self.state: Any = None


class _MalformedError(Exception):
    pass


def read_metadata(directory: Path) -> Stored:
    """Read the shapes, dtypes and chunks of all tensors in a DCP checkpoint."""
    path = directory / DCP_METADATA
    try:
        content = read_regular(path, MAX_METADATA_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        raise UnreadableError(
            f"{directory} has no {DCP_METADATA}: expected a directory that torch.distributed.checkpoint wrote"
        ) from None
    except OSError as error:
        raise UnreadableError(f"{path}: {error.strerror}") from None
    try:
        return _stored(_Machine().run(content))
    except (_MalformedError, ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        problem = str(error) if isinstance(error, _MalformedError) else "it is not metadata written by torch"
        raise UnreadableError(f"{path}: {problem}", hint="check where the file is from; no code was executed") from None


class _Machine:
    """Interprets a pickle without executing code. It builds only plain values and `_Record` objects."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def run(self, content: bytes) -> Any:
        """Interpret the pickle and return its value.

        Raises _MalformedError if it contains an unexpected name or opcode, and ValueError, IndexError, KeyError,
        TypeError, AttributeError if it is not a pickle, or is truncated or modified.
        """
        for number, (operation, argument, offset) in enumerate(pickletools.genops(content)):
            name = operation.name
            if number == MAX_INSTRUCTIONS:
                raise _MalformedError(f"offset {offset}: more than {MAX_INSTRUCTIONS} opcodes")
            if name in {"PROTO", "FRAME"}:
                continue
            if name == "STOP":
                return self._stack[-1]
            try:
                self._do(name, argument)
            except _MalformedError as error:
                raise _MalformedError(f"offset {offset}: {error}") from None
        raise _MalformedError("it is truncated")

    def _do(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _LITERALS:
            stack.append(argument)
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in {"MEMOIZE", "BINPUT", "LONG_BINPUT"}:
            self._memo[len(self._memo) if name == "MEMOIZE" else argument] = stack[-1]
        elif name in {"BINGET", "LONG_BINGET"}:
            stack.append(self._memo[argument])
        elif name == "MARK":
            self._marks.append(len(stack))
        elif name in _ITEMS:
            count = _ITEMS[name]
            start = self._marks.pop() if count is None else len(stack) - count
            if not 0 <= start <= len(stack):
                raise IndexError(start)
            items = stack[start:]
            del stack[start:]
            self._collect(name, items)
        elif name == "GLOBAL":
            self._collect(name, argument.split(" "))
        else:
            raise _MalformedError(f"unexpected pickle opcode {name} in PyTorch checkpoint metadata")

    def _collect(self, name: str, items: list[Any]) -> None:
        """Interpret an opcode that combines `items`, or adds them to the object at the top of the stack."""
        stack = self._stack
        match name:
            case "APPEND" | "APPENDS":
                _of(stack[-1], list).extend(items)
            case "SETITEM" | "SETITEMS":
                for key, value in zip(items[::2], items[1::2], strict=True):
                    # Records are hashed by identity. Tuples are rejected: hashing deeply nested ones crashes the process.
                    _of(stack[-1], dict)[_of(key, str, _Record)] = value
            case "GLOBAL" | "STACK_GLOBAL":
                called = ".".join(_of(word, str) for word in items)
                if called not in ALLOWED:
                    named = called[:MAX_NAME_CHARS]
                    raise _MalformedError(f"unexpected pickle global {named} in PyTorch checkpoint metadata")
                stack.append(_Named(called))
            case "REDUCE" | "NEWOBJ":
                named, arguments = items
                stack.append(_Record(_of(named, _Named).name, _of(arguments, tuple)))
            case "BUILD":
                _of(stack[-1], _Record).state = items[0]
            case _:
                stack.append(tuple(items))


def _of(value: Any, *kinds: type) -> Any:
    if type(value) not in kinds:
        raise TypeError(type(value))
    return value


def _state(value: Any, *names: str) -> tuple[str, dict[str, Any]]:
    """Return the class name and the attributes of a record. Raise TypeError if the class is not one of `names`."""
    name = _of(value, _Record).name.rpartition(".")[2]
    if name not in names:
        raise TypeError(name)
    return name, {} if value.state is None else _of(value.state, dict)


def _size(value: Any) -> tuple[int, ...]:
    if _of(value, _Record).name != "torch.Size":
        raise TypeError(value.name)
    [numbers] = value.arguments
    if len(_of(numbers, tuple)) > MAX_DIMS or any(_of(number, int) < 0 for number in numbers):
        raise ValueError(len(numbers))
    return tuple(numbers)


def _name(value: Any) -> str:
    if len(_of(value, str)) > MAX_NAME_CHARS:
        raise ValueError(len(value))
    return str(value)


def _stored(metadata: Any) -> Stored:
    _, content = _state(metadata, "Metadata")
    places = {
        (_name(index["fqn"]), _size(index["offset"]) if index.get("offset") is not None else ()): info
        for key, info in _of(content["storage_data"], dict).items()
        for _, index in [_state(key, "MetadataIndex")]
    }
    tensors, others = {}, []
    for key, found in _of(content["state_dict_metadata"], dict).items():
        name = _name(key)
        kind, facts = _state(found, "TensorStorageMetadata", "BytesStorageMetadata")
        if kind == "BytesStorageMetadata":
            others.append(name)
            continue
        shape = _size(facts["size"])
        dtype = _of(_of(facts["properties"], _Record).state[0], _Named).name.removeprefix("torch.")
        if dtype not in _DTYPES:
            raise _MalformedError(f"{name} has dtype {dtype}, which is not numeric")
        chunks = tuple(_chunks(name, shape, facts["chunks"], places))
        tensors[name] = StoredTensor(dtype, shape, chunks)
    return Stored(tensors, tuple(others))


def _chunks(
    name: str, shape: tuple[int, ...], found: list[Any], places: Mapping[tuple[str, tuple[int, ...]], Any]
) -> Iterator[Chunk]:
    for each in found:
        _, facts = _state(each, "ChunkStorageMetadata")
        start, size = _size(facts["offsets"]), _size(facts["sizes"])
        within = all(0 <= first <= first + count <= full for first, count, full in zip(start, size, shape, strict=True))
        if not within:
            raise _MalformedError(f"{name} with shape {list(shape)} has a chunk of {list(size)} at {list(start)}")
        if not prod(size):
            continue
        if (name, start) not in places:
            raise _MalformedError(f"the chunk of {name} at {list(start)} has no location")
        _, place = _state(places[name, start], "_StorageInfo")
        file, offset, length = _name(place["relative_path"]), _of(place["offset"], int), _of(place["length"], int)
        if Path(file).name != file or file in {"", ".", ".."}:
            raise _MalformedError(f"expected a file name without a directory, but found {file!r}")
        if place.get("transform_descriptors"):
            raise _MalformedError(f"{name} is compressed or transformed, but only plain tensors can be read")
        if offset < 0 or not 0 <= length < 1 << 62:
            raise _MalformedError(f"{name} has offset {offset} and {length} bytes")
        yield Chunk(Box(start, size), file, range(offset, offset + length))
