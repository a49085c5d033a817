"""Make files of sentence pairs from a French and an English file: two WMT `.sgm` files, or two texts aligned by line."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from launcher.core.errors import RefusedError, UsageError
from launcher.core.frozen import frozen
from launcher.corpus.corpus_files import Split, pair_files, refuse_overwriting, replacing_together, write_pairs
from launcher.corpus.sgm import SgmFile, read_sgm
from launcher.corpus.text_files import normalised, read_lines

DEFAULT_MAX_WORDS = 250
SHOWN_MISSING = 5
LANGUAGE_NAMES = {
    "French": {"fr", "fra", "fre", "french", "francais", "français"},
    "English": {"en", "eng", "english", "anglais"},
}

Sides = tuple[str | None, str | None]  # French, English; None if the partner is missing


@frozen
class Preprocessed:
    """The result of `preprocess`: the files written, and the numbers of kept and dropped pairs."""

    written: tuple[Path, ...]
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
    fr: Path,
    en: Path,
    output: Path,
    split: Split = "train",
    max_words: int = DEFAULT_MAX_WORDS,
    force: bool = False,
) -> Preprocessed:
    """Combine the texts `fr` and `en` into pairs, and write one file per direction to `output`. On error, write none.

    Two `.sgm` files are matched by doc id and segment id, other files line by line. Exact repetitions are dropped
    from the training split; memory holds only a digest of each pair. Validation and test sets keep their repetitions,
    so that scores stay comparable. `max_words` counts words between spaces.

    Raises:
        UsageError: the same file twice, one `.sgm` and one plain text, or existing files without `force`.
        UnreadableError: an input cannot be read or an output cannot be written.
        RefusedError: unequal numbers of lines, or no pair is left.
    """
    if fr.exists() and en.exists() and fr.samefile(en):
        raise UsageError(f"{fr}: the French and English inputs are the same file")
    if _is_sgm(fr) != _is_sgm(en):
        sgm, plain = (fr, en) if _is_sgm(fr) else (en, fr)
        raise UsageError(
            f"{sgm} is an .sgm file, but {plain} is plain text: both files must have the same format",
            hint="use two .sgm files of the same data set, or two text files with the same number of lines",
        )
    written = pair_files(output, split)
    if not force:
        refuse_overwriting(written)
    missing: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    if _is_sgm(fr):
        sgm_files = read_sgm(fr), read_sgm(en)
        pairs, missing, warnings = _sgm_pairs(*sgm_files), _missing(*sgm_files), _warnings(*sgm_files)
    else:
        pairs = _text_pairs(fr, en)
    sieve = _Sieve(max_words, keeps_duplicates=split != "train")
    with replacing_together(written) as files:
        write_pairs(sieve.sifted(pairs), *files)
        if not sieve.kept:
            raise RefusedError(
                f"{fr} and {en}: none of {sum(sieve.dropped.values())} pairs is left: "
                + (_counts(sieve.dropped) or "both files are empty"),
                hint="check that both files belong to the same data set and have the same doc and seg IDs"
                if _is_sgm(fr)
                else None,
            )
    return Preprocessed(written, sieve.kept, dict(sieve.dropped), missing, warnings)


def _text_pairs(fr: Path, en: Path) -> Iterator[Sides]:
    both = zip_longest(_text_lines(fr), _text_lines(en))
    for number, (french, english) in enumerate(both, start=1):
        if french is None or english is None:
            shorter, longer = number - 1, number + sum(1 for _ in both)
            fr_count, en_count = (shorter, longer) if french is None else (longer, shorter)
            raise RefusedError(
                f"the files have different numbers of lines: {fr} has {fr_count} lines, but {en} has {en_count}",
                hint="line N of the English file must be the translation of line N of the French file",
            )
        yield french, english


def _sgm_pairs(fr: SgmFile, en: SgmFile) -> Iterator[Sides]:
    """Yield the sentence pairs in the order of the French file, then segments that are only in the English file."""
    for key, segment in fr.segments.items():
        yield segment.text, en.segments[key].text if key in en.segments else None
    for key, segment in en.segments.items():
        if key not in fr.segments:
            yield None, segment.text


def _missing(fr: SgmFile, en: SgmFile) -> tuple[str, ...]:
    lonely = [
        f"doc {segment.doc_id} seg {segment.segment_id} ({one.path}:{segment.line}) has no partner in {other.path}"
        for one, other in ((fr, en), (en, fr))
        for key, segment in one.segments.items()
        if key not in other.segments
    ]
    return tuple(lonely[:SHOWN_MISSING])


def _warnings(fr: SgmFile, en: SgmFile) -> tuple[str, ...]:
    stated = [
        f"{file.path} states the language {file.language}, but it was given as the {wanted} side"
        for file, wanted in ((fr, "French"), (en, "English"))
        # The language without the region: "fr-FR" is "fr".
        if file.language is not None and re.split("[-_]", file.language.lower())[0] not in LANGUAGE_NAMES[wanted]
    ]
    if fr.set_id and en.set_id and fr.set_id != en.set_id:
        stated.append(f"{fr.path} belongs to set {fr.set_id}, but {en.path} to set {en.set_id}")
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
        for french, english in pairs:
            if french is None or english is None:
                self.dropped["missing partner"] += 1
                continue
            pair = (normalised(french), normalised(english))
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


def _text_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text. Raise UsageError if it starts with markup, which must not become training data."""
    for number, line in enumerate(read_lines(path), start=1):
        if number == 1 and re.match(r"\s*<(srcset|refset|tstset|mteval|doc|\?xml|!doctype)\b", line, re.IGNORECASE):
            raise UsageError(
                f"{path}:1: expected plain text, found markup: {line.strip()[:60]}",
                hint="if the file is in SGML format, change its extension to .sgm",
            )
        yield line


def _is_sgm(path: Path) -> bool:
    return path.name.lower().removesuffix(".gz").endswith((".sgm", ".sgml"))


def _counts(dropped: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in dropped.items())
