"""Token ids of a text, written once and found again."""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from launcher.core.errors import UnreadableError, UsageError
from launcher.core.resources import cache_dir
from launcher.corpus.dataset import PairText
from launcher.corpus.text_digest import read_text
from launcher.trainer.data import token_cache
from launcher.trainer.data.corpus import open_corpus, training_sentences
from launcher.trainer.data.token_cache import find_tokens, tokens_name, write_tokens
from launcher.trainer.data.tokenizer import Tokenizer, train_tokenizer
from launcher.trainer.data.tokens import tokenize
from launcher.trainer.model.transformer import END
from launcher.trainer.parallel.place import place_from_environment
from launcher.trainer.parallel.world import open_world

from .transformers import transformer_settings

PROGRAM = Path(__file__).parents[1] / "programs" / "write_tokens.py"
PAIRS = [
    (f"le chat numéro {number} dort", f"cat number {number} sleeps" + " well" * (number % 5)) for number in range(60)
]
CONFIG = transformer_settings("data.source_length=64", "data.target_length=64").data


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TLAUNCH_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module", name="tokenizer")
def _tokenizer():
    return Tokenizer(train_tokenizer([side for pair in PAIRS for side in pair], 340))


@pytest.fixture
def path(tmp_path):
    (tmp_path / "data").mkdir()
    return write_text(tmp_path / "data" / "pairs.tsv", PAIRS)


def write_text(path, pairs):
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8")
    os.utime(path, (1e9, 1e9))  # long ago
    return path


def obtain(path, tokenizer):
    """The pairs of the text, and the directory that they are kept in."""
    text = read_text(PairText(path))
    write_tokens(text, tokenizer)
    name = tokens_name(text.digest, tokenizer)
    return find_tokens(name), cache_dir() / name


def times(directory):
    return {file.name: file.stat().st_mtime_ns for file in directory.iterdir()}


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("chunk", [7, 10_000])
def test_what_was_written_is_what_tokenizing_gives(path, tokenizer, monkeypatch, packed, chunk):
    monkeypatch.setattr(token_cache, "CHUNK_PAIRS", chunk)
    if packed:
        path.write_bytes(gzip.compress(path.read_bytes()))
    stored, directory = obtain(path, tokenizer)
    pairs = stored.pairs(CONFIG)
    assert list(pairs) == list(tokenize(PAIRS, tokenizer, CONFIG))
    assert list(stored.index.target_counts) == pairs.target_counts(tokenizer.size).tolist()
    assert stored.index.target_counts[END] == len(PAIRS)
    assert sorted(file.name for file in directory.iterdir()) == ["bounds.bin", "ids.bin", "index.json"]
    assert not [file for file in directory.parent.iterdir() if file.name.startswith(".")]
    assert list(path.parent.iterdir()) == [path]


def test_two_files_and_a_reversed_file_give_the_same_ids(path, tokenizer, tmp_path):
    """Their digests differ, so that a training cannot resume in the other direction."""
    turned = write_text(tmp_path / "turned.tsv", [pair[::-1] for pair in PAIRS])
    for side, name in enumerate(("source", "target")):
        (tmp_path / name).write_text("".join(f"{pair[side]}\n" for pair in PAIRS))
    texts = [PairText(path), PairText(turned, is_reversed=True), PairText(tmp_path / "source", tmp_path / "target")]
    read = list(map(read_text, texts))
    for text in read:
        write_tokens(text, tokenizer)
        stored = find_tokens(tokens_name(text.digest, tokenizer))
        assert list(stored.pairs(CONFIG)) == list(tokenize(PAIRS, tokenizer, CONFIG))
    assert len({text.digest for text in (*read, read_text(PairText(turned)))}) == 4


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_progress_is_told_from_time_to_time(path, tokenizer, monkeypatch, capsys, packed):
    monkeypatch.setattr(token_cache, "CHUNK_PAIRS", 20)
    monkeypatch.setattr(token_cache, "TELL_S", 0)
    if packed:
        path.write_bytes(gzip.compress(path.read_bytes()))
    obtain(path, tokenizer)
    lines = capsys.readouterr().out.splitlines()
    told = [
        re.fullmatch(rf"encoding {re.escape(str(path))}: (\d+) pairs, (\d+)%, [\d,]+ pairs/s, \d+ s left", line)
        for line in lines
    ]
    assert [int(found[1]) for found in told] == [20, 40, 60]
    assert [int(found[2]) for found in told] == sorted(int(found[2]) for found in told)
    assert int(told[-1][2]) == 100


def test_lengths_cut_what_is_read_not_what_is_kept(path, tokenizer):
    stored, _ = obtain(path, tokenizer)
    short = transformer_settings("data.source_length=3", "data.target_length=2").data
    assert all(
        len(pair.source) == 3 and len(pair.target) == 2 and pair.target[-1] == END for pair in stored.pairs(short)
    )
    assert stored.pairs(short).cut_count() == len(PAIRS)
    assert stored.pairs(CONFIG).cut_count() == 0


def test_a_second_start_reads_neither_text_nor_tokens_again(path, tokenizer):
    """As long as size, time and inode of the text are the same, its digest is believed."""
    stored, directory = obtain(path, tokenizer)
    before = times(directory)
    path.write_bytes(bytes(path.stat().st_size))  # in place, of the same size
    os.utime(path, (1e9, 1e9))
    again, _ = obtain(path, tokenizer)
    assert list(again.pairs(CONFIG)) == list(stored.pairs(CONFIG))
    assert times(directory) == before


@pytest.mark.parametrize("change", ["text", "tokenizer"])
def test_another_text_or_tokenizer_has_its_own_ids(path, tokenizer, change):
    _, first = obtain(path, tokenizer)
    if change == "text":
        path.write_text("un\tone\n")
    else:
        tokenizer = Tokenizer(train_tokenizer(["un chat", "a cat"], 300))
    _, second = obtain(path, tokenizer)
    assert first != second
    assert first.is_dir()


def test_a_text_that_has_just_changed_is_read_again(path, cache):
    """It may change once more within a tick of the clock, and look the same: no digest is kept of it."""
    path.touch()
    read_text(PairText(path))
    assert not list(cache.glob("digest-*"))
    os.utime(path, (1e9, 1e9))
    read_text(PairText(path))
    assert len(list(cache.glob("digest-*"))) == 1


DAMAGES = {
    "truncated ids": lambda directory: os.truncate(directory / "ids.bin", 10),
    "truncated bounds": lambda directory: os.truncate(directory / "bounds.bin", 16),
    "no index": lambda directory: (directory / "index.json").unlink(),
    "half an index": lambda directory: os.truncate(directory / "index.json", 20),
    "an index of something else": lambda directory: (directory / "index.json").write_text("[1]"),
    "a strange type": lambda directory: edit(directory / "index.json", id_type="O"),
    "other counts": lambda directory: edit(directory / "index.json", pair_count=7),
    "no bounds": lambda directory: (directory / "bounds.bin").write_bytes(bytes(8 * (2 * len(PAIRS) + 1))),
}


def edit(path, **fields):
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_written_anew(path, tokenizer, damage, capsys):
    _, directory = obtain(path, tokenizer)
    DAMAGES[damage](directory)
    again, directory = obtain(path, tokenizer)
    [line] = capsys.readouterr().out.splitlines()
    assert list(again.pairs(CONFIG)) == list(tokenize(PAIRS, tokenizer, CONFIG))
    assert line.startswith(f"{directory} is damaged and is rewritten: ")


def test_a_cache_that_cannot_be_written_is_told(path, tokenizer, cache):
    cache.touch()
    with pytest.raises(UnreadableError, match=f"cannot use the cache directory {cache}: ") as told:
        write_tokens(read_text(PairText(path)), tokenizer)
    assert "TLAUNCH_CACHE_DIR" in told.value.hint


def test_a_disk_without_room_is_told(path, tokenizer, monkeypatch):
    monkeypatch.setattr(token_cache, "writable_cache_dir", lambda: Path("/dev/full"))
    with pytest.raises(UnreadableError, match="cannot store the token ids"):
        write_tokens(read_text(PairText(path)), tokenizer)


@pytest.mark.parametrize(
    ("content", "message"),
    [("a\tb\nno tab\n", ":2: found 0 tabs"), ("\n".encode("utf-16"), "not UTF-8"), ("", "the file is empty")],
)
def test_a_malformed_text_leaves_nothing(path, tokenizer, cache, content, message):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UnreadableError, match=message):
        write_tokens(read_text(PairText(path)), tokenizer)
    assert not [file for file in cache.iterdir() if "tokens" in file.name]


def test_of_two_processes_one_writes(path, tokenizer, tmp_path, cache):
    (tmp_path / "model").write_bytes(tokenizer.serialized)
    argv = [sys.executable, PROGRAM, path, tmp_path / "model"]
    both = [subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for process in both:
        assert process.stdout.readline() == "ready\n"
    for process in both:
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [process.communicate(timeout=120)[0].split() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sorted(wrote for wrote, _ in said) == ["False", "True"]
    assert {count for _, count in said} == {str(len(PAIRS))}
    assert sorted(file.name.partition("-")[0] for file in cache.iterdir()) == ["digest", "tokens"]


def test_what_a_killed_writer_has_left_is_removed(path, tokenizer):
    _, directory = obtain(path, tokenizer)
    left = directory.rename(directory.with_name(f".{directory.name}.abcd.partial"))
    other = directory.with_name(".tokens-of-another-text.abcd.partial")
    shutil.copytree(left, other)
    _, again = obtain(path, tokenizer)
    assert again.is_dir()
    assert other.is_dir()
    assert not left.exists()


def corpus_of(path, *settings, **options):
    chosen = transformer_settings("model.vocabulary_size=340", "train.batch_size=4", *settings)
    with open_world(place_from_environment({}, micro_batches=1), torch.device("cpu")) as world:
        return open_corpus(chosen, world, [path], **options)


def test_empty_and_long_pairs_are_told(path):
    write_text(path, [*PAIRS[:3], ("", "nothing"), *PAIRS[3:], ("rien", " "), ("un " * 40, "one")])
    corpus = corpus_of(path, "data.source_length=20")
    told = "\n".join(corpus.remarks)
    assert len(corpus.train) + len(corpus.valid) == len(PAIRS) + 1
    assert f"{path}: 2 pairs are left out because one side is empty; the first is in line 4" in told
    assert len(corpus.remarks) == 1  # the long one is held out
    corpus = corpus_of(path, "data.source_length=6")
    assert f"of {len(corpus.train)} training pairs are cut to data.source_length = 6 and" in corpus.remarks[1]


@pytest.mark.parametrize(("rows", "is_warned"), [(340, False), (2000, True)])
def test_a_vocabulary_out_of_proportion_to_the_text_is_warned_of(path, rows, is_warned):
    corpus = corpus_of(path, f"model.vocabulary_size={rows}")
    warnings = [line for line in corpus.remarks if line.startswith("warning: ")]
    assert [f"use --set model.vocabulary_size={corpus.tokenizer.size}" in line for line in warnings] == [
        True
    ] * is_warned
    if is_warned:  # but not if the size cannot change, or the tokenizer is given
        tokenizer = path.with_name("tokenizer.model")
        tokenizer.write_bytes(corpus.tokenizer.serialized)
        assert corpus_of(path, f"model.vocabulary_size={rows}", f"data.tokenizer={tokenizer}").remarks == []
        assert corpus_of(path, f"model.vocabulary_size={rows}", keeps_vocabulary=True).remarks == []


def test_without_a_split_the_last_pairs_are_held_out(path):
    write_text(path, [*PAIRS, ("ÉÉÉ çà", "ÄÄÄ"), ("çà ÉÉÉ", "ÄÄÄ ß"), ("ÉÉÉ", "ÄÄÄ")])
    corpus = corpus_of(path, "data.target_length=2")
    assert (len(corpus.train), len(corpus.valid)) == (len(PAIRS), 3)
    assert corpus.tokenizer.serialized == train_tokenizer([side for pair in PAIRS for side in pair], 340)
    assert corpus.target_counts.tolist() == corpus.train.uncut().target_counts(corpus.tokenizer.size).tolist()
    assert corpus.showcase == [("ÉÉÉ çà", "ÄÄÄ"), ("çà ÉÉÉ", "ÄÄÄ ß"), ("ÉÉÉ", "ÄÄÄ")]


@pytest.mark.parametrize(("pairs", "settings", "message"), [
    (PAIRS[:1], (), "the only sentence pair is held out"),
    (PAIRS[:4], (), "3 training pairs do not fill one batch of 4"),
    (PAIRS[:4], ("model.vocabulary_size=50",), "model.vocabulary_size = 50"),
])  # fmt: skip
def test_too_little_text_is_refused(path, pairs, settings, message):
    with pytest.raises(UsageError, match=message):
        corpus_of(write_text(path, pairs), *settings)


def test_the_tokenizer_of_a_huge_text_is_trained_on_a_part(path, monkeypatch, capsys):
    monkeypatch.setattr("launcher.trainer.data.corpus.MAX_TOKENIZER_PAIRS", 25)
    assert list(training_sentences(PairText(path), holds_out=True)) == [side for pair in PAIRS[:57:3] for side in pair]
    assert "one pair in 3 of the 57" in capsys.readouterr().out


def test_of_files_only_the_chosen_pairs_are_read(path, tokenizer, monkeypatch):
    whole = tokenize(PAIRS, tokenizer, CONFIG)
    pairs = obtain(path, tokenizer)[0].pairs(CONFIG)
    read, pread = [], os.pread
    monkeypatch.setattr(os, "pread", lambda descriptor, size, at: read.append(size) or pread(descriptor, size, at))
    chosen = pairs[10:].take(np.array([4, 5, 6, 0, 49, 1]))
    assert len(read) == 2 * 4
    assert list(chosen) == [whole[place] for place in (14, 15, 16, 10, 59, 11)]
    assert len(read) == 2 * 4  # they lie in memory now
    assert [pairs[59], *pairs[3:5]] == [whole[59], whole[3], whole[4]]
    assert sum(read[4:8]) // 2 == sum(len(pair.source) + len(pair.target) for pair in chosen)
    assert [side.tolist() for side in pairs.padded()] == [side.tolist() for side in whole.padded()]
    assert sum(len(chunk) for chunk in pairs.in_chunks(16)) == len(PAIRS)
