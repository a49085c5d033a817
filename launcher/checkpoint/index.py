"""The format of a checkpoint: a directory with the training state after a step, which any layout of ranks can load.

    checkpoints/
        step-120/
            index.json           identity of the training, the location of each box, and digests of all files
            strategy.json        for people: the partition of each parameter, and the file of each box
            tokenizer.model      if the program has a tokenizer
            rank0.safetensors    boxes written by rank 0: weights, then first and second moments (`Index.kinds`)
            rank1.safetensors    (`file_layout.py` lists the files)
            buffers.safetensors  if the model has buffers, such as running means of norms
        .step-140.1f3a.partial/  being written, or left by a killed run; never read

A directory is renamed to its final name only after all its files are on disk, so a checkpoint is complete or absent.
Digests detect accidental changes later, but not attacks. Every element of every parameter is in exactly one box, and
several files may contain replicas of a box.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import field, replace
from math import prod
from pathlib import Path
from typing import Any

from launcher.core.codec import decode, encode
from launcher.core.errors import UnreadableError
from launcher.core.frozen import frozen
from launcher.core.records import Layout
from launcher.core.regular_files import open_regular, read_regular
from launcher.core.text import shell_word
from launcher.mesh.boxes import Box

# An index has the oldest schema that can express it, because older readers take new features for damage:
# 2 adds replicas; 3 adds other kinds of values, buffers, and models without a tokenizer; 4 adds validation counters.
SCHEMA, SCHEMA_OF_COPIES, SCHEMA_OF_KINDS, SCHEMA_OF_VALIDATIONS = SCHEMAS = 1, 2, 3, 4
INDEX, STRATEGY, TOKENIZER, BUFFERS = "index.json", "strategy.json", "tokenizer.model", "buffers.safetensors"
OWN_NETWORK = "network"  # the program name of a training that a user's script runs with `launcher.trainer.api`
LOSS, BLEU = "loss", "bleu"  # values of train.best_metric
WEIGHT = "weight"
KINDS = (WEIGHT, "first_moment", "second_moment")  # of each box, in order; the default is AdamW's
KINDS_OF_BUFFERS = ("buffer",)
ITEM_BYTES = {"F32": 4, "F64": 8}  # by safetensors dtype
MAX_INDEX_BYTES = 1 << 30
MAX_HEAD_BYTES = 200  # the digest before the index
_LATER = ("kinds", "buffers", "validations", "validation_bleu", "init_from")  # fields that are omitted at their default
_NAME = re.compile(r"step-(0|[1-9][0-9]*)")
_PARTIAL = re.compile(r"\.step-[0-9]+\..*partial")
_READ_BYTES = 1 << 20


@frozen
class NamedBox:
    name: str  # of a parameter of the single-device model
    box: Box


@frozen
class PartFile:
    size: int  # bytes
    sha256: str
    data_start: int = 0  # byte offset of the tensors
    boxes: tuple[NamedBox, ...] = ()

    @property
    def elements(self) -> int:
        """The number of elements that the file contains of each kind of values, such as weights."""
        return sum(each.box.count for each in self.boxes)


@frozen
class Validations:
    lowest_loss: float | None = None  # None: no validation yet with a finite loss
    since: int = 0  # number of validations since the best one
    is_due: bool = False  # this step's state has not been validated yet
    highest_bleu: float | None = None  # in place of `lowest_loss` if `train.best_metric` is BLEU


NOT_VALIDATED = Validations()


@frozen
class Index:
    step: int  # the state is that after this step
    program: str
    settings: Mapping[str, Mapping[str, Any]]  # sections of the recipe
    layout: Layout  # of the ranks that wrote it
    text: str  # digest of the training data
    data: str  # path of the training data; "" for the program's built-in data
    dtype: str  # safetensors dtype of all tensors
    shapes: Mapping[str, tuple[int, ...]]  # of each parameter
    files: Mapping[str, PartFile]
    schema: int = SCHEMA
    validation_loss: float | None = None  # after that step; None if not validated or not finite
    kinds: tuple[str, ...] = KINDS  # of values for each box of a parameter, in order, weights first
    buffers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # shapes; BUFFERS holds them unpartitioned
    validations: Validations = NOT_VALIDATED
    validation_bleu: float | None = None  # of translations after that step
    init_from: str = ""  # path of the model that the training started from, with its tokenizer; "": random weights

    @property
    def tensors(self) -> Mapping[str, tuple[int, ...]]:
        return {**self.shapes, **self.buffers}

    @property
    def tokenizer(self) -> str | None:
        """The digest of the tokenizer file, or None if the checkpoint has no tokenizer."""
        return self.files[TOKENIZER].sha256 if TOKENIZER in self.files else None

    def kinds_of(self, name: str) -> tuple[str, ...]:
        return KINDS_OF_BUFFERS if name in self.buffers else self.kinds


class DamagedError(UnreadableError):
    """A file of a checkpoint is missing, or its content has changed since it was written."""


def name_of(step: int) -> str:
    return f"step-{step}"


def step_named(name: str) -> int | None:
    """Return the step in a checkpoint name such as step-120, or None for other names."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def partial_name(step: int, token: str) -> str:
    """Return the directory name of an incomplete checkpoint. `token` identifies the process that writes it."""
    return f".{name_of(step)}.{token}.partial"


def remove_partials(directory: Path) -> OSError | None:
    """Remove incomplete checkpoints that killed processes have left behind. Return the first error, or None."""
    failures = [_remove(path) for path in list(directory.iterdir()) if _PARTIAL.fullmatch(path.name)]
    return next(filter(None, failures), None)


def _remove(path: Path) -> OSError | None:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except FileNotFoundError:  # removed by another process
        return None
    except OSError as error:
        shutil.rmtree(path, ignore_errors=True)  # the rest of its files
        return error
    return None


def is_checkpoint(path: Path) -> bool:
    """Return True if `path` contains an index.json, or is a directory with a checkpoint name such as step-120."""
    return os.path.exists(path / INDEX) or (  # noqa: PTH110 - Path.exists raises if a name is too long
        step_named(path.name) is not None and path.is_dir()
    )


def checkpoints_in(directory: Path) -> list[Path]:
    """Return the checkpoints in a directory, newest first. The list is empty if the directory does not exist."""
    found: dict[int, Path] = {}
    if os.path.isdir(directory):  # noqa: PTH112 - Path.is_dir raises if a name is too long
        for path in directory.iterdir():
            if (step := step_named(path.name)) is not None and path.is_dir():
                found[step] = path
    return [found[step] for step in sorted(found, reverse=True)]


def readable(checkpoints: Iterable[Path]) -> Iterator[tuple[Path, Index]]:
    """Yield the path and index of each checkpoint whose index is readable, and skip the others."""
    for path in checkpoints:
        with suppress(UnreadableError):
            yield path, read_index(path)


def written_ns(checkpoint: Path) -> int:
    """Return when the index of a checkpoint was written, in ns since 1970, or 0 if another process removed it."""
    with suppress(OSError):
        return (checkpoint / INDEX).stat().st_mtime_ns
    return 0


def best_of(indexed: Iterable[tuple[Path, Index]]) -> Path | None:
    """Return the checkpoint with the best validation, or None. `indexed` starts with the newest checkpoint.

    All are compared by the `train.best_metric` of the newest checkpoint: the lowest loss, or the highest BLEU.
    """
    found = list(indexed)
    by_bleu = any(index.settings.get("train", {}).get("best_metric") == BLEU for _, index in found[:1])
    values = {path: index.validation_bleu if by_bleu else index.validation_loss for path, index in found}
    known = {path: value for path, value in values.items() if value is not None}
    return (max if by_bleu else min)(known, key=lambda path: known[path], default=None)


def index_text(index: Index) -> str:
    """Return the content of index.json, which consists of the index and its digest."""
    content = encode(index)
    for name in _LATER:
        if content[name] == encode(getattr(Index, name, {})):
            del content[name]  # so that older versions read the index as their own
    text = json.dumps(content)
    return json.dumps({"sha256": hashlib.sha256(text.encode()).hexdigest()})[:-1] + f', "index": {text}}}\n'


@contextmanager
def hinted(checkpoint: Path) -> Iterator[None]:
    """Add a hint to a DamagedError raised in the `with` block: how to list the damage or find intact checkpoints."""
    try:
        yield
    except DamagedError as error:
        error.hint = f"list all damage with `tlaunch ckpt verify {shell_word(str(checkpoint))}`"
        with suppress(OSError):  # the directory cannot be read
            others = [path for path in checkpoints_in(checkpoint.parent) if path.name != checkpoint.name]
            if others:
                error.hint = (
                    f"find intact checkpoints with `tlaunch ckpt verify {shell_word(str(checkpoint.parent))}`; "
                    f"the newest other one is {others[0].name}"
                )
        raise


def read_index(checkpoint: Path) -> Index:
    """Read the index of a checkpoint, and check that its boxes cover every parameter exactly.

    Raises DamagedError if the index is missing or damaged, UnreadableError if it is unreadable or of another version.
    """
    path = checkpoint / INDEX
    with hinted(checkpoint):
        try:
            content = read_regular(path, MAX_INDEX_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            raise DamagedError(f"{path} is missing") from None
        except OSError as error:
            raise UnreadableError(f"{path}: {error.strerror}") from None
        index = index_of(content, path)
        if step_named(checkpoint.name) not in {None, index.step}:
            raise DamagedError(f"{path} is of step {index.step}")
        return index


def index_of(content: bytes, path: Path) -> Index:
    """Parse the content of an index.json. `path` is only used in error messages."""
    head, _, rest = content.partition(b', "index": ')
    try:
        digest = json.loads(head[:MAX_HEAD_BYTES] + b"}")["sha256"]
        is_whole = rest[-2:] == b"}\n" and hashlib.sha256(rest[:-2]).hexdigest() == digest
        found = json.loads(rest[:-2]) if is_whole else None
    except (ValueError, KeyError, TypeError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise DamagedError(f"{path} is damaged")
    if found.get("schema") not in SCHEMAS:
        raise UnreadableError(f"{path}: schema {found.get('schema')} belongs to another version of tlaunch")
    try:
        index = decode(Index, found)
    except ValueError as error:
        raise DamagedError(f"{path}: {error}") from None
    if (problem := _fault_of(index) or next(_problems_of(index), None)) is not None:
        raise DamagedError(f"{path}: {problem}")
    return index


def _problems_of(index: Index) -> Iterator[str]:
    tensors = index.tensors
    boxes: dict[str, dict[tuple[int, ...], Box]] = {name: {} for name in tensors}  # by start
    for name, file in index.files.items():
        if name != Path(name).name or name in {"", ".", ".."}:
            yield f"{name!r} is not a file name"
        data = len(kinds_in(name, index)) * file.elements * ITEM_BYTES[index.dtype]
        if file.data_start < 0 or (file.boxes and file.data_start + data != file.size):
            yield f"the size of {name} does not match its tensors"
        for each in file.boxes:
            is_there = each.name in boxes and (each.name in index.buffers) == (name == BUFFERS)
            if not is_there or not _is_within(each.box, tensors[each.name]):
                yield f"{name} has a box outside {each.name}"
                continue
            if boxes[each.name].setdefault(each.box.start, each.box) != each.box:
                yield f"two different boxes of {each.name} have the same start"
    for name, shape in tensors.items():
        if sum(box.count for box in boxes[name].values()) != prod(shape):
            yield f"{name} is incomplete"


def _fault_of(index: Index) -> str | None:
    """Return the first error in the fields of the index, or None. The boxes are not checked."""
    has_all = index.schema >= SCHEMA_OF_KINDS or TOKENIZER in index.files
    if index.step < 1 or index.dtype not in ITEM_BYTES or not has_all:
        return f"step {index.step} of type {index.dtype}"
    if index.kinds[:1] != (WEIGHT,) or len(set(index.kinds)) < len(index.kinds):
        return f"kinds of values {', '.join(index.kinds)}"
    return next((f"{name} is a parameter and a buffer" for name in index.buffers if name in index.shapes), None)


def kinds_in(file: str, index: Index) -> tuple[str, ...]:
    return KINDS_OF_BUFFERS if file == BUFFERS else index.kinds


def with_schema(index: Index) -> Index:
    """Return a copy of `index` with the oldest `schema` version that supports all of its content."""
    boxes = [box for file in index.files.values() for box in file.boxes]
    if index.validations != NOT_VALIDATED:
        schema = SCHEMA_OF_VALIDATIONS
    elif index.kinds != KINDS or index.buffers or TOKENIZER not in index.files:
        schema = SCHEMA_OF_KINDS
    else:
        schema = SCHEMA_OF_COPIES if len(boxes) > len(set(boxes)) else SCHEMA
    return replace(index, schema=schema)


def _is_within(box: Box, shape: tuple[int, ...]) -> bool:
    return len(shape) == len(box.start) == len(box.size) and all(
        0 <= start < start + size <= full for start, size, full in zip(box.start, box.size, shape, strict=True)
    )


def damage_of(checkpoint: Path, name: str, expected: PartFile) -> str | None:
    """Return a description of the damage of the file `name`, or None if its size and digest match `expected`."""
    path = checkpoint / name
    digest = hashlib.sha256()
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != expected.size:
                return f"{path} has {size} bytes of {expected.size}"
            while block := file.read(_READ_BYTES):
                digest.update(block)
    except FileNotFoundError:
        return f"{path} is missing"
    except OSError as error:
        return f"{path}: {error.strerror}"
    return None if digest.hexdigest() == expected.sha256 else f"{path} is damaged: its digest differs"
