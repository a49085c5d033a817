"""The built-in corpus: 13,000 French-English sentence pairs in one compressed file, so that training needs no download.

A grammar generated the pairs. No sentence of either language occurs twice, so the splits share none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import islice
from pathlib import Path

from launcher.core.atomic import new_directory
from launcher.core.env import TLAUNCH_CACHE_DIR
from launcher.core.errors import UnreadableError
from launcher.core.resources import cache_dir
from launcher.corpus.corpus_files import SPLITS, Split, pair_file_name, replacing_together, write_pairs
from launcher.corpus.dataset import PairText, read_pairs

PACKED = Path(__file__).with_name("sample.tsv.gz")  # one pair per line, French<TAB>English, split after split
SHA256 = "efd010760dc2d951a94b0fcfce3a39a92158c8a098cebd363576ffd59dfb8c42"  # of the unpacked text
LANGUAGES = ("fr", "en")
SIZES: Mapping[Split, int] = {"train": 12_000, "valid": 500, "test": 500}
DOCUMENT_SENTENCES = 25


def write_sample(directory: Path) -> tuple[Path, ...]:
    """Write a pair file for each split, and the test split also as two `.sgm` files. On error, write none.

    Existing files are replaced. Return the paths, in the order of `sample_files`.

    Raises:
        UnreadableError: the packed sample is missing or damaged, or the directory cannot be written.
    """
    try:
        read = read_pairs(PairText(PACKED))
    except UnreadableError as error:
        raise UnreadableError(error.message, hint="install tlaunch again") from error
    digest = hashlib.sha256("".join(f"{french}\t{english}\n" for french, english in read).encode()).hexdigest()
    if digest != SHA256:
        raise UnreadableError(
            f"{PACKED}: the text has the SHA-256 hash {digest}, expected {SHA256}", hint="install tlaunch again"
        )
    unpacked = iter(read)
    pairs = {split: list(islice(unpacked, size)) for split, size in SIZES.items()}
    paths = sample_files(directory)
    with replacing_together(paths) as files:
        remaining = iter(files)
        for split in SPLITS:
            write_pairs(pairs[split], next(remaining))
        next(remaining).writelines(_sgm([french for french, _ in pairs["test"]], "srcset", "fr"))
        next(remaining).writelines(_sgm([english for _, english in pairs["test"]], "refset", "en"))
    return paths


def sample_files(directory: Path) -> tuple[Path, ...]:
    """Return the paths of the files that `write_sample` writes, in the same order."""
    names = [pair_file_name(LANGUAGES, split) for split in SPLITS]
    names += [f"newstest-sample.{language}.sgm" for language in LANGUAGES]
    return tuple(directory / name for name in names)


def cached_sample() -> Path:
    """Return the cache directory with the built-in corpus. The first call creates it. Concurrent calls are safe.

    The directory is written under a temporary name and renamed, so an existing directory is complete. A second process
    finds the first one's files, which are byte-identical.

    Raises:
        UnreadableError: the packed sample is missing or damaged, or the cache directory cannot be written.
    """
    directory = cache_dir() / f"pairs-{SHA256[:16]}"
    if directory.is_dir():
        if not all(path.is_file() for path in sample_files(directory)):  # someone removed files from the cache
            write_sample(directory)
        return directory
    try:
        with new_directory(directory) as aside:
            write_sample(aside)
    except OSError as error:
        if not directory.is_dir():  # otherwise another process was faster
            raise UnreadableError(
                f"cannot cache the built-in corpus in {directory.parent}: {error.strerror}",
                hint=f"set {TLAUNCH_CACHE_DIR} to a writable directory, or use --data PATH",
            ) from error
    return directory


def _sgm(sentences: Sequence[str], kind: str, language: str) -> Iterator[str]:
    """Yield the lines of an `.sgm` file in WMT's format, with `DOCUMENT_SENTENCES` sentences per document."""
    stated = f'srclang="{language}"' if kind == "srcset" else f'srclang="any" trglang="{language}"'
    yield f'<{kind} setid="newstest-sample" {stated}>\n'
    for number, start in enumerate(range(0, len(sentences), DOCUMENT_SENTENCES), start=1):
        yield f'<doc sysid="ref" docid="sample.{number}" genre="generated" origlang="fr">\n<p>\n'
        for place, sentence in enumerate(sentences[start : start + DOCUMENT_SENTENCES], start=1):
            yield f'<seg id="{place}">{escape(sentence, quote=False)}</seg>\n'
        yield "</p>\n</doc>\n"
    yield f"</{kind}>\n"
