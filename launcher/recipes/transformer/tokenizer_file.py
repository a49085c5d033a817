"""Check a tokenizer file without the package sentencepiece, which the launcher does not import.

The file is a protocol buffer (sentencepiece_model.proto). Its pieces are in the order of their token ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from launcher.core.errors import UnreadableError, UsageError
from launcher.core.regular_files import read_regular
from launcher.recipes.transformer.transformer_settings import TOKEN_IDS

MAX_BYTES = 256 << 20
PIECES, TRAINER = 1, 2  # fields of the model
TEXT = 1  # field of a piece
# Fields of the trainer with the text of each special piece, and their defaults.
SPECIAL = {"pad": (48, b"<pad>"), "unk": (45, b"<unk>"), "bos": (46, b"<s>"), "eos": (47, b"</s>")}
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # types of fields


def check_tokenizer(path: Path, vocabulary_size: int) -> None:
    """Raise an error if a sentencepiece model has other special ids than the Transformer, or too many tokens.

    Raises UnreadableError if the file is missing or not a sentencepiece model, and UsageError if it does not fit.
    """
    ids = " ".join(f"--{name}_id={number}" for name, number in TOKEN_IDS.items())
    try:
        pieces, found = _pieces_of(read_regular(path, MAX_BYTES))
    except OSError as error:
        raise UnreadableError(f"tokenizer {path}: {error.strerror}") from error
    except (ValueError, IndexError, KeyError):
        hint = f"use a file that `spm_train {ids}` wrote"
        raise UnreadableError(f"tokenizer {path}: this file is not a sentencepiece model", hint=hint) from None
    if found != TOKEN_IDS:
        theirs, ours = (", ".join(f"{name} = {each[name]}" for name in TOKEN_IDS) for each in (found, TOKEN_IDS))
        raise UsageError(
            f"tokenizer {path} has the ids {theirs}, but the Transformer needs {ours}",
            hint=f"train it with `spm_train {ids}`",
        )
    if pieces > vocabulary_size:
        raise UsageError(
            f"tokenizer {path} has {pieces} tokens, but model.vocabulary_size = {vocabulary_size}",
            hint=f"use `--set model.vocabulary_size={pieces}`",
        )


def _pieces_of(model: bytes) -> tuple[int, Mapping[str, int]]:
    """Return the number of pieces, and the id of each special piece, which is -1 if it is missing.

    Raises ValueError, IndexError or KeyError if the content is not a sentencepiece model.
    """
    fields = list(_fields(model))
    pieces = [dict(_fields(content))[TEXT] for number, content in fields if number == PIECES]
    trainer = dict(_fields(dict(fields)[TRAINER]))
    texts = {name: trainer.get(number, default) for name, (number, default) in SPECIAL.items()}
    return len(pieces), {name: pieces.index(text) if text in pieces else -1 for name, text in texts.items()}


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the content of each text or message in a protocol buffer. Numbers are skipped."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            _, at = _varint(message, at)
            continue
        size, at = _varint(message, at) if kind == BYTES else ({FIXED64: 8, FIXED32: 4}[kind], at)
        if at + size > len(message):
            raise ValueError("the message is cut off")
        if kind == BYTES:
            yield number, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the number at position `at`, which has seven bits per byte, and the position after it."""
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
