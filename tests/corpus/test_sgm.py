"""Read `.sgm` files with each of their quirks, in the smallest file that has it."""

from __future__ import annotations

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.core.errors import UnreadableError
from launcher.corpus.sgm import read_sgm
from launcher.corpus.text_files import normalised


@pytest.fixture
def read(tmp_path):
    """Return a function that writes a text to an `.sgm` file and reads it."""

    def read_text(body):
        file = tmp_path / "set.sgm"
        file.write_bytes(body if isinstance(body, bytes) else body.encode())
        return read_sgm(file)

    return read_text


def texts(sgm):
    return {key: segment.text for key, segment in sgm.segments.items()}


WMT = """<refset setid="newstest2014" srclang="any" trglang="fr">
<doc sysid="ref" docid="lemonde/1" genre="news" origlang="fr">
<hl>
<seg id="1">Un titre</seg>
</hl>
<p>
<seg id="2">Première phrase.</seg>
<seg id="3">Seconde.</seg>
</p>
</doc>
<doc sysid="ref" docid="lemonde/2" genre="news" origlang="en">
<p>
<seg id="1">Autre doc.</seg>
</p>
</doc>
</refset>
"""


def test_a_wmt_file_as_it_is(read):
    sgm = read(WMT)
    assert [(key, segment.text, segment.line) for key, segment in sgm.segments.items()] == [
        (("lemonde/1", "1"), "Un titre", 4),
        (("lemonde/1", "2"), "Première phrase.", 7),
        (("lemonde/1", "3"), "Seconde.", 8),
        (("lemonde/2", "1"), "Autre doc.", 13),
    ]
    assert (sgm.language, sgm.set_id) == ("fr", "newstest2014")
    assert read(gzip.compress(WMT.encode())) == sgm


@pytest.mark.parametrize(("header", "language"), [
    ('<srcset setid="x" srclang="fr">', "fr"),
    ('<refset setid="x" srclang="fr" trglang="en">', "en"),
    ('<tstset trglang="French" srclang="English">', "French"),
    ('<srcset setid="x" srclang="any">', None),
    ("", None),
])  # fmt: skip
def test_the_language_is_that_of_the_text(read, header, language):
    """A source set is in `srclang`, references and translations in `trglang`; "any" says nothing."""
    assert read(f"{header}<doc docid='d'><seg id=1>x</seg></doc>").language == language


@pytest.mark.parametrize(("inside", "text"), [
    ("Tom &amp; Jerry", "Tom & Jerry"),
    ("a &lt; b &gt; c", "a < b > c"),
    ("&quot;oui&quot; l&apos;ami", '"oui" l\'ami'),
    ("caf&#233; caf&#xE9; caf&eacute;", "café café café"),
    ("AT&T R&D Q&A", "AT&T R&D Q&A"),
    ("a &unknown; b &", "a &unknown; b &"),
    ("&copy 2014 &notit;", "&copy 2014 &notit;"),
    ("&amp;quot;", "&quot;"),  # resolved once
    ("1 < 2 and a <b c", "1 < 2 and a <b c"),
    ("x <b and c> y", "x <b and c> y"),
    ("<b>fort</b> et <font color='red'>rouge</font>", "fort et rouge"),
    ("&lt;b&gt;", "<b>"),
    ("avant<!-- <seg id='9'>no</seg> -->apres", "avant apres"),
    ("\n   deux\n\tlignes  \n", "deux lignes"),
    ("un&#10;deux&#9;trois&nbsp;!", "un deux trois !"),
    ("", ""),
    ("日本 🙂", "日本 🙂"),
])  # fmt: skip
def test_what_stands_in_a_segment(read, inside, text):
    assert texts(read(f'<doc docid="d"><seg id="1">{inside}</seg></doc>')) == {("d", "1"): text}


@pytest.mark.parametrize("tag", [
    '<seg id="7">', "<seg id='7'>", "<seg id=7>", '<SEG ID="7">', '<Seg Id = "7" >', '<seg\n  id="7"\n>',
    '<seg lang="fr" id="7" note="a > b">', '<seg id=" 7 ">',
])  # fmt: skip
def test_how_a_tag_may_be_written(read, tag):
    assert texts(read(f'<DOC sysid="x" docid="a&amp;b">{tag}mot</SEG ></DOC>')) == {("a&b", "7"): "mot"}


@pytest.mark.parametrize(("body", "expected"), [
    # Docs and segments without an id go by their place, so that both languages still meet.
    ("<doc><seg>a</seg><seg>b</seg></doc><doc><seg>c</seg></doc>",
     {("#1", "#1"): "a", ("#1", "#2"): "b", ("#2", "#1"): "c"}),
    # What is commented out is not read, nor a declaration before the set.
    ("<?xml version='1.0'?><!DOCTYPE mteval>\n<!-- <seg id=1>no</seg> --><doc docid=d><seg id=1>yes</seg></doc>",
     {("d", "1"): "yes"}),
])  # fmt: skip
def test_which_segments_there_are(read, body, expected):
    assert texts(read(body)) == expected


@pytest.mark.parametrize(("body", "expected"), [
    ("line one\nline two", "2: reached the end of the file, but found no <seg>"),
    ("", "1: reached the end of the file, but found no <seg>"),
    ("<doc docid=d>\n<seg id=1>a</seg>\n<seg id=1>b</seg></doc>", "3: doc d has a second seg 1; the first is on line 2"),
    ("<doc docid=d>\n\n<seg id=4>never", "3: <seg> 4 is never closed"),
    ("<doc docid=d>\n<seg id=1>a\n<seg id=2>b</seg>", "3: expected </seg> for seg 1 (opened on line 2), found <seg id=2>"),
    ("<doc docid=d>\n<seg id=1>a\n</doc>", "3: expected </seg> for seg 1 (opened on line 2), found </doc>"),
    ("<doc docid=d>\n</seg>", "2: </seg> closes a segment that was never opened"),
    ('<doc docid=d>\n<seg id="1>a</seg>\n<seg id=2>b</seg>', "2: <seg starts a malformed tag"),
    ("<doc docid=d>\n<seg id=1>a</seg", "2: </seg starts a malformed tag"),
    ("<doc docid=d>\n<seg id=1>été</seg></doc>".encode("latin-1"), "2: not UTF-8: byte 0xe9"),
])  # fmt: skip
def test_errors_carry_the_line(read, tmp_path, body, expected):
    with pytest.raises(UnreadableError) as caught:
        read(body)
    assert str(caught.value).startswith(f"{tmp_path / 'set.sgm'}:{expected}")


@given(st.lists(st.text(st.characters(blacklist_categories=["Cs"]), max_size=30), min_size=1, max_size=8))
def test_escaped_text_comes_back(tmp_path_factory, texts):
    file = tmp_path_factory.mktemp("sgm") / "set.sgm"
    segments = [
        f'<seg id="{index}">{text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")}</seg>'
        for index, text in enumerate(texts)
    ]
    file.write_text(f'<doc docid="d">{"".join(segments)}</doc>', encoding="utf-8", newline="\n")
    assert [segment.text for segment in read_sgm(file).segments.values()] == [normalised(text) for text in texts]
