"""Find, read and hash the corpus files that a trainer reads."""

from __future__ import annotations

import gzip
import hashlib

import pytest

from launcher.core.errors import UnreadableError, UsageError
from launcher.corpus.dataset import PairText, Splits, content_digest, count_first_pairs, find_splits, read_pairs

FR_EN, EN_FR = ("fr", "en"), ("en", "fr")


@pytest.fixture
def folder(tmp_path):
    """Write files of one pair each, and return their directory."""

    def written(*names):
        for name in names:
            (tmp_path / name).write_text("a\tb\n")
        return tmp_path

    return written


def test_a_directory_has_the_direction_of_its_file_or_the_reverse(folder):
    corpus = folder("fr_en.txt", "wmt14.fr_en.valid.txt", "en_fr.test.txt", "notes.txt", "de_en.valid.txt")
    given = Splits(
        PairText(corpus / "fr_en.txt"), PairText(corpus / "wmt14.fr_en.valid.txt"),
        PairText(corpus / "en_fr.test.txt", is_reversed=True), FR_EN,
    )  # fmt: skip
    assert find_splits([corpus]) == find_splits([corpus], FR_EN) == find_splits([corpus], ("", "en")) == given
    turned = find_splits([corpus], ("en", ""))
    assert (turned.train, turned.languages) == (PairText(corpus / "fr_en.txt", is_reversed=True), EN_FR)
    assert (read_pairs(given.train), read_pairs(turned.train)) == ([("a", "b")], [("b", "a")])


def test_of_several_directions_one_must_be_chosen(folder):
    corpus = folder("wmt14.fr_en.txt", "wmt14.en_fr.txt", "de_fi.txt")
    with pytest.raises(UsageError, match="several directions: de to fi, en to fr, fr to en") as refused:
        find_splits([corpus])
    assert "`--set data.source_language=fr --set data.target_language=en`" in refused.value.hint
    assert find_splits([corpus], EN_FR).train == PairText(corpus / "wmt14.en_fr.txt")
    assert find_splits([corpus], ("fi", "")).train == PairText(corpus / "de_fi.txt", is_reversed=True)
    with pytest.raises(UsageError, match=r"but `--set data\.source_language=zh` is set"):
        find_splits([corpus], ("zh", ""))


@pytest.mark.parametrize(("name", "wanted", "languages", "is_reversed"), [
    ("pairs.tsv", ("", ""), ("", ""), False),
    ("pairs.tsv", ("", "zh-TW"), ("", "zh-TW"), False),
    ("de_en.tsv.gz", ("", ""), ("de", "en"), False),
    ("wmt14.fr_en.txt", EN_FR, EN_FR, True),
])  # fmt: skip
def test_the_name_of_a_file_may_state_languages(folder, name, wanted, languages, is_reversed):
    path = folder(name) / name
    assert find_splits([path], wanted) == Splits(PairText(path, is_reversed=is_reversed), languages=languages)


def test_two_files_are_source_and_target(folder):
    source, target = folder("train.de", "train.fi.gz") / "train.de", folder() / "train.fi.gz"
    assert find_splits([source, target]) == Splits(PairText(source, target), languages=("de", "fi"))
    assert find_splits([source, target], ("hsb", "")).languages == ("hsb", "fi")
    for languages in (("fi", "de"), ("fi", ""), ("", "de")):  # of the other file
        with pytest.raises(UsageError, match="are de to fi by their names"):
            find_splits([source, target], languages)
    assert read_pairs(PairText(source, target)) == [("a\tb", "a\tb")]
    with pytest.raises(UnreadableError, match=r"none\.de: file not found"):
        find_splits([folder() / "none.de", target])


@pytest.mark.parametrize(
    ("lines", "message"),
    [((3, 5), "has 3 lines, but .* has 5"), ((2, 1), "has 2 lines, but"), ((1, 2), "has 1 line, but")],
)
def test_files_with_different_numbers_of_lines_are_refused(tmp_path, lines, message):
    source, target = tmp_path / "source", tmp_path / "target.gz"
    source.write_text("x\n" * (lines[0] - 1) + "x")
    target.write_bytes(gzip.compress(b"y\n" * lines[1]))
    text = PairText(source, target)
    for read in (read_pairs, lambda text: count_first_pairs(text, 1)):
        with pytest.raises(UsageError, match=message):
            read(text)


def test_what_is_missing_is_named(tmp_path):
    (tmp_path / "notes.md").touch()
    with pytest.raises(UnreadableError) as caught:
        find_splits([tmp_path], EN_FR)
    assert (
        "this directory has no file of sentence pairs, such as de_en.txt; it contains notes.md" in caught.value.message
    )
    assert "tlaunch data preprocess" in caught.value.hint
    with pytest.raises(UnreadableError, match="file or directory of sentence pairs not found"):
        find_splits([tmp_path / "nowhere"])
    with pytest.raises(UsageError, match=r"data\.target_language is german, which is not a language code"):
        find_splits([tmp_path], ("", "german"))


def test_pairs_are_read_in_order(tmp_path):
    file = tmp_path / "pairs"
    file.write_text("Un chat.\tA cat.\nL'été\u2028!\tSummer!\n", encoding="utf-8")
    assert read_pairs(PairText(file)) == [("Un chat.", "A cat."), ("L'été\u2028!", "Summer!")]


@pytest.mark.parametrize(("content", "expected"), [
    ("a\tb\nno tab\n", ":2: found 0 tabs"), ("a\tb\tc\n", ":1: found 2 tabs"), ("a\tb\n\n", ":2: found 0 tabs"),
    ("a\t \n", ":1: the target is empty"), ("\tb\n", ":1: the source is empty"),
    ("", ": the file is empty, but must contain sentence pairs"),
])  # fmt: skip
def test_a_malformed_line_is_named(tmp_path, content, expected):
    file = tmp_path / "pairs"
    file.write_text(content)
    with pytest.raises(UnreadableError) as caught:
        read_pairs(PairText(file))
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
