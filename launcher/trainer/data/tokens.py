"""Sentence pairs as token ids: one flat array of all sentences, in memory or in a file, and selections of pairs.

A directory holds the pairs of one text (written by `token_cache.py`):

    ids.bin      ids of source 0, target 0, source 1, target 1, ..., each full sentence with END; little-endian
    bounds.bin   int64, little-endian: the start of each sentence, and finally the end of the last
    index.json   the number of pairs and ids, and counts made during the encoding

Shapes: B pairs, T positions of the longest sentence.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from launcher.core.codec import decode, read_json
from launcher.core.frozen import frozen
from launcher.core.regular_files import open_regular
from launcher.recipes.transformer.transformer_settings import DataConfig
from launcher.trainer.data.tokenizer import Tokenizer
from launcher.trainer.model.transformer import END, PAD

IDS, BOUNDS, INDEX = "ids.bin", "bounds.bin", "index.json"
BOUND = np.dtype("<i8")
ID_TYPES = ("<u2", "<u4")  # the smallest that fits is used
UNCUT = (sys.maxsize, sys.maxsize)  # maximum tokens of source and target
CHUNK_PAIRS = 65_536  # processed together in a pass over all pairs

Integers = NDArray[np.integer[Any]]


@frozen
class Example:
    source: list[int]  # ends with END
    target: list[int]  # ends with END


class FileArray:
    """An array in a file. Its slices are read on demand.

    A memory map would charge this process with page cache, up to 2 MB per accessed position: 391 MB after 256 random
    reads on Linux 6.18. Some network file systems do not support maps well.
    """

    def __init__(self, path: Path, item: np.dtype[Any], count: int) -> None:
        """Open the file. Raise OSError if that fails, or ValueError if it does not contain `count` items."""
        self._descriptor, self._item, self._count = open_regular(path), item, count
        weakref.finalize(self, os.close, self._descriptor)
        found, expected = os.fstat(self._descriptor).st_size, count * item.itemsize
        if found != expected:
            raise ValueError(f"{path.name} has {found} bytes, not {expected}")

    def __getitem__(self, part: slice) -> Integers:
        start, stop, _ = part.indices(self._count)
        size = self._item.itemsize
        content = os.pread(self._descriptor, (stop - start) * size, start * size)
        return np.frombuffer(content, self._item, stop - start)  # raises ValueError if the file was truncated


@frozen
class TokenArrays:
    """Token ids of pairs. Sentence k is ids[bounds[k] : bounds[k + 1]]. Pair i has sentences 2 * i and 2 * i + 1.

    Invariant: both arrays are in memory, or both in files.
    """

    ids: Integers | FileArray
    bounds: Integers | FileArray

    def read(self, numbers: Integers) -> TokenArrays:
        """Load the pairs with the given numbers into memory. Consecutive pairs are read together."""
        runs = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
        bounds = [self.bounds[2 * int(run[0]) : 2 * int(run[-1]) + 3] for run in runs]
        ids = [self.ids[int(each[0]) : int(each[-1])] for each in bounds]
        return TokenArrays(np.concatenate(ids), _bounds_of(np.concatenate([np.diff(each) for each in bounds])))


class TokenizedPairs(Sequence[Example]):
    """Selected pairs of `TokenArrays`, with each side truncated to a maximum length. Slices share the arrays."""

    def __init__(self, arrays: TokenArrays, numbers: range | Integers, lengths: tuple[int, int]) -> None:
        """Select the pairs with the given `numbers`: a range with step 1, or any numbers if the arrays are in memory.

        `lengths` is the maximum number of tokens of source and target, including END.
        """
        self._arrays, self._numbers, self._limits = arrays, numbers, lengths

    @classmethod
    def of(cls, examples: Sequence[Example]) -> TokenizedPairs:
        """Create tokenized pairs from `examples` without truncating them."""
        if isinstance(examples, cls):
            return examples
        arrays = TokenArrays(*flattened([side for example in examples for side in (example.source, example.target)]))
        return cls(arrays, range(len(examples)), UNCUT)

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> TokenizedPairs: ...
    def __getitem__(self, index: int | slice) -> Example | TokenizedPairs:
        if isinstance(index, slice):
            return TokenizedPairs(self._arrays, self._numbers[index], self._limits)
        sides: list[list[int]] = []
        for sentence, limit in enumerate(self._limits, start=2 * int(self._numbers[index])):
            start, end = map(int, self._arrays.bounds[sentence : sentence + 2])
            ids = self._arrays.ids[start:end].tolist()
            sides.append(ids if len(ids) <= limit else [*ids[: limit - 1], END])
        return Example(*sides)

    def take(self, places: Integers) -> TokenizedPairs:
        """Load the pairs at the given positions into memory, in the given order."""
        numbers = places + self._numbers.start if isinstance(self._numbers, range) else self._numbers[places]
        if isinstance(self._arrays.ids, FileArray):
            return TokenizedPairs(self._arrays.read(numbers), range(len(numbers)), self._limits)
        return TokenizedPairs(self._arrays, numbers, self._limits)

    def in_memory(self) -> TokenizedPairs:
        return self.take(np.arange(len(self))) if isinstance(self._arrays.ids, FileArray) else self

    def in_chunks(self, size: int = CHUNK_PAIRS) -> Iterator[TokenizedPairs]:
        for start in range(0, len(self), size):
            yield self[start : start + size]

    def lengths(self) -> tuple[Integers, Integers]:
        """Return the numbers of source and target tokens of each pair after truncation, including END."""
        source_B, target_B = (
            np.minimum(uncut_B, limit) for uncut_B, limit in zip(self._uncut(), self._limits, strict=True)
        )
        return source_B, target_B

    def cut_count(self) -> int:
        """Return the number of pairs with at least one truncated side."""
        source_B, target_B = self._uncut()
        return int(np.count_nonzero((source_B > self._limits[0]) | (target_B > self._limits[1])))

    def padded(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the source ids and the target ids as two arrays. Each array is padded to its longest sentence."""
        if isinstance(self._arrays.ids, FileArray):
            return self.in_memory().padded()
        ids, bounds = self._loaded()
        padded = []
        for side, length_B in enumerate(self.lengths()):
            position_T = np.arange(length_B.max())
            is_token_BT = position_T < length_B[:, None]
            place_BT = bounds[2 * np.asarray(self._numbers) + side][:, None] + position_T
            ids_BT = np.where(is_token_BT, ids[np.where(is_token_BT, place_BT, 0)], PAD).astype(np.int64)
            ids_BT[np.arange(len(length_B)), length_B - 1] = END  # also in truncated sentences
            padded.append(ids_BT)
        return padded[0], padded[1]

    def target_counts(self, vocabulary_size: int) -> NDArray[np.int64]:
        """Return how often each id below `vocabulary_size` occurs in the targets."""
        counts = np.zeros(vocabulary_size, np.int64)
        for chunk in self.in_chunks(1024):  # padded ids need much more memory than lengths
            _, target_BT = chunk.padded()
            counts += np.bincount(target_BT[target_BT != PAD], minlength=vocabulary_size)
        return counts

    def uncut(self) -> TokenizedPairs:
        return TokenizedPairs(self._arrays, self._numbers, UNCUT)

    def _uncut(self) -> tuple[Integers, Integers]:
        if isinstance(self._numbers, range):
            bounds = self._arrays.bounds[2 * self._numbers.start : 2 * self._numbers.stop + 1]
            lengths_B2 = np.diff(bounds).reshape(-1, 2)
            return lengths_B2[:, 0], lengths_B2[:, 1]
        _, bounds = self._loaded()
        start_B, middle_B, end_B = (bounds[2 * self._numbers + place] for place in range(3))
        return middle_B - start_B, end_B - middle_B

    def _loaded(self) -> tuple[Integers, Integers]:
        ids, bounds = self._arrays.ids, self._arrays.bounds
        assert isinstance(ids, np.ndarray)
        assert isinstance(bounds, np.ndarray)
        return ids, bounds


def tokenize(pairs: Sequence[tuple[str, str]], tokenizer: Tokenizer, config: DataConfig) -> TokenizedPairs:
    """Encode sentence pairs, with each side truncated to its configured number of tokens (including END)."""
    arrays = TokenArrays(*encoded(pairs, tokenizer))
    return TokenizedPairs(arrays, range(len(pairs)), (config.source_length, config.target_length))


def encoded(pairs: Sequence[tuple[str, str]], tokenizer: Tokenizer) -> tuple[Integers, Integers]:
    """Encode `pairs` without truncation. Return the concatenated token ids, and the bounds of each sentence in them."""
    return flattened([[*ids, END] for ids in tokenizer.encode([text for pair in pairs for text in pair])])


def flattened(sentences: Sequence[Sequence[int]]) -> tuple[Integers, Integers]:
    """Concatenate sentences. Return the array of token ids, and the bounds of each sentence in it."""
    bounds = _bounds_of(np.fromiter(map(len, sentences), np.int64, len(sentences)))
    return np.fromiter(chain.from_iterable(sentences), np.int32, int(bounds[-1])), bounds


def _bounds_of(lengths: Integers) -> NDArray[np.int64]:
    """Return the offset of each sentence, given the sentences' lengths, and the end of the last sentence."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


@frozen
class TokenIndex:
    """The content of index.json, which describes token files."""

    pair_count: int
    id_count: int
    id_type: str  # numpy's name, e.g. "<u2"
    empty_count: int  # pairs with an empty side, which are left out
    first_empty_line: int  # line of the first of them, from 1; 0 if there are none
    target_counts: tuple[int, ...]  # occurrences of each id in the targets


@frozen
class StoredTokens:
    arrays: TokenArrays
    index: TokenIndex

    def pairs(self, config: DataConfig) -> TokenizedPairs:
        return TokenizedPairs(self.arrays, range(self.index.pair_count), (config.source_length, config.target_length))


def open_tokens(directory: Path) -> StoredTokens:
    """Open the token files in `directory`, and check only their sizes.

    Raises:
        OSError: a file is missing or cannot be read.
        ValueError: index.json is damaged, or another file does not have the size it specifies.
    """
    index = decode(TokenIndex, read_json(directory / INDEX))
    if index.id_type not in ID_TYPES:
        raise ValueError(f"{INDEX} has id type {index.id_type}, not {' or '.join(ID_TYPES)}")
    ids = FileArray(directory / IDS, np.dtype(index.id_type), index.id_count)
    bounds = FileArray(directory / BOUNDS, BOUND, 2 * index.pair_count + 1)
    first, last = int(bounds[:1][0]), int(bounds[-1:][0])
    if (first, last) != (0, index.id_count):
        raise ValueError(f"{BOUNDS} goes from {first} to {last}, not from 0 to {index.id_count}")
    return StoredTokens(TokenArrays(ids, bounds), index)
