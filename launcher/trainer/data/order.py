"""The pairs of each batch, as a pure function of (seed, epoch, batch number).

Any batch is found without earlier batches, and without an array over all pairs. To do so, blocks of consecutive pairs
are shuffled and divided into pools, and the pairs of a pool are shuffled. A corpus smaller than two pools is shuffled
completely. A larger one is read pool by pool, in sequential runs.

A batch is a number of pairs, or a number of target tokens. For the latter, the pairs of a pool are sorted by length and
divided into batches with equal numbers of tokens, and the batches are shuffled. This keeps padding low. Every pair is
used exactly once per epoch, and all epochs have the same number of batches.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np
import torch

from launcher.trainer.data.tokens import CHUNK_PAIRS, Integers, TokenizedPairs

BLOCK_PAIRS = 256
MIN_POOL_PAIRS = 65_536
COST_TOLERANCE = 0.005  # relative to the least cost; `cut_by_cost` stops there
POOL_PAIRS_PER_TOKEN = 2  # of a batch; ensures many batches per pool for any sentence length


class PairBatches:
    """Random batches of `batch_size` pairs. An incomplete last batch of an epoch is dropped."""

    def __init__(self, pairs: TokenizedPairs, batch_size: int, *, seed: int) -> None:
        self.steps_per_epoch = len(pairs) // batch_size
        self._batch_size = batch_size
        self._shuffle = Shuffle(pairs, max(MIN_POOL_PAIRS, batch_size), seed=seed)

    def batch(self, epoch: int, index: int) -> TokenizedPairs:
        """Read the pairs of a batch into memory. `epoch` and `index` start at 0."""
        start, stop = index * self._batch_size, (index + 1) * self._batch_size
        ends = self._shuffle.ends(epoch)
        first, last = int(np.searchsorted(ends, start, "right")), int(np.searchsorted(ends, stop, "left"))
        begins = [0, *ends.tolist()]
        parts = [
            self._shuffle.pool(epoch, pool)[max(0, start - begins[pool]) : stop - begins[pool]]
            for pool in range(first, last + 1)
        ]
        return parts[0] if first == last else TokenizedPairs.of([pair for part in parts for pair in part])


class TokenBatches:
    """Batches of about `batch_tokens` target tokens, with pairs of similar length."""

    def __init__(self, pairs: TokenizedPairs, batch_tokens: int, *, seed: int) -> None:
        """Divide `pairs` into batches. `batch_tokens` must be at least twice the length of the longest target."""
        self._seed = seed
        self._shuffle = Shuffle(pairs, max(MIN_POOL_PAIRS, POOL_PAIRS_PER_TOKEN * batch_tokens), seed=seed)
        # Only the last chunk of pairs may end within a block.
        targets = (chunk.lengths()[1] for chunk in pairs.in_chunks())
        blocks = [np.add.reduceat(each, np.arange(0, len(each), BLOCK_PAIRS)) for each in targets]
        self._block_tokens = np.concatenate(blocks)
        self._tokens = int(self._block_tokens.sum())
        self.steps_per_epoch = -(-self._tokens // batch_tokens)
        self._ends = lru_cache(maxsize=1)(self._ends_of_pools)
        self._batches = lru_cache(maxsize=1)(self._batches_of_pool)

    def batch(self, epoch: int, index: int) -> TokenizedPairs:
        """Read the pairs of a batch into memory. `epoch` and `index` start at 0."""
        ends = self._ends(epoch)
        pool = int(np.searchsorted(ends, index, "right"))
        first = int(ends[pool - 1]) if pool else 0
        return self._batches(epoch, pool, int(ends[pool]) - first)[index - first]

    def _ends_of_pools(self, epoch: int) -> Integers:
        """Return, for each pool of pairs, the number of batches in the epoch up to the end of the pool."""
        tokens = np.cumsum([self._block_tokens[blocks].sum() for blocks in self._shuffle.blocks(epoch)])
        return (tokens * self.steps_per_epoch + self._tokens // 2) // self._tokens

    def _batches_of_pool(self, epoch: int, pool: int, count: int) -> list[TokenizedPairs]:
        pairs = self._shuffle.pool(epoch, pool)
        batches = cut_by_tokens(pairs, count)
        return [pairs.take(batches[place]) for place in permutation(count, self._seed, epoch, pool, "batches")]


def cut_by_tokens(pairs: TokenizedPairs, count: int) -> list[Integers]:
    """Divide pairs into `count` batches with about equal numbers of target tokens.

    Return positions in `pairs`, shortest first. A pair belongs to the batch whose share contains the middle of its
    tokens. So no batch is empty if no target is longer than a share.
    """
    source_B, target_B = pairs.lengths()
    ordered_B = _by_length(source_B, target_B)
    end_B = np.cumsum(target_B[ordered_B])
    batch_B = (2 * end_B - target_B[ordered_B]) * count // (2 * end_B[-1])
    return np.split(ordered_B, np.searchsorted(batch_B, np.arange(1, count)))


def cut_by_cost(pairs: TokenizedPairs, count: int) -> list[Integers]:
    """Divide pairs into `count` parts with the lowest possible maximum cost. Return the positions in each part.

    Pairs are sorted by length, so each part has pairs of similar length. With few pairs, the last parts are empty.
    The cost of a part is its padded positions, plus its target tokens, because logits are only computed for those.
    """
    source_B, target_B = pairs.lengths()
    ordered_B = _by_length(source_B, target_B)
    source_B, target_B = source_B[ordered_B], target_B[ordered_B]
    number_B, tokens_B = np.arange(1, len(pairs) + 1), np.cumsum(target_B)

    def end_within(cost: float, start: int) -> int:
        """Return the end of the longest part that starts at `start` and costs at most `cost`."""
        size = len(pairs) // count + 1
        while True:
            part_P = slice(start, start + size)
            tokens_P = tokens_B[part_P] - (tokens_B[start - 1] if start else 0)
            padded_P = np.maximum.accumulate(source_B[part_P]) + target_B[part_P]
            fits = int(np.searchsorted(number_B[: len(tokens_P)] * padded_P + tokens_P, cost, "right"))
            if fits < size or start + size >= len(pairs):
                return start + fits
            size *= 2

    def ends_within(cost: float) -> list[int]:
        """Return the ends of at most `count` consecutive parts. Each part is as long as `cost` allows."""
        ends = [0]
        while ends[-1] < len(pairs) and len(ends) <= count:
            ends.append(end_within(cost, ends[-1]))
            if ends[-1] == ends[-2]:
                break
        return ends[1:]

    # Costs are integers. The minimum is above `low`, and `high` is possible.
    high = int(len(pairs) * (source_B.max() + target_B.max()) + tokens_B[-1])
    low = (int((source_B + 2 * target_B).sum()) - 1) // count
    while high - low > max(1, low * COST_TOLERANCE):
        cost = (low + high) // 2
        if (ends := ends_within(cost)) and ends[-1] == len(pairs):
            high = cost
        else:
            low = cost
    ends = ends_within(high)
    return np.split(ordered_B, [*ends, *[len(pairs)] * (count - len(ends))][: count - 1])


def _by_length(source_B: Integers, target_B: Integers) -> Integers:
    """Return the positions of all pairs, sorted by target length and then by source length.

    Source lengths ascend for even target lengths and descend for odd ones, so that neighbours across two target lengths
    have similar sources. The order is stable.
    """
    return np.lexsort((np.where(target_B % 2 == 0, source_B, -source_B), target_B))


class Shuffle:
    """A random order of all pairs for each epoch. Each order is divided into pools that can be read independently."""

    def __init__(self, pairs: TokenizedPairs, pool_pairs: int, *, seed: int) -> None:
        """Divide `pairs` into pools of about `pool_pairs` to 2 * `pool_pairs` pairs. A small corpus is one pool."""
        self._pairs, self._seed = pairs, seed
        self._block_count = -(-len(pairs) // BLOCK_PAIRS)
        self._pool_count = max(1, len(pairs) // pool_pairs)
        # Caches for the last epoch, and for the two pools that a batch may span.
        # The block numbers of each pool
        self.blocks = lru_cache(maxsize=1)(
            lambda epoch: np.array_split(permutation(self._block_count, seed, epoch, "blocks"), self._pool_count)
        )
        self.ends = lru_cache(maxsize=1)(self._ends_of_pools)
        self.pool = lru_cache(maxsize=2)(self._pairs_of_pool)

    def _ends_of_pools(self, epoch: int) -> Integers:
        """Return, for each pool, the number of pairs in the epoch up to the end of the pool."""
        last, missing = self._block_count - 1, self._block_count * BLOCK_PAIRS - len(self._pairs)
        return np.cumsum([len(blocks) * BLOCK_PAIRS - missing * int(last in blocks) for blocks in self.blocks(epoch)])

    def _pairs_of_pool(self, epoch: int, index: int) -> TokenizedPairs:
        """Read the pairs of a pool into memory, and return them in random order."""
        places = (self.blocks(epoch)[index][:, None] * BLOCK_PAIRS + np.arange(BLOCK_PAIRS)).ravel()
        # Read complete blocks before the shuffle, because each is contiguous in the file.
        pairs = self._pairs.take(places[places < len(self._pairs)])
        return pairs.take(permutation(len(pairs), self._seed, epoch, index, "pairs"))


def permutation(count: int, *key: object) -> Integers:
    """Return the numbers from 0 to `count` - 1 in a random order that depends only on `key`."""
    digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    return torch.randperm(count, generator=generator).numpy()


assert CHUNK_PAIRS % BLOCK_PAIRS == 0
