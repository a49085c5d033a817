"""A checkpoint: the state of a training after a step, as a directory that holds for every layout of ranks.

    checkpoints/
        step-120/
            index.json           which training this is, and which box of which parameter stands where; digests of all files
            strategy.json        for people: how each parameter is cut, and which file holds which box
            tokenizer.model      of a program that has one
            rank0.safetensors    of each box that rank 0 wrote: its weights, then its first and its second moments (`Index.kinds`)
            rank1.safetensors    (which files there are: `ways.py`)
            buffers.safetensors  of a program whose model has buffers, such as the running means of norms
        .step-140.1f3a.partial/  is being written, or was when its run was killed: nobody reads it

A directory gets its name without a dot when all of it is on the disk, so it is whole or it is not there. What happens to its
files later is seen by their digests, which find accidents and no attacker. Every element of every parameter stands in one box,
of which several files may have copies.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import field
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

# An index in which no box has copies is of the first schema: whoever knows that one alone takes copies for damage. Of the third is
# one that has other kinds of values, buffers, or no tokenizer, which whoever knows the other two takes for damage.
# Of the fourth is one whose training counts validations.
SCHEMA, SCHEMA_OF_COPIES, SCHEMA_OF_KINDS, SCHEMA_OF_VALIDATIONS = SCHEMAS = 1, 2, 3, 4
INDEX, STRATEGY, TOKENIZER, BUFFERS = "index.json", "strategy.json", "tokenizer.model", "buffers.safetensors"
OWN_NETWORK = "network"  # the program of a training by `launcher.trainer.api`, in a person's own script
WEIGHT = "weight"
KINDS = (WEIGHT, "first_moment", "second_moment")  # of each box, in this order, where an index does not say it: AdamW's
KINDS_OF_BUFFERS = ("buffer",)
ITEM_BYTES = {"F32": 4, "F64": 8}  # by the name of a type in safetensors
MAX_INDEX_BYTES = 1 << 30
MAX_HEAD_BYTES = 200  # before the index itself: its digest
_LATER = ("kinds", "buffers", "validations")  # what an index lacks that has the default of it
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
    data_start: int = 0  # where the tensors begin
    boxes: tuple[NamedBox, ...] = ()

    @property
    def elements(self) -> int:
        """The number of elements of all boxes, of which each kind's stand together."""
        return sum(each.box.count for each in self.boxes)


@frozen
class Validations:
    """The count of validations that early stopping has kept up to a step."""

    lowest_loss: float | None = None  # None: there was no validation yet, or none with a finite loss
    since: int = 0  # validations after the one with that loss
    is_due: bool = False  # the state of this step is still to be validated


NOT_VALIDATED = Validations()


@frozen
class Index:
    step: int  # after which the state is
    program: str
    settings: Mapping[str, Mapping[str, Any]]  # sections of the recipe
    layout: Layout  # that wrote it
    text: str  # digest of what is trained on
    data: str  # where that was; "" for the program's own
    dtype: str  # of all tensors, as safetensors calls it
    shapes: Mapping[str, tuple[int, ...]]  # of each parameter
    files: Mapping[str, PartFile]
    schema: int = SCHEMA
    validation_loss: float | None = None  # after that step; None where it was not validated then, or is not finite
    kinds: tuple[str, ...] = KINDS  # of values that each box of a parameter has, in this order, weights first
    buffers: Mapping[str, tuple[int, ...]] = field(
        default_factory=dict
    )  # shape of each; they are in BUFFERS, each whole
    validations: Validations = NOT_VALIDATED

    @property
    def tensors(self) -> Mapping[str, tuple[int, ...]]:
        """The shapes of all that the model has, parameters and buffers."""
        return {**self.shapes, **self.buffers}

    def kinds_of(self, name: str) -> tuple[str, ...]:
        """Return the kinds of values that there are of a parameter or buffer."""
        return KINDS_OF_BUFFERS if name in self.buffers else self.kinds


class DamagedError(UnreadableError):
    """A checkpoint is not what was written."""


def name_of(step: int) -> str:
    return f"step-{step}"


def step_named(name: str) -> int | None:
    """Return the step whose checkpoint has this name; None where it is no checkpoint's."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def partial_name(step: int, token: str) -> str:
    """Return the name of the directory in which a checkpoint is written before it is whole, by the writer with that token."""
    return f".{name_of(step)}.{token}.partial"


def remove_partials(directory: Path) -> OSError | None:
    """Remove what a writer has left in a directory that was killed, as far as that goes; return why something stays.

    Raises:
        OSError: the directory cannot be read.
    """
    failures = [_remove(path) for path in list(directory.iterdir()) if _PARTIAL.fullmatch(path.name)]
    return next(filter(None, failures), None)


def _remove(path: Path) -> OSError | None:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except FileNotFoundError:  # another process removes it, too
        return None
    except OSError as error:
        shutil.rmtree(path, ignore_errors=True)  # what else is in it
        return error
    return None


def is_checkpoint(path: Path) -> bool:
    """Return whether a path is that of a checkpoint, also of one that has lost its index."""
    return os.path.exists(path / INDEX) or (  # noqa: PTH110 - Path.exists raises where a name is too long
        step_named(path.name) is not None and path.is_dir()
    )


def checkpoints_in(directory: Path) -> list[Path]:
    """Return the checkpoints in a directory, the newest first; none where there is no directory."""
    found: dict[int, Path] = {}
    if os.path.isdir(directory):  # noqa: PTH112 - Path.is_dir raises where a name is too long
        for path in directory.iterdir():
            if (step := step_named(path.name)) is not None and path.is_dir():
                found[step] = path
    return [found[step] for step in sorted(found, reverse=True)]


def readable(checkpoints: Iterable[Path]) -> Iterator[tuple[Path, Index]]:
    """Yield those whose index can be read, with it."""
    for path in checkpoints:
        with suppress(UnreadableError):
            yield path, read_index(path)


def best_of(indexed: Iterable[tuple[Path, Index]]) -> Path | None:
    """Return the checkpoint with the lowest validation loss, the first of equal ones; None where none was validated."""
    losses = {path: index.validation_loss for path, index in indexed if index.validation_loss is not None}
    return min(losses, key=lambda path: losses[path], default=None)


def index_text(index: Index) -> str:
    """Return the content of index.json: the index, and a digest of it."""
    content = encode(index)
    for name in _LATER:
        if content[name] == encode(getattr(Index, name, {})):
            del content[name]  # so that versions which do not know it read it as they would write it
    text = json.dumps(content)
    return json.dumps({"sha256": hashlib.sha256(text.encode()).hexdigest()})[:-1] + f', "index": {text}}}\n'


@contextmanager
def hinted(checkpoint: Path) -> Iterator[None]:
    """Give a DamagedError from within a hint at the command that tells all of it, and at the newest other checkpoint beside this one."""
    try:
        yield
    except DamagedError as error:
        error.hint = f"`tlaunch ckpt verify {shell_word(str(checkpoint))}` tells all of it"
        with suppress(OSError):  # the directory cannot be read
            others = [path for path in checkpoints_in(checkpoint.parent) if path.name != checkpoint.name]
            if others:
                error.hint = (
                    f"`tlaunch ckpt verify {shell_word(str(checkpoint.parent))}` tells which are whole; "
                    f"the newest other one is {others[0].name}"
                )
        raise


def read_index(checkpoint: Path) -> Index:
    """Return the index of a checkpoint, whose distinct boxes hold as many elements as its parameters have, each within them.

    Raises:
        DamagedError: it is missing, or not what was written.
        UnreadableError: it cannot be read, or another version has written it.
    """
    with hinted(checkpoint):
        return _read_index(checkpoint)


def _read_index(checkpoint: Path) -> Index:
    path = checkpoint / INDEX
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
    """Return the index that `index_text` has made the content of `path`; errors as `read_index` has them."""
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
        raise UnreadableError(f"{path}: schema {found.get('schema')} is of another version of tlaunch")
    try:
        index = decode(Index, found)
    except ValueError as error:
        raise DamagedError(f"{path}: {error}") from None
    if (fault := _fault_of(index)) is not None:
        raise DamagedError(f"{path}: {fault}")
    for problem in _problems_of(index):
        raise DamagedError(f"{path}: {problem}")
    return index


def _problems_of(index: Index) -> Iterator[str]:
    """Yield what of an index without a fault cannot be of any checkpoint: of files and boxes."""
    tensors = index.tensors
    boxes: dict[str, dict[tuple[int, ...], Box]] = {name: {} for name in tensors}  # by where they begin
    for name, file in index.files.items():
        if name != Path(name).name or name in {"", ".", ".."}:
            yield f"{name!r} is no file's name"
        data = len(kinds_in(name, index)) * file.elements * ITEM_BYTES[index.dtype]
        if file.data_start < 0 or (file.boxes and file.data_start + data != file.size):
            yield f"{name} has another size than its tensors"
        for each in file.boxes:
            is_there = each.name in boxes and (each.name in index.buffers) == (name == BUFFERS)
            if not is_there or not _is_within(each.box, tensors[each.name]):
                yield f"{name} has a box beyond {each.name}"
                continue
            if boxes[each.name].setdefault(each.box.start, each.box) != each.box:
                yield f"two boxes of {each.name} begin at one place"
    for name, shape in tensors.items():
        if sum(box.count for box in boxes[name].values()) != prod(shape):
            yield f"{name} is not whole"


def _fault_of(index: Index) -> str | None:
    """Return what is wrong with an index apart from its boxes; None if nothing is."""
    has_all = index.schema >= SCHEMA_OF_KINDS or TOKENIZER in index.files
    if index.step < 1 or index.dtype not in ITEM_BYTES or not has_all:
        return f"step {index.step} of type {index.dtype}"
    if index.kinds[:1] != (WEIGHT,) or len(set(index.kinds)) < len(index.kinds):
        return f"kinds of values {', '.join(index.kinds)}"
    return next((f"{name} is a parameter and a buffer" for name in index.buffers if name in index.shapes), None)


def kinds_in(file: str, index: Index) -> tuple[str, ...]:
    """Return the kinds of values that a file has of each of its boxes."""
    return KINDS_OF_BUFFERS if file == BUFFERS else index.kinds


def schema_of(index: Index, *, has_copies: bool) -> int:
    """Return the least schema that says what an index holds."""
    if index.validations != NOT_VALIDATED:
        return SCHEMA_OF_VALIDATIONS
    if index.kinds != KINDS or index.buffers or TOKENIZER not in index.files:
        return SCHEMA_OF_KINDS
    return SCHEMA_OF_COPIES if has_copies else SCHEMA


def _is_within(box: Box, shape: tuple[int, ...]) -> bool:
    return len(shape) == len(box.start) == len(box.size) and all(
        0 <= start < start + size <= full for start, size, full in zip(box.start, box.size, shape, strict=True)
    )


def damage_of(checkpoint: Path, name: str, expected: PartFile) -> str | None:
    """Return what is wrong with a file of a checkpoint; None if it is what was written."""
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
    return None if digest.hexdigest() == expected.sha256 else f"{path} is damaged: its digest is another one"
