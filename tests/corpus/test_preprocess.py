"""Make files of sentence pairs from files of two languages."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from launcher.core.errors import RefusedError, UsageError
from launcher.corpus.dataset import PairText, read_pairs
from launcher.corpus.preprocess import preprocess

MULTI30K = Path(__file__).resolve().parents[3] / "shared" / "corpus" / "multi30k"


@pytest.fixture
def run(tmp_path):
    """Preprocess two contents under the given names; returns the record and the pairs."""

    def preprocessed(source, target, *, names=("in.fr", "in.en"), languages=("fr", "en"), **options):
        files = [tmp_path / name for name in names]
        for file, content in zip(files, (source, target), strict=True):
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
        output = tmp_path / "out"
        result = preprocess(source=files[0], target=files[1], output=output, languages=languages, **options)
        return result, read_pairs(PairText(result.written))

    return preprocessed


def sgm(segments, header="<refset setid='s'>"):
    docs = {}
    for (doc, seg), text in segments.items():
        docs.setdefault(doc, []).append(f"<seg id='{seg}'>{text}</seg>\n")
    return header + "".join(f"<doc docid='{doc}'>\n{''.join(lines)}</doc>\n" for doc, lines in docs.items())


SGM = ("in.fr.sgm", "in.en.sgm")


def test_sgm_pairs_go_by_doc_and_segment_not_by_line(run):
    fr = sgm({("d1", "1"): "un", ("d1", "2"): "deux", ("d2", "1"): "trois"})
    en = sgm({("d2", "1"): "three", ("d1", "2"): "two", ("d1", "1"): "one"})
    result, pairs = run(fr, en, names=SGM)
    assert pairs == [("un", "one"), ("deux", "two"), ("trois", "three")]
    assert (result.kept, dict(result.dropped), result.warnings) == (3, {}, ())


def test_every_reason_is_counted(run):
    fr = "un\nun\n \nseul\nbeaucoup de mots ici\nun\t \tdeux\n"
    en = "one\none\nempty\n\nmany\none two\n"
    result, pairs = run(fr, en, max_words=3)
    assert pairs == [("un", "one"), ("un deux", "one two")]
    assert dict(result.dropped) == {"duplicate": 1, "empty side": 2, "longer than 3 words": 1}
    assert str(result) == "kept 2 of 6 pairs; dropped: 1 duplicate, 2 empty side, 1 longer than 3 words"


@pytest.mark.parametrize("split", ["valid", "test"])
def test_validation_and_test_sets_keep_repetitions(run, split):
    result, pairs = run("oui\noui\n", "yes\nyes\n", split=split)
    assert pairs == [("oui", "yes")] * 2
    assert result.written.name == f"fr_en.{split}.txt"


@pytest.mark.parametrize(("names", "languages", "written"), [
    (("train.de.gz", "train.zh_TW.txt"), ("", ""), "de_zh-TW.txt"),
    (("in.fr", "in.en"), ("", "fi"), "fr_fi.txt"),
    (("a", "b"), ("hsb", "de"), "hsb_de.txt"),
])  # fmt: skip
def test_the_file_is_named_after_the_languages(run, names, languages, written):
    result, pairs = run("un\ndeux\n", gzip.compress(b"one\ntwo\n"), names=names, languages=languages)
    assert (result.written.name, pairs) == (written, [("un", "one"), ("deux", "two")])


@pytest.mark.parametrize(("languages", "message"), [
    (("", ""), "the language of .*/in.train is unknown"),
    (("de", "english"), "--target-language is english, which is not a language code"),
    (("de", "../x"), "is not a language code"),
])  # fmt: skip
def test_unknown_languages_are_refused(run, languages, message):
    with pytest.raises(UsageError, match=message):
        run("un\n", "one\n", names=("in.train", "in.en"), languages=languages)


@pytest.mark.parametrize(("fr_lines", "en_lines"), [(3, 5), (7, 2), (0, 1)])
def test_unequal_line_counts_are_both_told(run, tmp_path, fr_lines, en_lines):
    with pytest.raises(UsageError) as caught:
        run("mot\n" * fr_lines, "word\n" * en_lines)
    assert f"in.fr has {fr_lines} lines, but " in caught.value.message
    assert f"in.en has {en_lines}" in caught.value.message
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(("fr", "en", "names", "message"), [
    # One .sgm and one plain text cannot be matched.
    ("x\n", "y\n", ("a.sgm", "b.en"), r"a\.sgm is an \.sgm file, but "),
    ("x\n", "y\n", ("a.txt", "b.SGM.gz"), r"b\.SGM\.gz is an \.sgm file, but "),
    # A corpus that translates nothing is not made.
    ("x\n", "x\n", ("a", "a"), "are the same file"),
    # An .sgm file that is named .txt would otherwise train on its tags.
    ("<refset setid='x'>\n<seg id=1>x</seg>\n", "a\nb\n", ("a", "b"), ":1: expected plain text, found markup"),
])  # fmt: skip
def test_files_that_cannot_be_a_pair_are_refused(run, fr, en, names, message):
    with pytest.raises(UsageError, match=message) as caught:
        run(fr, en, names=names)
    assert (".sgm" in (caught.value.hint or "")) is (fr != en)


@pytest.mark.parametrize(("fr_header", "en_header", "warnings"), [
    ("<srcset setid='s' srclang='French'>", "<refset setid='s' trglang='en-GB'>", []),
    ("<refset setid='s' trglang='any'>", "<refset>", []),
    (
        "<refset setid='s' trglang='en'>",
        "<srcset setid='s' srclang='de'>",
        ["states the language en, but it is used as fr", "states the language de, but it is used as en"],
    ),
    ("<refset setid='newstest2013'>", "<refset setid='newstest2014'>", ["belongs to set newstest2013, but "]),
])  # fmt: skip
def test_what_files_say_about_themselves_is_compared_with_the_options(run, fr_header, en_header, warnings):
    segments = {("d", "1"): "x"}
    result, _ = run(sgm(segments, fr_header), sgm(segments, en_header), names=SGM)
    assert len(result.warnings) == len(warnings)
    assert all(expected in warning for expected, warning in zip(warnings, result.warnings, strict=True))


def test_no_pair_left_is_refused_with_the_reasons(run, tmp_path):
    with pytest.raises(RefusedError, match="none of 2 pairs is left: 2 missing partner"):
        run(sgm({("d", "1"): "x"}), sgm({("e", "1"): "y"}), names=SGM)
    with pytest.raises(RefusedError, match="both files are empty"):
        run("", "")
    assert list((tmp_path / "out").iterdir()) == []


def test_files_that_exist_are_kept_unless_forced(run):
    result, _ = run("un\n", "one\n")
    with pytest.raises(UsageError) as caught:
        run("deux\n", "two\n")
    assert caught.value.message.endswith("fr_en.txt already exists")
    assert "--force" in caught.value.hint
    assert read_pairs(PairText(result.written)) == [("un", "one")]
    assert run("deux\n", "two\n", force=True)[1] == [("deux", "two")]


@pytest.mark.skipif(not MULTI30K.is_dir(), reason=f"real text is not at {MULTI30K}")
@pytest.mark.parametrize(("stem", "split", "read", "dropped"), [
    ("train", "train", 29_000, {"duplicate": 5}),
    ("val", "valid", 1_014, {}),
    ("test_2016_flickr", "test", 1_000, {}),
])  # fmt: skip
def test_multi30k(tmp_path, stem, split, read, dropped):
    files = [MULTI30K / f"{stem}.{language}.gz" for language in ("fr", "en")]
    result = preprocess(source=files[0], target=files[1], output=tmp_path, split=split)
    pairs = read_pairs(PairText(result.written))
    assert (result.kept, dict(result.dropped)) == (read - sum(dropped.values()), dropped)
    last = [gzip.decompress(file.read_bytes()).decode().splitlines()[-1].split() for file in files]
    assert [side.split() for side in pairs[-1]] == last
