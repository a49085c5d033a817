"""Byte-pair encoding with sentencepiece: one vocabulary for both languages, trained once per corpus and cached."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import sentencepiece

from launcher.core.atomic import replacing
from launcher.core.errors import UsageError
from launcher.core.resources import cache_dir, writable_cache_dir
from launcher.trainer.model.transformer import BEGIN, END, PAD, UNKNOWN

RECIPE = "bpe-2"  # part of the cached file's name; change it when the training below changes
MAX_SENTENCE_BYTES = 1 << 20  # sentencepiece's default would skip sentences of more than 4192 bytes


class Tokenizer:
    """A sentencepiece tokenizer. `serialized` is the content of its model file."""

    def __init__(self, serialized: bytes) -> None:
        self.serialized = serialized
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=serialized)

    @property
    def size(self) -> int:
        """The number of token ids, which is at most the requested vocabulary size."""
        return int(self._processor.vocab_size())

    @property
    def pieces(self) -> list[str]:
        """The text of each token id."""
        return [self._processor.id_to_piece(number) for number in range(self.size)]

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """Return the ids of each sentence, without BEGIN and END."""
        return self._processor.encode(list(sentences), num_threads=1)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids` up to the first END, without PAD and BEGIN."""
        words = list(ids)
        if END in words:
            words = words[: words.index(END)]
        return self._processor.decode([token for token in words if token not in (PAD, BEGIN)])


def obtain_tokenizer(
    sentences: Callable[[], Iterable[str]], *, digest: str, vocabulary_size: int
) -> tuple[bytes, Path]:
    """Return a tokenizer for `sentences`, and the path of its file. Train the tokenizer only if it is not cached.

    `sentences` is only called to train. `digest` identifies the sentences. The file's name contains it and all other
    inputs of the training, so the cache is never stale.

    Raises:
        UsageError: the vocabulary is too small for the corpus's characters.
        UnreadableError: the user's cache directory is not writable.
    """
    key = hashlib.sha256(f"{RECIPE}/{sentencepiece.__version__}/{vocabulary_size}/{digest}".encode())
    path = cache_dir() / f"tokenizer-{key.hexdigest()[:16]}.model"
    if path.is_file():
        serialized = path.read_bytes()
        try:
            load_tokenizer(serialized)
        except ValueError:
            print(f"{path} is damaged and is not used", flush=True)
        else:
            return serialized, path
    writable_cache_dir()  # checked before the training, which may take minutes
    serialized = train_tokenizer(sentences(), vocabulary_size)
    with replacing(path) as aside:
        aside.write_bytes(serialized)
    return serialized, path


def load_tokenizer(serialized: bytes) -> Tokenizer:
    """Load a tokenizer from the content of its file. Raise ValueError if the content is invalid."""
    if not serialized:  # sentencepiece accepts it
        raise ValueError("the file is empty")
    try:
        return Tokenizer(serialized)
    except RuntimeError as error:  # raised by sentencepiece
        raise ValueError(str(error)) from error


def train_tokenizer(sentences: Iterable[str], vocabulary_size: int) -> bytes:
    """Train a byte-pair encoding with at most `vocabulary_size` ids. A small corpus may yield fewer.

    Characters that do not occur in the corpus are encoded as bytes, so any text can be encoded and decoded again.
    """
    written = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=written,
            model_type="bpe",
            vocab_size=vocabulary_size,
            hard_vocab_limit=False,
            byte_fallback=True,
            character_coverage=1.0,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            max_sentence_length=MAX_SENTENCE_BYTES,
            pad_id=PAD,
            unk_id=UNKNOWN,
            bos_id=BEGIN,
            eos_id=END,
            num_threads=1,
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        if (needed := re.search(r"required_chars\. \d+ vs (\d+)", str(error))) is not None:
            raise UsageError(
                f"model.vocabulary_size = {vocabulary_size} is too small: the text needs {needed[1]} ids, one for each "
                "distinct character and 260 others",
                hint=f"use `--set model.vocabulary_size={needed[1]}` or more",
            ) from error
        raise UsageError(
            f"cannot train a tokenizer with model.vocabulary_size = {vocabulary_size}: {error}",
            hint="use a larger `--set model.vocabulary_size=N`: 260 ids are reserved, and each distinct character needs one id",
        ) from error
    return written.getvalue()
