"""Make a file of sentence pairs from a source and a target file: two WMT `.sgm` files, or two texts aligned by line."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from launcher.core.errors import RefusedError, UsageError
from launcher.core.frozen import frozen
from launcher.corpus.corpus_files import (
    Languages,
    Split,
    check_language,
    language_of_text,
    pair_file_name,
    refuse_overwriting,
    replacing_together,
    write_pairs,
)
from launcher.corpus.dataset import aligned_pairs
from launcher.corpus.sgm import SgmFile, read_sgm
from launcher.corpus.text_files import normalised, read_lines

DEFAULT_MAX_WORDS = 250
SHOWN_MISSING = 5

Sides = tuple[str | None, str | None]  # source, target; None if the partner is missing


@frozen
class Preprocessed:
    """The result of `preprocess`: the file written, and the numbers of kept and dropped pairs."""

    written: Path
    kept: int
    dropped: Mapping[str, int]  # reason -> number of pairs; only reasons that occurred
    missing: tuple[str, ...]  # the first segments without a partner, one sentence each
    warnings: tuple[str, ...]  # contradictions between the files' own attributes and the options

    def __str__(self) -> str:
        """Return one line with the numbers of kept pairs, of all pairs, and of dropped pairs by reason."""
        dropped = sum(self.dropped.values())
        reasons = f"; dropped: {_counts(self.dropped)}" if dropped else ""
        return f"kept {self.kept:,} of {self.kept + dropped:,} pairs{reasons}"


def preprocess(
    *,
    source: Path,
    target: Path,
    output: Path,
    languages: Languages = ("", ""),
    split: Split = "train",
    max_words: int = DEFAULT_MAX_WORDS,
    force: bool = False,
) -> Preprocessed:
    """Combine the texts `source` and `target` into pairs, and write them to a file in `output`. On error, write none.

    The file is named after the `languages`. Languages that are not given are taken from the names of the texts. Two
    `.sgm` files are matched by doc id and segment id, other files line by line. Exact repetitions are dropped from the
    training split; memory holds only a digest of each pair. Validation and test sets keep their repetitions, so that
    scores stay comparable. `max_words` counts words between spaces.

    Raises:
        UsageError: the same file twice, one `.sgm` and one plain text, unequal numbers of lines, an unknown language, or an
            existing file without `force`.
        UnreadableError: an input cannot be read or an output cannot be written.
        RefusedError: no pair is left.
    """
    if source.exists() and target.exists() and source.samefile(target):
        raise UsageError(f"{source}: the source and the target are the same file")
    if _is_sgm(source) != _is_sgm(target):
        sgm, plain = (source, target) if _is_sgm(source) else (target, source)
        raise UsageError(
            f"{sgm} is an .sgm file, but {plain} is plain text: both files must have the same format",
            hint="use two .sgm files of the same data set, or two text files with the same number of lines",
        )
    languages = _known_languages(languages, (source, target))
    written = output / pair_file_name(languages, split)
    if not force:
        refuse_overwriting([written])
    missing: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    pairs: Iterator[Sides]
    if _is_sgm(source):
        sgm_files = read_sgm(source), read_sgm(target)
        pairs, missing = _sgm_pairs(*sgm_files), _missing(*sgm_files)
        warnings = _warnings(sgm_files, languages)
    else:
        pairs = aligned_pairs(read_lines(source), source, target)
    sieve = _Sieve(max_words, keeps_duplicates=split != "train")
    with replacing_together([written]) as [file]:
        write_pairs(sieve.sifted(pairs), file)
        if not sieve.kept:
            raise RefusedError(
                f"{source} and {target}: none of {sum(sieve.dropped.values())} pairs is left: "
                + (_counts(sieve.dropped) or "both files are empty"),
                hint="check that both files belong to the same data set and have the same doc and seg IDs"
                if _is_sgm(source)
                else None,
            )
    return Preprocessed(written, sieve.kept, dict(sieve.dropped), missing, warnings)


def _known_languages(given: Languages, files: tuple[Path, Path]) -> Languages:
    """Return the languages of source and target: the given ones, or those in the names of the files."""
    known = []
    for side, code, file in zip(("source", "target"), given, files, strict=True):
        option, found = f"--{side}-language", code or language_of_text(file)
        if not found:
            raise UsageError(f"the language of {file} is unknown", hint=f"add {option} CODE, for example {option} de")
        check_language(option, found)
        known.append(found)
    return known[0], known[1]


def _sgm_pairs(source: SgmFile, target: SgmFile) -> Iterator[Sides]:
    """Yield the sentence pairs in the order of the source file, then segments that are only in the target file."""
    for key, segment in source.segments.items():
        yield segment.text, target.segments[key].text if key in target.segments else None
    for key, segment in target.segments.items():
        if key not in source.segments:
            yield None, segment.text


def _missing(source: SgmFile, target: SgmFile) -> tuple[str, ...]:
    lonely = [
        f"doc {segment.doc_id} seg {segment.segment_id} ({one.path}:{segment.line}) has no partner in {other.path}"
        for one, other in ((source, target), (target, source))
        for key, segment in one.segments.items()
        if key not in other.segments
    ]
    return tuple(lonely[:SHOWN_MISSING])


def _warnings(files: tuple[SgmFile, SgmFile], languages: Languages) -> tuple[str, ...]:
    source, target = files
    stated = [
        f"{file.path} states the language {file.language}, but it is used as {language}"
        for file, language in zip(files, languages, strict=True)
        # Only codes are compared, without the region: "fr-FR" is "fr". Some files state a name, such as "French".
        if (code := re.match(r"([a-z]{2})(?![a-z])", (file.language or "").lower())) and code[1] != language[:2].lower()
    ]
    if source.set_id and target.set_id and source.set_id != target.set_id:
        stated.append(f"{source.path} belongs to set {source.set_id}, but {target.path} to set {target.set_id}")
    return tuple(stated)


@dataclass
class _Sieve:
    """Keeps good sentence pairs, and counts the dropped pairs by reason."""

    max_words: int
    keeps_duplicates: bool
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    _seen: set[bytes] = field(default_factory=set)

    def sifted(self, pairs: Iterator[Sides]) -> Iterator[tuple[str, str]]:
        for source, target in pairs:
            if source is None or target is None:
                self.dropped["missing partner"] += 1
                continue
            pair = (normalised(source), normalised(target))
            if reason := self._objection(pair):
                self.dropped[reason] += 1
            else:
                self.kept += 1
                yield pair

    def _objection(self, pair: tuple[str, str]) -> str | None:
        if not all(pair):
            return "empty side"
        if any(len(text.split(" ")) > self.max_words for text in pair):
            return f"longer than {self.max_words} words"
        if not self.keeps_duplicates:
            digest = hashlib.blake2b("\t".join(pair).encode(), digest_size=12).digest()
            if digest in self._seen:
                return "duplicate"
            self._seen.add(digest)
        return None


def _is_sgm(path: Path) -> bool:
    return path.name.lower().removesuffix(".gz").endswith((".sgm", ".sgml"))


def _counts(dropped: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in dropped.items())
