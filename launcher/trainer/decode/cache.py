"""A decoder with a key-value cache, which computes each token once.

The layers are the model's own, with either order of norms. Only the two attentions of each layer are replaced. All
hypotheses of a sentence share the cache. Cross attention has one set of keys, computed once. Self-attention has one set
for all tokens of any hypothesis of the sentence: W slots per position. Each hypothesis attends to one slot per
position: its ancestor's. So the search never moves keys when it switches hypotheses. The additional products of
short vectors cost less than copying.

Shapes: B sentences, Q hypotheses of each, T positions so far, W slots of a position, P = T W slots, S source tokens, D
model width, H heads, K width of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from launcher.trainer.model.linear import Linear
from launcher.trainer.model.transformer import Attention, DecoderLayer, Transformer, attention_mask

FIRST_POSITIONS = 16  # initial capacity, doubled when it is exceeded


class CachedDecoder:
    """The decoder of `model` with a key-value cache. It processes one token per hypothesis at a time.

    The model is modified: from then on, its decoder only works through this object, for one batch of sentences at a
    time.
    """

    def __init__(self, model: Transformer) -> None:
        self._model = model
        self._seen = _Seen()
        for layer in model.decoder.values():
            assert isinstance(layer, DecoderLayer), "a decoder has no other layers"
            layer.add_module("attention", _SelfAttention(layer.attention, self._seen))
            layer.add_module("cross_attention", _CrossAttention(layer.cross_attention))
            for module in layer.modules():
                if isinstance(module, Linear):  # few rows in varying number, for which blocked products do not pay
                    module.__class__ = nn.Linear  # type: ignore[assignment]

    @property
    def device(self) -> torch.device:
        return self._model.target_embedding.word.weight.device

    def begin(self, source_BS: Tensor, slots: int) -> None:
        """Encode new sentences, padded with PAD, for at most `slots` hypotheses each."""
        for attention in self._attentions():
            attention.forget()
        self._seen.slots = slots
        self._mask_B11S = attention_mask(source_BS)
        self._encoded_BSD = self._model.encode(self._model.source_embedding(source_BS), self._mask_B11S)

    def step(self, token_BQ: Tensor, ancestor_BQT: Tensor) -> Tensor:
        """Return the output (BQD) for the tokens at position T - 1. Cache their keys and values in the first Q slots.

        `ancestor_BQT` is the slot that each hypothesis attends to at each position, including its own at the last.
        """
        self._seen.show(ancestor_BQT)
        embedded_BQD = self._model.target_embedding(token_BQ.flatten()[:, None], first=self._seen.positions - 1)
        embedded_BQD = embedded_BQD.view(*token_BQ.shape, -1)
        return self._model.decode(embedded_BQD, self._encoded_BSD, self._mask_B11S)

    def project(self, decoded_ND: Tensor) -> Tensor:
        """Return the logits (NV) for the next tokens."""
        return self._model.project(decoded_ND)

    def keep(self, sentence_B: Tensor) -> None:
        self._mask_B11S = self._mask_B11S[sentence_B]
        self._encoded_BSD = self._encoded_BSD[sentence_B]
        for attention in self._attentions():
            attention.keep(sentence_B)

    def _attentions(self) -> list[_SelfAttention | _CrossAttention]:
        return [each for each in self._model.decoder.modules() if isinstance(each, _SelfAttention | _CrossAttention)]


class _Seen:
    """The cache slots that the hypotheses attend to in this step. All layers use the same slots."""

    def __init__(self) -> None:
        self.slots = 1
        self.positions = 0
        self.mask_B1QP: Tensor | None = None  # None: all slots

    def show(self, ancestor_BQT: Tensor) -> None:
        self.positions = ancestor_BQT.shape[2]
        if self.slots == 1:
            self.mask_B1QP = None
            return
        slot_W = torch.arange(self.slots, device=ancestor_BQT.device)
        self.mask_B1QP = (ancestor_BQT[..., None] == slot_W).flatten(start_dim=2)[:, None]


class _SelfAttention(nn.Module):
    """Self-attention with a cache. The last token of a hypothesis attends to all of its tokens."""

    def __init__(self, attention: Attention, seen: _Seen) -> None:
        super().__init__()
        self.attention = attention
        self._seen = seen
        self._kept_2BPD = attention.key.weight.new_empty(2, 0, 0, 0)  # keys and values

    def forward(self, hidden_BQD: Tensor, *_: object, **__: object) -> Tensor:
        """Return the attention output (BQD) for new tokens, and cache their keys and values."""
        inner, seen = self.attention, self._seen
        first = (seen.positions - 1) * seen.slots
        batch, hypotheses = hidden_BQD.shape[:2]
        room = self._kept_2BPD.shape[2]
        if (
            first + seen.slots > room
        ):  # double the capacity; unused slots are zero, because masked values must be finite
            room = max(FIRST_POSITIONS * seen.slots, 2 * room)
            grown_2BPD = self._kept_2BPD.new_zeros(2, batch, room, inner.key.weight.shape[0])
            if first:
                grown_2BPD[:, :, :first] = self._kept_2BPD[:, :, :first]
            self._kept_2BPD = grown_2BPD
        for kept_BPD, projection in zip(self._kept_2BPD, (inner.key, inner.value), strict=True):
            kept_BPD[:, first : first + hypotheses] = projection(hidden_BQD)
        key_BPD, value_BPD = self._kept_2BPD[:, :, : first + seen.slots]
        return _attended(inner, hidden_BQD, _heads(key_BPD, inner), _heads(value_BPD, inner), seen.mask_B1QP)

    def keep(self, sentence_B: Tensor) -> None:
        self._kept_2BPD = self._kept_2BPD[:, sentence_B]

    def forget(self) -> None:
        self._kept_2BPD = self._kept_2BPD.new_empty(2, 0, 0, 0)


class _CrossAttention(nn.Module):
    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.attention = attention
        self._kept: tuple[Tensor, Tensor] | None = None  # keys and values BHSK

    def forward(self, hidden_BQD: Tensor, memory_BSD: Tensor, *_: object, mask: Tensor, **__: object) -> Tensor:
        """Return the attention output (BQD). The keys and values of the source are computed only in the first call."""
        inner = self.attention
        if self._kept is None:
            self._kept = _heads(inner.key(memory_BSD), inner), _heads(inner.value(memory_BSD), inner)
        return _attended(inner, hidden_BQD, *self._kept, mask)

    def keep(self, sentence_B: Tensor) -> None:
        assert self._kept is not None, "sentences leave after a step"
        key_BHSK, value_BHSK = self._kept
        self._kept = key_BHSK[sentence_B], value_BHSK[sentence_B]

    def forget(self) -> None:
        self._kept = None


def _heads(projected_BTD: Tensor, attention: Attention) -> Tensor:
    return projected_BTD.unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)


def _attended(
    attention: Attention, hidden_BQD: Tensor, key_BHTK: Tensor, value_BHTK: Tensor, mask: Tensor | None
) -> Tensor:
    query_BHQK = _heads(attention.query(hidden_BQD), attention)
    mixed_BHQK = functional.scaled_dot_product_attention(query_BHQK, key_BHTK, value_BHTK, attn_mask=mask)
    return attention.output(mixed_BHQK.transpose(1, 2).flatten(start_dim=2))
