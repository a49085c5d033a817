"""Write the built-in corpus to disk."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
from itertools import combinations

import pytest

from launcher.core.errors import UnreadableError
from launcher.corpus import sample as sample_module
from launcher.corpus.dataset import find_splits, read_pairs
from launcher.corpus.preprocess import preprocess
from launcher.corpus.sample import cached_sample, sample_files, write_sample
from tests.images import digest_of

MAKE_WHEN_TOLD = """
import sys
from launcher.corpus.sample import cached_sample
print("ready", flush=True)
sys.stdin.readline()
print(cached_sample(), flush=True)
"""
# Of all that is written. Figures of the documentation were measured with this text.
DIGEST = "0f5ab68fdf3b51cbf791707740c58cc4094aa5d24803e125e0b1c516bb00939e"


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    directory = tmp_path_factory.mktemp("sample")
    write_sample(directory)
    return directory


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TLAUNCH_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_no_sentence_is_shared_between_splits_or_repeated(sample):
    splits = find_splits([sample])
    sides = [tuple(zip(*read_pairs(text), strict=True)) for text in (splits.train, splits.valid, splits.test)]
    assert splits.languages == ("fr", "en")
    for language in (0, 1):
        sentences = [set(split[language]) for split in sides]
        assert [len(kept) for kept in sentences] == [12_000, 500, 500]
        assert not any(one & other for one, other in combinations(sentences, 2))


def test_the_sgm_pair_preprocesses_to_the_test_split(sample, tmp_path):
    fr, en = (sample / f"newstest-sample.{language}.sgm" for language in ("fr", "en"))
    assert fr.read_text().count("<doc ") == 20
    result = preprocess(source=fr, target=en, output=tmp_path, split="test")
    assert (result.kept, dict(result.dropped), result.warnings) == (500, {}, ())
    assert result.written.read_bytes() == (sample / result.written.name).read_bytes()


def test_every_file_is_the_same_to_the_byte(sample):
    """Whoever trains on the sample gets the losses that the documentation shows."""
    assert digest_of(sample_files(sample)) == DIGEST
    assert sorted(sample.iterdir()) == sorted(sample_files(sample))


@pytest.mark.parametrize("damage", ["one word", "half a file", "no file"])
def test_a_damaged_sample_is_refused(tmp_path, monkeypatch, damage):
    packed = sample_module.PACKED.read_bytes()
    broken = tmp_path / "sample.tsv.gz"
    if damage == "one word":
        broken.write_bytes(gzip.compress(gzip.decompress(packed).replace(b"garden", b"desert", 1)))
    elif damage == "half a file":
        broken.write_bytes(packed[: len(packed) // 2])
    monkeypatch.setattr(sample_module, "PACKED", broken)
    with pytest.raises(UnreadableError, match=re.escape(str(broken))):
        write_sample(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_cache_is_made_once(cache, sample):
    directory = cached_sample()
    stamps = {path: path.stat().st_mtime_ns for path in directory.iterdir()}
    assert cached_sample() == directory
    assert {path: path.stat().st_mtime_ns for path in directory.iterdir()} == stamps
    assert list(cache.iterdir()) == [directory]
    assert set(stamps) == set(sample_files(directory))
    lost = directory / "fr_en.valid.txt"
    lost.unlink()
    assert cached_sample() == directory
    assert lost.read_bytes() == (sample / lost.name).read_bytes()


def test_processes_at_once_share_one_cache(cache):
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", MAKE_WHEN_TOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    try:
        assert [program.stdout.readline() for program in programs] == ["ready\n"] * 4
        for program in programs:
            program.stdin.write("go\n")
            program.stdin.flush()
        answers = {program.communicate(timeout=120)[0].strip() for program in programs}
    finally:
        for program in programs:
            program.kill()
            program.wait()
    assert [program.returncode for program in programs] == [0] * 4
    assert answers == {str(path) for path in cache.iterdir()}
    assert len(answers) == 1
    assert all(path.is_file() for path in sample_files(next(cache.iterdir())))


def test_a_cache_that_cannot_be_written_names_the_way_out(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TLAUNCH_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(UnreadableError) as caught:
        cached_sample()
    assert f"{os.fspath(tmp_path)}/file/cache" in caught.value.message
    assert "TLAUNCH_CACHE_DIR" in caught.value.hint
