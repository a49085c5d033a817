"""The built-in corpus on disk."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from itertools import combinations

import pytest

from launcher.core.errors import UnreadableError, UsageError
from launcher.corpus.dataset import find_splits, read_pairs
from launcher.corpus.preprocess import preprocess
from launcher.corpus.sample import (
    DEFAULT_SEED,
    GENERATOR_VERSION,
    cached_sample,
    distinct_pairs,
    sample_files,
    write_sample,
)

MAKE_WHEN_TOLD = """
import sys
from launcher.corpus.sample import cached_sample
print("ready", flush=True)
sys.stdin.readline()
print(cached_sample(), flush=True)
"""
# What each version of the generator gives. A new line here goes with a new GENERATOR_VERSION, never without one:
# caches of users go by the version.
TEXT_OF_VERSION = {1: "91972dfe9bccafa011850c0d8419dd9ce8bd5c837fb1ad6005fd66edb64fd32b"}


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """A default sample, written once."""
    directory = tmp_path_factory.mktemp("sample")
    write_sample(directory)
    return directory


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TLAUNCH_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("direction", ["fr_en", "en_fr"])
def test_the_default_sizes(sample, direction):
    """12,000 training, 500 validation and 500 test pairs in both directions."""
    splits = find_splits(sample, direction)
    assert [len(read_pairs(path)) for path in (splits.train, splits.valid, splits.test)] == [12_000, 500, 500]


def test_no_sentence_is_shared_between_splits_or_repeated(sample):
    """Neither a pair nor a sentence of either language occurs in two splits, or twice in one."""
    splits = find_splits(sample, "fr_en")
    sides = [tuple(zip(*read_pairs(path), strict=True)) for path in (splits.train, splits.valid, splits.test)]
    for language in (0, 1):
        sentences = [set(split[language]) for split in sides]
        assert [len(kept) for kept in sentences] == [12_000, 500, 500]
        assert not any(one & other for one, other in combinations(sentences, 2))


def test_the_sgm_pair_preprocesses_to_the_test_split(sample, tmp_path):
    """The .sgm files hold several docs, and give the test split back without a loss or a warning."""
    fr, en = (sample / f"newstest-sample.{language}.sgm" for language in ("fr", "en"))
    assert fr.read_text().count("<doc ") == 20
    result = preprocess(fr=fr, en=en, output=tmp_path, split="test")
    assert (result.kept, dict(result.dropped), result.warnings) == (500, {}, ())
    for path in result.written:
        assert path.read_bytes() == (sample / path.name).read_bytes()


def test_evaluation_splits_stay_when_training_grows(tmp_path):
    """Asking for more training pairs changes neither test nor valid; another seed changes all."""
    small, large, other = (tmp_path / name for name in ("small", "large", "other"))
    write_sample(small, train=10, valid=20, test=20, seed=5)
    write_sample(large, train=50, valid=20, test=20, seed=5)
    write_sample(other, train=10, valid=20, test=20, seed=6)
    for name in ("wmt14.fr_en.valid.txt", "wmt14.en_fr.test.txt", "newstest-sample.en.sgm"):
        assert (small / name).read_bytes() == (large / name).read_bytes() != (other / name).read_bytes()


def test_splits_of_no_pairs_have_no_files(tmp_path):
    """Only what was asked for is written."""
    written = write_sample(tmp_path, train=5, valid=0, test=0)
    assert [path.name for path in written] == ["wmt14.fr_en.txt", "wmt14.en_fr.txt"]
    assert sorted(tmp_path.iterdir()) == sorted(written)


@pytest.mark.parametrize("sizes", [{"train": 0}, {"valid": -1}, {"test": -5}])
def test_impossible_sizes_are_refused(tmp_path, sizes):
    """At least one training pair, and nothing negative."""
    with pytest.raises(UsageError, match="but a sample needs at least"):
        write_sample(tmp_path, **sizes)
    assert list(tmp_path.iterdir()) == []


def test_the_text_is_that_of_the_generator_version():
    """Text that changes without a new version would leave users with a cache of the old text."""
    text = "\n".join(f"{fr}\t{en}" for fr, en in distinct_pairs(3000, DEFAULT_SEED))
    assert hashlib.sha256(text.encode()).hexdigest() == TEXT_OF_VERSION[GENERATOR_VERSION]


def test_the_cache_is_made_once(cache):
    """The second call finds the first one's directory and writes nothing."""
    directory = cached_sample()
    stamps = {path: path.stat().st_mtime_ns for path in directory.iterdir()}
    assert cached_sample() == directory
    assert {path: path.stat().st_mtime_ns for path in directory.iterdir()} == stamps
    assert list(cache.iterdir()) == [directory]
    assert set(stamps) == set(sample_files(directory, train=1, valid=1, test=1))


def test_a_cache_that_lost_a_file_is_completed(cache, sample):
    """A file that somebody deleted comes back with the same text."""
    lost = cached_sample() / "wmt14.fr_en.valid.txt"
    lost.unlink()
    assert cached_sample() == lost.parent
    assert lost.read_bytes() == (sample / lost.name).read_bytes()


def test_eight_processes_at_once_share_one_cache(cache):
    """All of them return the same complete directory, and nothing else is left beside it."""
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", MAKE_WHEN_TOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(8)
    ]
    try:
        assert [program.stdout.readline() for program in programs] == ["ready\n"] * 8
        for program in programs:
            program.stdin.write("go\n")
            program.stdin.flush()
        answers = {program.communicate(timeout=120)[0].strip() for program in programs}
    finally:
        for program in programs:
            program.kill()
            program.wait()
    assert [program.returncode for program in programs] == [0] * 8
    assert answers == {str(path) for path in cache.iterdir()}
    assert len(answers) == 1
    assert all(path.is_file() for path in sample_files(next(cache.iterdir()), train=1, valid=1, test=1))


def test_a_cache_that_cannot_be_written_names_the_way_out(tmp_path, monkeypatch):
    """The error says where the cache would be and which variable moves it."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("TLAUNCH_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(UnreadableError) as caught:
        cached_sample()
    assert f"{os.fspath(tmp_path)}/file/cache" in caught.value.message
    assert "TLAUNCH_CACHE_DIR" in caught.value.hint
