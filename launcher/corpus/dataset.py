"""Find, read and hash the files of sentence pairs that a trainer reads."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

from launcher.core.errors import UnreadableError, UsageError
from launcher.core.frozen import frozen
from launcher.core.text import some_of
from launcher.corpus.corpus_files import DIRECTIONS, SPLITS, Direction, pair_file_name
from launcher.corpus.text_files import normalised, read_lines

MAKE_ONE = "make one with `tlaunch data preprocess --fr FILE --en FILE --output DIR`"
BLOCK_BYTES = 1 << 20


@frozen
class Splits:
    """The files of sentence pairs for one translation direction. A split without a file is None."""

    train: Path
    valid: Path | None
    test: Path | None


def find_splits(path: Path, direction: str) -> Splits:
    """Return the pair files of `direction` in the directory `path`. If `path` is a file, it is the training split.

    Raises:
        UsageError: the direction is unknown, or the file's name contains the other direction.
        UnreadableError: the path does not exist, or the directory has no training split.
    """
    if direction not in DIRECTIONS:
        raise UsageError(f"unknown direction {direction}", hint=f"use one of {', '.join(DIRECTIONS)}")
    chosen: Direction = direction
    if path.is_file():
        # Swapped columns would train a model on the wrong task.
        other = next(candidate for candidate in DIRECTIONS if candidate != chosen)
        if path.name.startswith(f"wmt14.{other}."):
            raise UsageError(
                f"{path}: its name says {other}, but the direction is {chosen}",
                hint=f"use {path.with_name(path.name.replace(other, chosen))}, or the direction {other}",
            )
        return Splits(path, None, None)
    if not path.is_dir():
        raise UnreadableError(f"{path}: file or directory of sentence pairs not found", hint=MAKE_ONE)
    files = (path / pair_file_name(chosen, split) for split in SPLITS)
    train, valid, test = (file if file.is_file() else None for file in files)
    if train is None:
        try:
            names = sorted(entry.name for entry in path.iterdir())
        except OSError as error:
            held = f"nothing that can be listed ({error.strerror})"
        else:
            held = some_of(names, 5) or "nothing"
        missing = pair_file_name(chosen, "train")
        raise UnreadableError(f"{path}: this directory has no {missing}; it contains {held}", hint=MAKE_ONE)
    return Splits(train, valid, test)


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """Return the (source, target) pairs of a text or gzip file that has one "source<TAB>target" per line.

    Raises:
        UnreadableError: the file is missing, unreadable, not UTF-8 or without pairs, or a line is not two non-empty
            texts with one tab between them.
    """
    pairs = []
    with closing(read_lines(path)) as lines:  # a malformed line stops the reading
        for number, pair in enumerate(split_pairs(lines, path), start=1):
            if is_empty(pair):
                side = "target" if pair[0].strip() else "source"
                raise UnreadableError(f"{path}:{number}: the {side} is empty", hint=MAKE_ONE)
            pairs.append(pair)
    if not pairs:
        raise UnreadableError(f"{path}: the file is empty, but must contain sentence pairs", hint=MAKE_ONE)
    return pairs


def count_first_pairs(path: Path, limit: int) -> int:
    """Count the pairs with text on both sides, up to `limit`. Read at least `BLOCK_BYTES` characters or the whole file.

    Raises:
        UnreadableError: one of the lines read is not a pair, or no pair has text on both sides.
    """
    count = size = 0
    with closing(read_lines(path)) as lines:
        for pair in split_pairs(lines, path):
            count += not is_empty(pair)
            size += len(pair[0]) + len(pair[1])
            if count >= limit and size >= BLOCK_BYTES:
                break
    if not count:
        raise no_filled_pairs(path)
    return min(count, limit)


def split_pairs(lines: Iterable[str], path: Path, *, normalise: bool = False) -> Iterator[tuple[str, str]]:
    """Yield the (source, target) of each line. Either side may be empty. With `normalise`, normalise the text.

    Raises:
        UnreadableError: a line is not two texts with one tab between them.
    """
    for number, line in enumerate(lines, start=1):
        source, *targets = line.split("\t")
        if len(targets) != 1:
            raise UnreadableError(
                f"{path}:{number}: found {len(targets)} tabs, expected one tab between source and target", hint=MAKE_ONE
            )
        yield (normalised(source), normalised(targets[0])) if normalise else (source, targets[0])


def no_filled_pairs(path: Path | str) -> UnreadableError:
    return UnreadableError(
        f"{path}: no sentence pairs: the file is empty, or each pair has an empty side", hint=MAKE_ONE
    )


def is_empty(pair: tuple[str, str]) -> bool:
    """Return True if a side of `pair` is empty or contains only spaces."""
    return not (pair[0].strip() and pair[1].strip())


def content_digest(path: Path) -> str:
    """Return the hexadecimal double SHA-256 of a file: the SHA-256 of its SHA-256 digest."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(BLOCK_BYTES):
                digest.update(block)
    except OSError as error:
        raise UnreadableError(f"{path}: cannot be read: {error.strerror}") from error
    return hashlib.sha256(digest.digest()).hexdigest()
