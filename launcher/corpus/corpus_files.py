"""Name the files of sentence pairs (one "source<TAB>target" per line), and write several files atomically."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal, TextIO

from launcher.core.atomic import replacing
from launcher.core.errors import UnreadableError, UsageError

Direction = Literal["fr_en", "en_fr"]
Split = Literal["train", "valid", "test"]
DIRECTIONS: tuple[Direction, ...] = ("fr_en", "en_fr")
SPLITS: tuple[Split, ...] = ("train", "valid", "test")


def pair_file_name(direction: Direction, split: Split) -> str:
    """Return the name of the file that contains the sentence pairs of a split.

    >>> pair_file_name("fr_en", "train"), pair_file_name("en_fr", "valid")
    ('wmt14.fr_en.txt', 'wmt14.en_fr.valid.txt')
    """
    return f"wmt14.{direction}.txt" if split == "train" else f"wmt14.{direction}.{split}.txt"


def pair_files(directory: Path, split: Split) -> tuple[Path, Path]:
    """Return the pair files of a split in both directions, first French-English, then English-French."""
    return (directory / pair_file_name("fr_en", split), directory / pair_file_name("en_fr", split))


def write_pairs(pairs: Iterable[tuple[str, str]], french_english: TextIO, english_french: TextIO) -> None:
    """Write (French, English) pairs to both files, with one "source<TAB>target" per line."""
    for french, english in pairs:
        french_english.write(f"{french}\t{english}\n")
        english_french.write(f"{english}\t{french}\n")


def refuse_overwriting(paths: Iterable[Path]) -> None:
    """Raise UsageError if any of the files already exists."""
    if existing := [path for path in paths if path.exists()]:
        others = f", and {len(existing) - 1} more" if len(existing) > 1 else ""
        raise UsageError(
            f"{existing[0]} already exists{others}", hint="add --force to replace files, or choose another --output"
        )


@contextmanager
def replacing_together(paths: Sequence[Path]) -> Iterator[Sequence[TextIO]]:
    """Yield a text file to write for each of `paths`. On exit, rename all files into place, or none after an error.

    Raises:
        UnreadableError: the directory or a file cannot be written.
    """
    with asides_together(paths) as asides, ExitStack() as closing:
        files = [closing.enter_context(aside.open("w", encoding="utf-8", newline="\n")) for aside in asides]
        yield files
        for file in files:
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def asides_together(paths: Sequence[Path]) -> Iterator[Sequence[Path]]:
    """Yield a temporary path for each of `paths`. On exit, rename all of them into place, or none after an error.

    All common failures (writing, a full disk, a directory with that name) happen before the first rename. Only a power
    cut or SIGKILL between two renames can leave some files new and others old. Missing directories are created and
    kept.

    Raises:
        UnreadableError: the directory or a file cannot be written.
    """
    try:
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                raise UnreadableError(f"{path}: cannot be written, because the path is a directory")
        with ExitStack() as renames:
            yield [renames.enter_context(replacing(path)) for path in paths]
    except OSError as error:
        directory = paths[0].parent
        raise UnreadableError(
            f"{directory}: cannot be written: {error.strerror}",
            hint="choose a writable directory on a disk with free space",
        ) from error
