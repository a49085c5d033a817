"""Find, read and hash the files of sentence pairs that a trainer reads."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from io import BufferedReader
from itertools import zip_longest
from pathlib import Path

from launcher.core.errors import UnreadableError, UsageError
from launcher.core.frozen import frozen
from launcher.core.text import counted, some_of
from launcher.corpus.corpus_files import (
    SPLITS,
    TUTORIAL_PREFIX,
    Languages,
    Split,
    check_language,
    direction_of,
    language_of_text,
    languages_of_pairs,
    pair_file_name,
)
from launcher.corpus.text_files import count_lines, lines_of, normalised, read_lines

MAKE_ONE = "make one with `tlaunch data preprocess --source FILE --target FILE --output DIR`"
UNKNOWN: Languages = ("", "")
LANGUAGE_SETTINGS = ("data.source_language", "data.target_language")
BLOCK_BYTES = 1 << 20


@frozen
class PairText:
    """Sentence pairs on disk: a file with one "source<TAB>target" per line, or two files that are aligned by line."""

    path: Path
    target: Path | None = None  # the file of the targets; `path` then contains only the sources
    is_reversed: bool = False  # each line is "target<TAB>source"

    def __str__(self) -> str:
        return " and ".join(map(str, self.files))

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.path,) if self.target is None else (self.path, self.target)

    def read(
        self, raw: BufferedReader | None = None, *, normalise: bool = False
    ) -> Generator[tuple[str, str], None, None]:
        """Yield the (source, target) of each pair. Either side may be empty. With `normalise`, normalise the text.

        `raw` is the open file `path`, if the caller needs its position.

        Raises:
            UnreadableError: a line is not two texts with one tab between them.
            UsageError: two files have different numbers of lines.
        """
        with closing(read_lines(self.path) if raw is None else lines_of(raw, self.path)) as lines:
            target = self.target
            found = _columns(lines, self.path) if target is None else aligned_pairs(lines, self.path, target)
            for first, second in found:
                pair = (second, first) if self.is_reversed else (first, second)
                yield (normalised(pair[0]), normalised(pair[1])) if normalise else pair


@frozen
class Splits:
    """The sentence pairs of one translation direction. A split without a file is None."""

    train: PairText
    valid: PairText | None = None
    test: PairText | None = None
    languages: Languages = UNKNOWN


def find_splits(data: Sequence[Path], languages: Languages = UNKNOWN) -> Splits:
    """Return the sentence pairs in `data`: a directory, a file of pairs, or a source and a target file.

    Only a directory has validation and test splits. `languages` are those that the user chose. Unknown ones are taken
    from the names of the files. A file whose name states the opposite direction is read in reverse.

    Raises:
        UsageError: a language is not a code, the files have other languages, or a directory has several directions.
        UnreadableError: a path does not exist, or the directory has no training split.
    """
    for name, code in zip(LANGUAGE_SETTINGS, languages, strict=True):
        if code:
            check_language(name, code)
    path = data[0]
    if len(data) > 1:
        return _two_files(data, languages)
    if path.is_file():
        if (stated := languages_of_pairs(path.name)) is None:
            return Splits(PairText(path), languages=languages)
        chosen = choose_languages([stated], languages, f"{path}")
        return Splits(PairText(path, is_reversed=chosen != stated), languages=chosen)
    if not path.is_dir():
        raise UnreadableError(f"{path}: file or directory of sentence pairs not found", hint=MAKE_ONE)
    chosen = choose_languages(_languages_in(path), languages, f"{path}")
    train, valid, test = (_split_in(path, chosen, split) for split in SPLITS)
    assert train is not None, "a directory's languages are those of its training splits"
    return Splits(train, valid, test, chosen)


def _two_files(files: Sequence[Path], languages: Languages) -> Splits:
    for file in files:
        if not file.is_file():
            found = "this is not a file" if file.exists() else "file not found"
            raise UnreadableError(f"{file}: {found}", hint="give two text files that are aligned by line")
    source, target = files
    stated = (language_of_text(source), language_of_text(target))
    for side, code in enumerate(languages):
        if code and stated[side] not in {"", code} and code == stated[1 - side]:
            raise UsageError(
                f"{source} and {target} are {direction_of(stated)} by their names, but {_as_settings(languages)} is set",
                hint="remove these settings, or exchange the files of --source and --target",
            )
    known = (languages[0] or stated[0], languages[1] or stated[1])
    return Splits(PairText(source, target), languages=known)


def choose_languages(known: Collection[Languages], wanted: Languages, what: str) -> Languages:
    """Return the direction among `known` that has the `wanted` languages, or the reverse of one. "" fits any language.

    Raises UsageError if there is none, or more than one. `what` describes the data in the message.
    """
    for directions in (known, [(target, source) for source, target in known]):
        fitting = [
            each for each in directions if all(one in {"", other} for one, other in zip(wanted, each, strict=True))
        ]
        if len(fitting) > 1:
            lines = " or ".join(map(_as_settings, fitting))
            raise UsageError(f"{what} has several directions: {_arrows(fitting)}", hint=f"choose one with {lines}")
        if fitting:
            return fitting[0]
    raise UsageError(
        f"{what} is {_arrows(known)}, but {_as_settings(wanted)} is set",
        hint="remove these settings, or use `--data` with other sentence pairs",
    )


def _as_settings(languages: Languages) -> str:
    names = zip(LANGUAGE_SETTINGS, languages, strict=True)
    return "`" + " ".join(f"--set {name}={code}" for name, code in names if code) + "`"


def _arrows(known: Iterable[Languages]) -> str:
    return ", ".join(f"{source} to {target}" for source, target in known)


def _languages_in(directory: Path) -> list[Languages]:
    """Return the languages of the training splits in a directory. Raise UnreadableError if there are none."""
    try:
        names = sorted(entry.name for entry in directory.iterdir())
    except OSError as error:
        raise UnreadableError(f"{directory}: cannot be listed: {error.strerror}", hint=MAKE_ONE) from error
    stated = dict.fromkeys(filter(None, map(languages_of_pairs, names)))
    train = {languages: _split_in(directory, languages, "train") for languages in stated}
    known = [languages for languages, text in train.items() if text is not None and not text.is_reversed]
    if not known:
        raise UnreadableError(
            f"{directory}: this directory has no file of sentence pairs, such as de_en.txt; "
            f"it contains {some_of(names, 5) or 'nothing'}",
            hint=MAKE_ONE,
        )
    return known


def _split_in(directory: Path, languages: Languages, split: Split) -> PairText | None:
    """Return the pairs of a split, from the file of these languages or of the opposite direction."""
    for is_reversed, stated in ((False, languages), (True, languages[::-1])):
        for prefix in ("", TUTORIAL_PREFIX):
            if (file := directory / f"{prefix}{pair_file_name(stated, split)}").is_file():
                return PairText(file, is_reversed=is_reversed)
    return None


def read_pairs(text: PairText) -> list[tuple[str, str]]:
    """Return the (source, target) pairs of a text.

    Raises:
        UnreadableError: a file is missing, unreadable, not UTF-8 or without pairs, or a pair is not two non-empty texts.
    """
    pairs = []
    with closing(text.read()) as found:  # a malformed line stops the reading
        for number, pair in enumerate(found, start=1):
            if is_empty(pair):
                side = "target" if pair[0].strip() else "source"
                raise UnreadableError(f"{text}:{number}: the {side} is empty", hint=MAKE_ONE)
            pairs.append(pair)
    if not pairs:
        raise UnreadableError(f"{text}: the file is empty, but must contain sentence pairs", hint=MAKE_ONE)
    return pairs


def count_first_pairs(text: PairText, limit: int) -> int:
    """Count the pairs with text on both sides, up to `limit`. Read at least `BLOCK_BYTES` characters or the whole text.

    Raises:
        UnreadableError: one of the lines read is not a pair, or no pair has text on both sides.
        UsageError: two files have different numbers of lines.
    """
    if text.target is not None and (counts := [count_lines(file) for file in text.files])[0] != counts[1]:
        raise _not_aligned(text.files, counts)
    count = size = 0
    with closing(text.read()) as pairs:
        for pair in pairs:
            count += not is_empty(pair)
            size += len(pair[0]) + len(pair[1])
            if count >= limit and size >= BLOCK_BYTES:
                break
    if not count:
        raise no_filled_pairs(text)
    return min(count, limit)


def _columns(lines: Iterable[str], path: Path) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(lines, start=1):
        first, *others = line.split("\t")
        if len(others) != 1:
            raise UnreadableError(
                f"{path}:{number}: found {len(others)} tabs, expected one tab between source and target",
                hint="put one tab into each line, or give two files that are aligned by line: `--source FILE --target FILE`",
            )
        yield first, others[0]


def aligned_pairs(sources: Iterable[str], source: Path, target: Path) -> Iterator[tuple[str, str]]:
    """Yield the lines of two files in pairs. `sources` are the lines of `source`.

    Raises:
        UsageError: a file starts with markup, which must not become training data, or the files have different numbers of
            lines.
    """
    both = zip_longest(_without_markup(sources, source), _without_markup(read_lines(target), target))
    for number, (first, second) in enumerate(both, start=1):
        if first is None or second is None:
            counts = [number - 1, number + sum(1 for _ in both)]
            raise _not_aligned((source, target), counts if first is None else counts[::-1])
        yield first, second


def _without_markup(lines: Iterable[str], path: Path) -> Iterator[str]:
    for number, line in enumerate(lines, start=1):
        if number == 1 and re.match(r"\s*<(srcset|refset|tstset|mteval|doc|\?xml|!doctype)\b", line, re.IGNORECASE):
            raise UsageError(
                f"{path}:1: expected plain text, found markup: {line.strip()[:60]}",
                hint="convert SGML files with `tlaunch data preprocess`; their names must end in .sgm",
            )
        yield line


def _not_aligned(files: Sequence[Path], counts: Sequence[int]) -> UsageError:
    (source, target), (sources, targets) = files, counts
    return UsageError(
        f"the files have different numbers of lines: {source} has {counted(sources, 'line')}, but {target} has {targets}",
        hint="line N of one file must be the translation of line N of the other",
    )


def no_filled_pairs(text: PairText) -> UnreadableError:
    return UnreadableError(
        f"{text}: no sentence pairs: the file is empty, or each pair has an empty side", hint=MAKE_ONE
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
