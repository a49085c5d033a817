"""Byte-pair encoding, trained once and kept."""

import io
import re

import pytest
import sentencepiece

from launcher.core.errors import UnreadableError, UsageError
from launcher.recipes.transformer.tokenizer_file import check_tokenizer
from launcher.trainer.data.tokenizer import Tokenizer, obtain_tokenizer, train_tokenizer
from launcher.trainer.model.transformer import BEGIN, END, PAD, UNKNOWN

SENTENCES = ["le chat noir dort", "the black cat sleeps", "où est l'école ?", "where is the school?"] * 5


@pytest.fixture(scope="module", name="tokenizer")
def _tokenizer():
    return Tokenizer(train_tokenizer(SENTENCES, 320))


@pytest.mark.parametrize(
    "text", ["le chat noir dort", "où est l'école ?", "日本語 never seen", "½ ﬁn № x²", "a\xa0!  b…", " A\x07"]
)
def test_text_survives_encoding_and_decoding(tokenizer, text):
    [ids] = tokenizer.encode([text])
    assert tokenizer.decode([*ids, END, 9]) == text
    assert UNKNOWN not in ids
    assert not {PAD, BEGIN, END} & set(ids)


def test_a_small_corpus_yields_fewer_ids_than_asked_for():
    assert Tokenizer(train_tokenizer(SENTENCES, 20000)).size < 1000


def test_a_vocabulary_too_small_for_the_characters_is_refused():
    with pytest.raises(UsageError, match=r"model\.vocabulary_size = 50") as error:
        train_tokenizer(SENTENCES, 50)
    needed = int(re.search(r"--set model\.vocabulary_size=(\d+)", error.value.hint)[1])
    assert Tokenizer(train_tokenizer(SENTENCES, needed)).size == needed
    with pytest.raises(UsageError, match=f"needs {needed} ids"):
        train_tokenizer(SENTENCES, needed - 1)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TLAUNCH_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_cache_is_keyed_by_content(cache):
    def obtain(digest, vocabulary_size):
        return obtain_tokenizer(lambda: SENTENCES, digest=digest, vocabulary_size=vocabulary_size)

    first, kept_at = obtain("a", 320)
    obtain("a", 321)
    obtain("b", 320)
    marked = train_tokenizer(SENTENCES, 322)
    kept_at.write_bytes(marked)
    again, _ = obtain("a", 320)
    assert first == train_tokenizer(SENTENCES, 320)
    assert again == marked
    assert len(list(cache.iterdir())) == 3


@pytest.mark.parametrize("size", [100, 0], ids=["cut", "empty"])
@pytest.mark.usefixtures("cache")
def test_a_damaged_tokenizer_is_trained_again(size, capfd):
    first, kept_at = obtain_tokenizer(lambda: SENTENCES, digest="a", vocabulary_size=320)
    kept_at.write_bytes(first[:size])
    assert obtain_tokenizer(lambda: SENTENCES, digest="a", vocabulary_size=320) == (first, kept_at)
    assert kept_at.read_bytes() == first
    assert f"{kept_at} is damaged and is not used" in capfd.readouterr().out


def test_long_lines_are_learnt_from(tmp_path):
    assert Tokenizer(train_tokenizer(["le chat noir dort " * 400] * 2, 320)).size > 260


def trained_elsewhere(**ids):
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_writer=written,
        vocab_size=60,
        hard_vocab_limit=False,
        minloglevel=2,
        **ids,
    )
    return written.getvalue()


OURS = {"pad_id": PAD, "unk_id": UNKNOWN, "bos_id": BEGIN, "eos_id": END}


def test_a_tokenizer_of_other_tools_serves_if_its_ids_do(tmp_path):
    path = tmp_path / "spm.model"
    path.write_bytes(trained_elsewhere(**OURS, eos_piece="<end>"))
    size = Tokenizer(path.read_bytes()).size
    check_tokenizer(path, size)
    with pytest.raises(UsageError, match=f"has {size} tokens, but model.vocabulary_size = {size - 1}") as error:
        check_tokenizer(path, size - 1)
    assert f"--set model.vocabulary_size={size}" in error.value.hint


@pytest.mark.parametrize(("ids", "told"), [
    ({}, "pad = -1, unk = 0, bos = 1, eos = 2, but the Transformer needs pad = 0, unk = 1, bos = 2, eos = 3"),
    ({**OURS, "bos_id": -1, "eos_id": 2}, "bos = -1, eos = 2"),
])  # fmt: skip
def test_a_tokenizer_with_other_special_ids_is_refused(tmp_path, ids, told):
    path = tmp_path / "spm.model"
    path.write_bytes(trained_elsewhere(**ids))
    with pytest.raises(UsageError) as error:
        check_tokenizer(path, 1000)
    assert told in error.value.message
    assert "--pad_id=0 --unk_id=1 --bos_id=2 --eos_id=3" in error.value.hint


@pytest.mark.parametrize("content", [None, b"", b"text", b"\x0a\xff\xff", trained_elsewhere(**OURS)[:-200]])
def test_what_is_not_a_tokenizer_is_refused(tmp_path, content):
    path = tmp_path / "spm.model"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UnreadableError, match="No such file" if content is None else "not a sentencepiece model"):
        check_tokenizer(path, 1000)
