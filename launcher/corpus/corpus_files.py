"""Name the files of sentence pairs (one "source<TAB>target" per line) by language, and write files atomically."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal, TextIO

from launcher.core.atomic import replacing
from launcher.core.errors import UnreadableError, UsageError

Split = Literal["train", "valid", "test"]
Languages = tuple[str, str]  # codes of source and target, such as "de" and "zh-TW"; "" is unknown
SPLITS: tuple[Split, ...] = ("train", "valid", "test")
TUTORIAL_PREFIX = "wmt14."  # of the files of the MindSpore tutorial
_CODE = "[A-Za-z]{2,3}(?:-[A-Za-z0-9]+)*"
_PAIR_FILE = re.compile(
    rf"(?:{re.escape(TUTORIAL_PREFIX)})?({_CODE})_({_CODE})(?:\.valid|\.test)?\.(?:txt|tsv)(?:\.gz)?"
)
_TEXT_SUFFIXES = re.compile(r"(?:\.(?:gz|txt|sgml?))*$", re.IGNORECASE)


def pair_file_name(languages: Languages, split: Split) -> str:
    """Return the name of the file that contains the sentence pairs of a split.

    >>> pair_file_name(("fr", "en"), "train"), pair_file_name(("de", "zh-TW"), "valid")
    ('fr_en.txt', 'de_zh-TW.valid.txt')
    """
    return "_".join(languages) + (".txt" if split == "train" else f".{split}.txt")


def languages_of_pairs(name: str) -> Languages | None:
    """Return the languages that the name of a file of sentence pairs states, or None if it states none.

    >>> languages_of_pairs("de_fi.tsv.gz"), languages_of_pairs("wmt14.en_fr.valid.txt"), languages_of_pairs("pairs.tsv")
    (('de', 'fi'), ('en', 'fr'), None)
    """
    found = _PAIR_FILE.fullmatch(name)
    return None if found is None else (found[1], found[2])


def language_of_text(path: Path) -> str:
    """Return the language code at the end of the name of a text file, or "" if there is none.

    >>> [language_of_text(Path(name)) for name in ("train.de.gz", "news.zh_CN.sgm", "fi.txt", "train.txt")]
    ['de', 'zh-CN', 'fi', '']
    """
    found = re.search(r"(?:^|\.)([a-z]{2}(?:[-_][A-Z]\w{1,3})?)$", _TEXT_SUFFIXES.sub("", path.name))
    return "" if found is None else found[1].replace("_", "-")


def direction_of(languages: Languages) -> str:
    """Return the languages as text, such as "de to fi"."""
    return " to ".join(code or "unknown" for code in languages) if any(languages) else "unknown languages"


def check_language(name: str, code: str) -> None:
    """Raise UsageError if the value `code` of the option or setting `name` is not a language code."""
    if re.fullmatch(_CODE, code) is None:
        raise UsageError(f"{name} is {code}, which is not a language code", hint="use a code such as de, fil or zh-TW")


def write_pairs(pairs: Iterable[tuple[str, str]], file: TextIO) -> None:
    """Write pairs to a file, with one "source<TAB>target" per line."""
    file.writelines(f"{source}\t{target}\n" for source, target in pairs)


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
