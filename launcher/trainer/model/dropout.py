"""Dropout with the same masks for every layout of ranks, after a resume, and when activations are recomputed.

A hash of (seed, step, module name, row of the global batch, position, feature) decides each element, instead of the
state of a random generator. With int32 arithmetic, which wraps around at 2^32,

    s, f = two words for (seed, step, row, position), by the finalizer of murmur3 (Appleby 2011), once per micro batch
    c    = a word for (module name, feature), hashed the same way, once per process
    the element is kept if  s + f c >= t        the share of words below t is `rate`

In attention, c is a word for (module name, head, position of the key): heads are numbered in the full model, and the
position above is the query's.

For two different c, the words s + f c are nearly independent (Dietzfelbinger 1996, "Universal hashing and k-wise
independent random variables via integer arithmetic without primes"). An element costs one product and one sum. On a CPU
this takes a tenth of the time of torch's dropout, or a quarter including backward, and stores no mask.

Shapes: B sentences, T positions, D features, H heads, S positions of keys.
"""

from __future__ import annotations

import hashlib
import struct
from functools import cache
from typing import Any
from zlib import crc32

import torch
from torch import Tensor, nn

from launcher.core.frozen import frozen

GOLDEN = 0x9E3779B9 - 2**32  # 2^32 / golden ratio: spreads consecutive numbers over all words before mixing


@frozen
class DropoutBits:
    """Random bits for the dropout in a micro batch: two int32 words for each position of each row."""

    summand_BT1: Tensor
    factor_BT1: Tensor

    @classmethod
    def of(cls, row_B: Tensor, length: int, *, seed: int, step: int) -> DropoutBits:
        """Return the random bits of `step` for rows `row_B` of the global batch and for positions below `length`."""
        digest = hashlib.sha256(f"{seed}/{step}".encode()).digest()
        summand_BT, factor_BT = (
            _words(row_B, length, key=int.from_bytes(digest[at : at + 4], "little", signed=True)) for at in (0, 4)
        )
        return cls(summand_BT[..., None], factor_BT[..., None])


class Dropout(nn.Module):
    """Dropout that sets a fraction `rate` of elements to zero and scales the rest. It does nothing without `draws`.

    Use a separate module for each call in the model: calls with the same `place` would drop the same elements.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.place = ""  # the dotted module name in the full model, set by the model
        self.part, self.parts = 0, 1  # index and number of the equal shards of the features (or heads)

    def forward(self, hidden_BTD: Tensor, draws: DropoutBits | None) -> Tensor:
        if draws is None or self.rate == 0:
            return hidden_BTD
        _, length, width = hidden_BTD.shape
        feature_D = feature_words(self.place, width * self.parts, hidden_BTD.device)[self.part * width :][:width]
        return _Dropped.apply(
            hidden_BTD, draws.factor_BT1[:, :length], draws.summand_BT1[:, :length], feature_D, self.rate
        )


class AttentionDropout(Dropout):
    """Dropout of attention weights, with a separate mask for each query position and head."""

    def forward(self, weights_BHTS: Tensor, draws: DropoutBits | None) -> Tensor:
        if draws is None or self.rate == 0:
            return weights_BHTS
        _, heads, queries, keys = weights_BHTS.shape
        length = 1 << (keys - 1).bit_length()  # rounded up to a power of 2, to limit the number of cached tensors
        key_HS = key_words(self.place, heads * self.parts, weights_BHTS.device, length)
        key_H1S = key_HS[self.part * heads :][:heads, None, :keys]
        factor_B1T1, summand_B1T1 = (
            words_BT1[:, None, :queries] for words_BT1 in (draws.factor_BT1, draws.summand_BT1)
        )
        return _Dropped.apply(weights_BHTS, factor_B1T1, summand_B1T1, key_H1S, self.rate)


class _Dropped(torch.autograd.Function):
    """An autograd function for dropout that recomputes its mask in backward instead of storing the mask."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, factor: Tensor, summand: Tensor, words: Tensor, rate: float) -> Tensor:
        ctx.factor, ctx.summand, ctx.words, ctx.rate = factor, summand, words, rate
        return _dropped(tensor, factor, summand, words, rate)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None, None, None]:
        dropped = _dropped(upstream[0], ctx.factor, ctx.summand, ctx.words, ctx.rate)
        return dropped, None, None, None, None


def _dropped(tensor: Tensor, factor: Tensor, summand: Tensor, words: Tensor, rate: float) -> Tensor:
    """Apply dropout to `tensor`. The random number of an element is factor * words + summand."""
    word = (factor * words).add_(summand)
    # In place as 1 or 0: on a CPU a comparison to booleans takes four times the time of the product.
    kept = word.ge_(int(rate * 2**32) - 2**31)
    if tensor.dtype == torch.float32:
        # 1 or 0 times the bits of the scale gives the bits of the scale or of 0.0, and saves a pass and a tensor.
        [scale_bits] = struct.unpack("=i", struct.pack("=f", 1 / (1 - rate)))
        return kept.mul_(scale_bits).view(torch.float32).mul_(tensor)
    return kept.to(tensor.dtype).mul_(1 / (1 - rate)).mul_(tensor)


@cache
def feature_words(place: str, width: int, device: torch.device) -> Tensor:
    """Return one random int32 word for each of the `width` features of the module named `place`."""
    return mixed(torch.arange(width, dtype=torch.int32, device=device) * GOLDEN + (crc32(place.encode()) - 2**31))


@cache
def key_words(place: str, heads: int, device: torch.device, length: int) -> Tensor:
    """Return a random int32 word for each head and each key position below `length`, for the module named `place`."""
    return _words(torch.arange(heads, device=device), length, key=crc32(place.encode()) - 2**31)


def _words(row_B: Tensor, length: int, *, key: int) -> Tensor:
    """Return a random int32 word for each row number in `row_B` and each position below `length`."""
    position_T = torch.arange(length, dtype=torch.int32, device=row_B.device)
    word_B = mixed(row_B.to(torch.int32) * GOLDEN + key)
    return mixed(word_B[:, None] + position_T * GOLDEN)


def mixed(word: Tensor) -> Tensor:
    """Hash int32 words in place with murmur3's finalizer. Changing one bit changes about half of all bits."""
    word ^= (word >> 16) & 0xFFFF
    word *= 0x85EBCA6B - 2**32
    word ^= (word >> 13) & 0x7FFFF
    word *= 0xC2B2AE35 - 2**32
    word ^= (word >> 16) & 0xFFFF
    return word
