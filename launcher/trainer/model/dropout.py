"""Dropout whose masks depend on what is computed, and neither on the rank that computes it nor on what it drew before.

A hash of (seed, step, place in the model, row of the global batch, position, feature) decides each element. So every
layout of ranks drops the same elements, recompute draws the masks of the first time, and a training that begins in the
middle draws those of its steps. With int32 arithmetic, which wraps around at 2^32,

    s, f = two words for (seed, step, row, position), by the finalizer of murmur3 (Appleby 2011), once per micro batch
    c    = a word for (place, feature), likewise, once per process
    the element is kept if  s + f c >= t        where t is such that a share `rate` of all words is below it

In attention the elements of a row and a position, those of its query, are heads and keys, so there c is a word for (place, head
of the whole model, position of the key).

For two different c, s + f c are two words that are all but independent (Dietzfelbinger 1996, "Universal hashing and
k-wise independent random variables via integer arithmetic without primes"), for one product and one sum per element. On a
CPU that takes a tenth of the time of torch's dropout, a quarter with backward, and keeps no mask.

Shapes: B sentences, T positions, D features, H heads, S positions of keys.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from functools import cache
from typing import Any
from zlib import crc32

import torch
from torch import Tensor, nn

from launcher.core.frozen import frozen

GOLDEN = 0x9E3779B9 - 2**32  # 2^32 / golden ratio: consecutive numbers are spread over all words before they are mixed


@frozen
class Draws:
    """The numbers from which all dropouts of a micro batch draw their masks: two random words for each position of each row."""

    summand_BT1: Tensor
    factor_BT1: Tensor

    @classmethod
    def of(cls, row_B: Tensor, length: int, *, seed: int, step: int) -> Draws:
        """Return the words of the rows `row_B` of the global batch number `step`, for positions up to `length`."""
        digest = hashlib.sha256(f"{seed}/{step}".encode()).digest()
        summand_BT, factor_BT = (
            _words(row_B, length, key=int.from_bytes(digest[at : at + 4], "little", signed=True)) for at in (0, 4)
        )
        return cls(summand_BT[..., None], factor_BT[..., None])


class Dropout(nn.Module):
    """Zeroes a share `rate` of the elements and scales the others up; without draws it hands on what it gets.

    Each call in the model needs a module of its own, since `place` tells their masks apart.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.place = ""  # the dotted name in the whole model, which gives it
        self.part, self.parts = (
            0,
            1,
        )  # which of how many equal parts of the features, or heads, of the whole model it gets

    def forward(self, hidden_BTD: Tensor, draws: Draws | None) -> Tensor:
        if draws is None or self.rate == 0:
            return hidden_BTD
        _, length, width = hidden_BTD.shape
        feature_D = feature_words(self.place, width * self.parts, hidden_BTD.device)[self.part * width :][:width]
        return _Dropped.apply(
            hidden_BTD, draws.factor_BT1[:, :length], draws.summand_BT1[:, :length], feature_D, self.rate
        )


class AttentionDropout(Dropout):
    """Dropout of the weights of attention, of each query's on each head."""

    def forward(self, weights_BHTS: Tensor, draws: Draws | None) -> Tensor:
        if draws is None or self.rate == 0:
            return weights_BHTS
        _, heads, queries, keys = weights_BHTS.shape
        key_HS = key_words(self.place, heads * self.parts, weights_BHTS.device, _at_least(keys))
        key_H1S = key_HS[self.part * heads :][:heads, None, :keys]
        factor_B1T1, summand_B1T1 = (
            words_BT1[:, None, :queries] for words_BT1 in (draws.factor_BT1, draws.summand_BT1)
        )
        return _Dropped.apply(weights_BHTS, factor_B1T1, summand_B1T1, key_H1S, self.rate)


class _Dropped(torch.autograd.Function):
    """The mask is computed again in backward, which costs less than half of its use."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, factor: Tensor, summand: Tensor, words: Tensor, rate: float) -> Tensor:
        ctx.factor, ctx.summand, ctx.words, ctx.rate = factor, summand, words, rate
        return _dropped(tensor, factor, summand, words, rate)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None, None, None]:
        dropped = _dropped(upstream[0], ctx.factor, ctx.summand, ctx.words, ctx.rate)
        return dropped, None, None, None, None


def _dropped(tensor: Tensor, factor: Tensor, summand: Tensor, words: Tensor, rate: float) -> Tensor:
    """Return what dropout leaves of `tensor`, whose shape is that of factor * words."""
    word = (factor * words).add_(summand)
    # 1 or 0 in the place of each word: on a CPU a comparison that gives booleans takes four times as long as the product.
    kept = word.ge_(int(rate * 2**32) - 2**31)
    if tensor.dtype == torch.float32:
        # Times the bits of the factor it is the bits of the factor, or of 0: a pass and a tensor less.
        return kept.mul_(_float32_bits(1 / (1 - rate))).view(torch.float32).mul_(tensor)
    return kept.to(tensor.dtype).mul_(1 / (1 - rate)).mul_(tensor)


def _float32_bits(value: float) -> int:
    """Return the integer of 32 bits whose bits are those of a float32."""
    return int.from_bytes(struct.pack("=f", value), sys.byteorder, signed=True)


@cache
def feature_words(place: str, width: int, device: torch.device) -> Tensor:
    """Return a word for each feature at one place in the model."""
    return mixed(torch.arange(width, dtype=torch.int32, device=device) * GOLDEN + (crc32(place.encode()) - 2**31))


@cache
def key_words(place: str, heads: int, device: torch.device, length: int) -> Tensor:
    """Return a word for each head and each of the first `length` positions of keys, at one place in the model."""
    return _words(torch.arange(heads, device=device), length, key=crc32(place.encode()) - 2**31)


def _at_least(length: int) -> int:
    """Return the power of 2 from `length` on: one of few lengths, so that few words are kept."""
    return 1 << (length - 1).bit_length()


def _words(row_B: Tensor, length: int, *, key: int) -> Tensor:
    """Return a word for each of the first `length` positions of each row."""
    position_T = torch.arange(length, dtype=torch.int32, device=row_B.device)
    word_B = mixed(row_B.to(torch.int32) * GOLDEN + key)
    return mixed(word_B[:, None] + position_T * GOLDEN)


def mixed(word: Tensor) -> Tensor:
    """Mix the bits of int32 words in place, by the finalizer of murmur3: a change of any bit changes half of the others."""
    word ^= (word >> 16) & 0xFFFF
    word *= 0x85EBCA6B - 2**32
    word ^= (word >> 13) & 0x7FFFF
    word *= 0xC2B2AE35 - 2**32
    word ^= (word >> 16) & 0xFFFF
    return word
