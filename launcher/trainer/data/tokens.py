"""Sentence pairs as token ids: one flat array for all sentences, in memory or in a file, and choices of its pairs.

A directory of files holds the pairs of one text (`token_cache.py` makes it):

    ids.bin      the ids of source 0, target 0, source 1, target 1, ..., each sentence with END, none cut; little-endian
    bounds.bin   int64, little-endian: where each sentence begins, and at last where the last one ends
    index.json   how many of each there are, and what was counted when they were written

Shapes: B pairs, T positions of the longest of some sentences.
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
ID_TYPES = ("<u2", "<u4")  # the first that is large enough
UNCUT = (sys.maxsize, sys.maxsize)  # tokens at most of source and target
CHUNK_PAIRS = 65_536  # that are looked at together where all pairs are

Integers = NDArray[np.integer[Any]]


@frozen
class Example:
    """One sentence pair."""

    source: list[int]  # ends with END
    target: list[int]  # ends with END


class FileArray:
    """The items of a file, of which slices are read when they are asked for.

    A mapping would charge this process with whole pieces of the page cache, up to 2 MB for each place that is touched:
    391 MB after 256 reads at random, on Linux 6.18. Nor does it suit every network file system.
    """

    def __init__(self, path: Path, item: np.dtype[Any], count: int) -> None:
        """`count` is the number of items that must be there.

        Raises:
            OSError: it is missing or cannot be read.
            ValueError: its size is another one.
        """
        self._descriptor, self._item, self._count = open_regular(path), item, count
        weakref.finalize(self, os.close, self._descriptor)
        found, expected = os.fstat(self._descriptor).st_size, count * item.itemsize
        if found != expected:
            raise ValueError(f"{path.name} has {found} bytes instead of {expected}")

    def __getitem__(self, part: slice) -> Integers:
        start, stop, _ = part.indices(self._count)
        size = self._item.itemsize
        content = os.pread(self._descriptor, (stop - start) * size, start * size)
        return np.frombuffer(content, self._item, stop - start)  # a ValueError if the file has lost its end meanwhile


@frozen
class TokenArrays:
    """Pairs one after another: sentence k has ids[bounds[k] : bounds[k + 1]], and pair i has sentences 2 i and 2 i + 1.

    Invariant: both lie in memory, or both in files.
    """

    ids: Integers | FileArray
    bounds: Integers | FileArray

    def read(self, numbers: Integers) -> TokenArrays:
        """Return some pairs, at least one, in memory. Numbers that follow each other are read together."""
        runs = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
        bounds = [self.bounds[2 * int(run[0]) : 2 * int(run[-1]) + 3] for run in runs]
        ids = [self.ids[int(each[0]) : int(each[-1])] for each in bounds]
        return TokenArrays(np.concatenate(ids), _bounds_of(np.concatenate([np.diff(each) for each in bounds])))


class TokenizedPairs(Sequence[Example]):
    """Some pairs of `TokenArrays`, each side cut to a number of tokens. A slice is one, too, and takes no memory."""

    def __init__(self, arrays: TokenArrays, numbers: range | Integers, lengths: tuple[int, int]) -> None:
        """`numbers` says which pairs: a range without gaps, or, in memory, any. `lengths` is the most tokens of source and target, END included."""
        self._arrays, self._numbers, self._limits = arrays, numbers, lengths

    @classmethod
    def of(cls, examples: Sequence[Example]) -> TokenizedPairs:
        """Return `examples` as arrays; uncut."""
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
        number = int(self._numbers[index])
        return Example(*(self._cut(2 * number + side, limit) for side, limit in enumerate(self._limits)))

    def take(self, places: Integers) -> TokenizedPairs:
        """Return the pairs at some places of these, in that order, in memory."""
        numbers = places + self._numbers.start if isinstance(self._numbers, range) else self._numbers[places]
        if isinstance(self._arrays.ids, FileArray):
            return TokenizedPairs(self._arrays.read(numbers), range(len(numbers)), self._limits)
        return TokenizedPairs(self._arrays, numbers, self._limits)

    def in_memory(self) -> TokenizedPairs:
        """Return the same pairs, read from their files."""
        return self.take(np.arange(len(self))) if isinstance(self._arrays.ids, FileArray) else self

    def in_chunks(self, size: int = CHUNK_PAIRS) -> Iterator[TokenizedPairs]:
        """Yield all pairs, some at a time."""
        for start in range(0, len(self), size):
            yield self[start : start + size]

    def lengths(self) -> tuple[Integers, Integers]:
        """Return the tokens of the source and of the target of each pair, END included, as they are cut."""
        source_B, target_B = (
            np.minimum(uncut_B, limit) for uncut_B, limit in zip(self._uncut(), self._limits, strict=True)
        )
        return source_B, target_B

    def cut_count(self) -> int:
        """Return how many pairs have a side that is cut."""
        source_B, target_B = self._uncut()
        return int(np.count_nonzero((source_B > self._limits[0]) | (target_B > self._limits[1])))

    def padded(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ids of all sources and all targets (at least one pair), padded with PAD to the longest of each."""
        if isinstance(self._arrays.ids, FileArray):
            return self.in_memory().padded()
        source_BS, target_BT = (self._padded(side, length_B) for side, length_B in enumerate(self.lengths()))
        return source_BS, target_BT

    def target_counts(self, vocabulary_size: int) -> NDArray[np.int64]:
        """Return how often each id below `vocabulary_size` occurs in the targets."""
        counts = np.zeros(vocabulary_size, np.int64)
        for chunk in self.in_chunks(1024):  # padded ids take much more memory than lengths
            _, target_BT = chunk.padded()
            counts += np.bincount(target_BT[target_BT != PAD], minlength=vocabulary_size)
        return counts

    def uncut(self) -> TokenizedPairs:
        """Return the same pairs in full length."""
        return TokenizedPairs(self._arrays, self._numbers, UNCUT)

    def _uncut(self) -> tuple[Integers, Integers]:
        if isinstance(self._numbers, range):
            bounds = self._arrays.bounds[2 * self._numbers.start : 2 * self._numbers.stop + 1]
            lengths_B2 = np.diff(bounds).reshape(-1, 2)
            return lengths_B2[:, 0], lengths_B2[:, 1]
        _, bounds = self._here()
        start_B, middle_B, end_B = (bounds[2 * self._numbers + place] for place in range(3))
        return middle_B - start_B, end_B - middle_B

    def _cut(self, sentence: int, limit: int) -> list[int]:
        start, end = map(int, self._arrays.bounds[sentence : sentence + 2])
        ids: list[int] = self._arrays.ids[start:end].tolist()
        return ids if len(ids) <= limit else [*ids[: limit - 1], END]

    def _padded(self, side: int, length_B: Integers) -> NDArray[np.int64]:
        ids, bounds = self._here()
        position_T = np.arange(length_B.max())
        is_token_BT = position_T < length_B[:, None]
        place_BT = bounds[2 * np.asarray(self._numbers) + side][:, None] + position_T
        ids_BT = np.where(is_token_BT, ids[np.where(is_token_BT, place_BT, 0)], PAD).astype(np.int64)
        ids_BT[np.arange(len(length_B)), length_B - 1] = END  # also where the sentence goes on
        return ids_BT

    def _here(self) -> tuple[Integers, Integers]:
        ids, bounds = self._arrays.ids, self._arrays.bounds
        assert isinstance(ids, np.ndarray)
        assert isinstance(bounds, np.ndarray)
        return ids, bounds


def tokenize(pairs: Sequence[tuple[str, str]], tokenizer: Tokenizer, config: DataConfig) -> TokenizedPairs:
    """Encode pairs, cut to the configured lengths, END included."""
    arrays = TokenArrays(*encoded(pairs, tokenizer))
    return TokenizedPairs(arrays, range(len(pairs)), (config.source_length, config.target_length))


def encoded(pairs: Sequence[tuple[str, str]], tokenizer: Tokenizer) -> tuple[Integers, Integers]:
    """Return ids and bounds of `pairs`, uncut."""
    return flattened([[*ids, END] for ids in tokenizer.encode([text for pair in pairs for text in pair])])


def flattened(sentences: Sequence[Sequence[int]]) -> tuple[Integers, Integers]:
    """Return ids and bounds of sentences, of which two are a pair."""
    bounds = _bounds_of(np.fromiter(map(len, sentences), np.int64, len(sentences)))
    return np.fromiter(chain.from_iterable(sentences), np.int32, int(bounds[-1])), bounds


def _bounds_of(lengths: Integers) -> NDArray[np.int64]:
    """Return where sentences of these lengths begin, and where the last one ends."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


@frozen
class TokenIndex:
    """The contents of index.json."""

    pair_count: int
    id_count: int
    id_type: str  # numpy's name, e.g. "<u2"
    empty_count: int  # pairs that were left out, since a side of theirs is empty
    first_empty_line: int  # of the first of them, from 1; 0 if there is none
    target_counts: tuple[int, ...]  # how often each id occurs in the targets


@frozen
class StoredTokens:
    """The pairs of one text, in files."""

    arrays: TokenArrays
    index: TokenIndex

    def pairs(self, config: DataConfig) -> TokenizedPairs:
        """Return all pairs, cut to the configured lengths."""
        return TokenizedPairs(self.arrays, range(self.index.pair_count), (config.source_length, config.target_length))


def open_tokens(directory: Path) -> StoredTokens:
    """Open the files of `directory`. Only their sizes are looked at, whatever they hold.

    Raises:
        OSError: one is missing or cannot be read.
        ValueError: index.json is damaged, or another file is not as long as it says.
    """
    index = decode(TokenIndex, read_json(directory / INDEX))
    if index.id_type not in ID_TYPES:
        raise ValueError(f"{INDEX} says that ids are {index.id_type}, not {' or '.join(ID_TYPES)}")
    ids = FileArray(directory / IDS, np.dtype(index.id_type), index.id_count)
    bounds = FileArray(directory / BOUNDS, BOUND, 2 * index.pair_count + 1)
    first, last = int(bounds[:1][0]), int(bounds[-1:][0])
    if (first, last) != (0, index.id_count):
        raise ValueError(f"{BOUNDS} goes from {first} to {last}, not from 0 to {index.id_count}")
    return StoredTokens(TokenArrays(ids, bounds), index)
