"""Read lines of text files with gzip, byte order marks, wrong encodings and unusual spaces."""

from __future__ import annotations

import gzip
import os
import threading

import pytest

from launcher.core.errors import UnreadableError
from launcher.corpus.text_files import normalised, read_lines


def test_gzip_is_recognised_by_content_whatever_the_name(tmp_path):
    packed, plain = tmp_path / "packed.txt", tmp_path / "plain.gz"
    packed.write_bytes(gzip.compress(b"un\ndeux\n"))
    plain.write_text("un\ndeux\n")
    assert list(read_lines(packed)) == list(read_lines(plain)) == ["un", "deux"]


def test_only_newlines_end_lines(tmp_path):
    file = tmp_path / "odd"
    file.write_bytes("\ufeffa\u2028b\x85c\x0bd\r\nlast".encode())
    assert list(read_lines(file)) == ["a\u2028b\x85c\x0bd", "last"]


def test_a_pipe_can_be_read(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(gzip.compress(b"one\ntwo\n"),))
    writer.start()
    assert list(read_lines(pipe)) == ["one", "two"]
    writer.join()


@pytest.mark.parametrize(("content", "where", "hint"), [
    ("bon\nété\n".encode("latin-1"), ":2: not UTF-8: byte 0xe9 at position 1", "iconv -f ISO-8859-1"),
    ("bon\n".encode("utf-16"), ":1: not UTF-8: byte 0xff at position 1", "iconv -f UTF-16"),
])  # fmt: skip
def test_a_wrong_encoding_names_line_and_byte(tmp_path, content, where, hint):
    file = tmp_path / "wrong"
    file.write_bytes(content)
    with pytest.raises(UnreadableError) as caught:
        list(read_lines(file))
    assert f"{file}{where}" in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("size", "reason"), [(60, "odd: cannot be read"), (5, "odd: cannot be read"), (0, "No such file")]
)
def test_what_is_cut_off_or_missing_is_an_error(tmp_path, size, reason):
    if size:
        (tmp_path / "odd").write_bytes(gzip.compress(os.urandom(1000).hex().encode())[:size])
    with pytest.raises(UnreadableError, match=reason):
        list(read_lines(tmp_path / "odd"))
    with pytest.raises(UnreadableError, match="directory"):
        list(read_lines(tmp_path))


@pytest.mark.parametrize(("raw", "clean"), [
    ("  a \t b\n\nc ", "a b c"),
    ("e\u0301te\u0301", "\u00e9t\u00e9"),  # composed
    ("Quoi\u00a0? Oui\u202f!", "Quoi ? Oui !"), ("a\x00b\x1fc\x85d\u2028e", "a b c d e"), ("", ""),
    ("\ufeffle\u200b chat\u2060", "le chat"), ("\u200b", ""), ("\u200d \u00ad", ""),  # nothing that shows
    ("\u0645\u06cc\u200c\u062e", "\u0645\u06cc\u200c\u062e"),  # a joiner within a word has a meaning
])  # fmt: skip
def test_normalised(raw, clean):
    assert normalised(raw) == clean


@pytest.mark.parametrize(
    "raw", ["e\u0361\ufeff\u0353", "\u0369\u200b\u0324x", "\u2068\x93", "\ufeff\u206c\x87", "e\u200b\u0301"]
)
def test_text_that_is_normalised_stays_as_it_is(raw):
    """A prepared corpus is normalised once more in training; `translate` does it once."""
    assert normalised(normalised(raw)) == normalised(raw)
