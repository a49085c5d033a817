"""Find, read and hash the corpus files that a trainer reads."""

from __future__ import annotations

import hashlib

import pytest

from launcher.core.errors import UnreadableError, UsageError
from launcher.corpus.dataset import Splits, content_digest, find_splits, read_pairs


@pytest.fixture
def corpus(tmp_path):
    for name in ("wmt14.fr_en.txt", "wmt14.fr_en.valid.txt", "wmt14.en_fr.txt"):
        (tmp_path / name).write_text("a\tb\n")
    return tmp_path


def test_a_directory_gives_the_splits_it_has(corpus):
    assert find_splits(corpus, "fr_en") == Splits(corpus / "wmt14.fr_en.txt", corpus / "wmt14.fr_en.valid.txt", None)
    assert find_splits(corpus, "en_fr") == Splits(corpus / "wmt14.en_fr.txt", None, None)
    mine = (corpus / "wmt14.en_fr.txt").rename(corpus / "mine.tsv")
    assert find_splits(mine, "en_fr") == find_splits(mine, "fr_en") == Splits(mine, None, None)


def test_a_file_of_the_other_direction_is_refused(corpus):
    """A name that says fr_en is not read as en_fr, since nothing later would notice. There are no other directions."""
    with pytest.raises(UsageError) as caught:
        find_splits(corpus / "wmt14.fr_en.txt", "en_fr")
    assert "its name says fr_en, but the direction is en_fr" in caught.value.message
    assert str(corpus / "wmt14.en_fr.txt") in caught.value.hint
    with pytest.raises(UsageError, match="unknown direction fr_de"):
        find_splits(corpus, "fr_de")


def test_what_is_missing_is_named(tmp_path):
    (tmp_path / "notes.md").touch()
    with pytest.raises(UnreadableError) as caught:
        find_splits(tmp_path, "en_fr")
    assert "this directory has no wmt14.en_fr.txt; it contains notes.md" in caught.value.message
    assert "tlaunch data preprocess" in caught.value.hint
    with pytest.raises(UnreadableError, match="file or directory of sentence pairs not found"):
        find_splits(tmp_path / "nowhere", "fr_en")


def test_pairs_are_read_in_order(tmp_path):
    file = tmp_path / "pairs"
    file.write_text("Un chat.\tA cat.\nL'été\u2028!\tSummer!\n", encoding="utf-8")
    assert read_pairs(file) == [("Un chat.", "A cat."), ("L'été\u2028!", "Summer!")]


@pytest.mark.parametrize(("content", "expected"), [
    ("a\tb\nno tab\n", ":2: found 0 tabs"), ("a\tb\tc\n", ":1: found 2 tabs"), ("a\tb\n\n", ":2: found 0 tabs"),
    ("a\t \n", ":1: the target is empty"), ("\tb\n", ":1: the source is empty"),
    ("", ": the file is empty, but must contain sentence pairs"),
])  # fmt: skip
def test_a_malformed_line_is_named(tmp_path, content, expected):
    file = tmp_path / "pairs"
    file.write_text(content)
    with pytest.raises(UnreadableError) as caught:
        read_pairs(file)
    assert caught.value.message.startswith(f"{file}{expected}")


def test_the_digest_goes_by_content(tmp_path):
    contents = {"a": b"x" * 3_000_000, "same": b"x" * 3_000_000, "longer": b"x" * 3_000_000 + b"y", "none": b""}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    digests = {name: content_digest(tmp_path / name) for name in contents}
    assert digests["a"] == digests["same"]
    assert len(set(digests.values())) == 3
    assert digests["none"] == hashlib.sha256(hashlib.sha256(b"").digest()).hexdigest()
    with pytest.raises(UnreadableError, match="No such file"):
        content_digest(tmp_path / "missing")
