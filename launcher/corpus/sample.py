"""The built-in corpus: French-English sentences drawn from a grammar, so that training needs no download.

Distinct on both sides: no sentence of either language occurs twice, hence none is shared between the splits.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from html import escape
from itertools import islice
from pathlib import Path

from launcher.core.env import TLAUNCH_CACHE_DIR
from launcher.core.errors import UnreadableError, UsageError
from launcher.core.resources import cache_dir
from launcher.corpus.files import SPLITS, pair_files, replacing_together, write_pairs
from launcher.corpus.grammar import pairs

GENERATOR_VERSION = 1  # raise it whenever the same parameters give other text: caches go by it
DEFAULT_TRAIN = 12_000
DEFAULT_VALID = 500
DEFAULT_TEST = 500
DEFAULT_SEED = 1
PATIENCE = 2_000  # repetitions in a row after which the grammar counts as exhausted
DOCUMENT_SENTENCES = 25

Pairs = Sequence[tuple[str, str]]


def write_sample(
    directory: Path,
    *,
    train: int = DEFAULT_TRAIN,
    valid: int = DEFAULT_VALID,
    test: int = DEFAULT_TEST,
    seed: int = DEFAULT_SEED,
) -> tuple[Path, ...]:
    """Write the pair files of all splits in both directions, and the test split as an `.sgm` pair: all or none.

    A split of 0 pairs has no file. The text depends on the parameters alone; test and valid are drawn first, so that
    they stay the same when `train` grows. What exists is replaced. Returns the paths.

    Raises:
        UsageError: a negative size, no training pair, or more pairs than the grammar gives.
        UnreadableError: the directory cannot be written.
    """
    _refuse_sizes(train, valid, test)
    drawn = distinct_pairs(train + valid + test, seed)
    contents = {"test": drawn[:test], "valid": drawn[test : test + valid], "train": drawn[test + valid :]}
    paths = sample_files(directory, train=train, valid=valid, test=test)
    with replacing_together(paths) as files:
        remaining = iter(files)
        for split in SPLITS:
            if contents[split]:
                write_pairs(contents[split], next(remaining), next(remaining))
        if test:
            next(remaining).writelines(_sgm([french for french, _ in contents["test"]], "srcset", "fr"))
            next(remaining).writelines(_sgm([english for _, english in contents["test"]], "refset", "en"))
    return paths


def sample_files(directory: Path, *, train: int, valid: int, test: int) -> tuple[Path, ...]:
    """The paths that `write_sample` writes for these sizes, in its order."""
    sizes = {"train": train, "valid": valid, "test": test}
    paths = [path for split in SPLITS if sizes[split] for path in pair_files(directory, split)]
    if test:
        paths += [directory / f"newstest-sample.{language}.sgm" for language in ("fr", "en")]
    return tuple(paths)


def cached_sample() -> Path:
    """The directory of the default sample, made on the first call. Safe with several processes at once.

    Written aside and renamed, so that a directory that exists is complete; whoever comes second finds the first
    one's files, which are the same to the byte. Takes a second or two when it has to be made.

    Raises:
        UnreadableError: the cache directory cannot be written.
    """
    sizes = {"train": DEFAULT_TRAIN, "valid": DEFAULT_VALID, "test": DEFAULT_TEST}
    parameters = f"version={GENERATOR_VERSION} seed={DEFAULT_SEED} {sizes}"
    directory = cache_dir() / f"sample-{hashlib.sha256(parameters.encode()).hexdigest()[:16]}"
    if not directory.is_dir():
        _make_aside(directory)
    elif not all(path.is_file() for path in sample_files(directory, **sizes)):
        write_sample(directory)  # somebody tidied inside the cache
    return directory


def distinct_pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """The first `count` pairs of the grammar whose French and English have both not occurred before.

    Raises:
        UsageError: the grammar is exhausted, or so nearly that the next new pair is not in sight.
    """
    found = list(islice(_new_pairs(seed), count))
    if len(found) < count:
        raise UsageError(
            f"{count} sentence pairs were asked for, but the grammar gives only {len(found)} that differ",
            hint="ask for fewer, or use a real corpus: `tlaunch data preprocess`",
        )
    return found


def _new_pairs(seed: int) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    repetitions = 0
    for french, english in pairs(seed):
        if french in seen or english in seen:
            repetitions += 1
            if repetitions == PATIENCE:
                return
        else:
            repetitions = 0
            seen |= {french, english}
            yield french, english


def _refuse_sizes(train: int, valid: int, test: int) -> None:
    for name, size, least in (("train", train, 1), ("valid", valid, 0), ("test", test, 0)):
        if size < least:
            raise UsageError(f"{name} is {size}, but a sample needs at least {least}")


def _make_aside(directory: Path) -> None:
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", suffix=".partial", dir=directory.parent))
    except OSError as error:
        raise UnreadableError(
            f"{directory.parent}: the built-in corpus cannot be cached there: {error.strerror}",
            hint=f"set {TLAUNCH_CACHE_DIR} to a directory that can be written, or give --data PATH",
        ) from error
    try:
        write_sample(aside)
        aside.chmod(0o755)
        _rename_unless_there(aside, directory)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _rename_unless_there(aside: Path, directory: Path) -> None:
    """A directory is never renamed over one that holds something: then another process was quicker."""
    try:
        aside.rename(directory)
    except OSError:
        if not directory.is_dir():
            raise


def _sgm(sentences: Sequence[str], kind: str, language: str) -> Iterator[str]:
    """The lines of an evaluation set as WMT writes them, in documents of a few sentences."""
    stated = f'srclang="{language}"' if kind == "srcset" else f'srclang="any" trglang="{language}"'
    yield f'<{kind} setid="newstest-sample" {stated}>\n'
    for number, start in enumerate(range(0, len(sentences), DOCUMENT_SENTENCES), start=1):
        yield f'<doc sysid="ref" docid="sample.{number}" genre="generated" origlang="fr">\n<p>\n'
        for place, sentence in enumerate(sentences[start : start + DOCUMENT_SENTENCES], start=1):
            yield f'<seg id="{place}">{escape(sentence, quote=False)}</seg>\n'
        yield "</p>\n</doc>\n"
    yield f"</{kind}>\n"
