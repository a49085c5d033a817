"""The encoder-decoder Transformer (Vaswani et al. 2017, arXiv:1706.03762), norms first, as single-device code.

Nothing here knows of ranks. Model parallelism replaces weights by shards and adds communication from outside
(`plan.py`), so widths are read from the weights, never from the configuration. Pipeline parallelism takes parts away:
a stage is this model without the layers of the others, and `forward` skips what is not there.

Shapes: B sentences, S source tokens, T target tokens, N target tokens without padding, D model width, H heads, K width of
a head, F feed-forward width, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from launcher.core.frozen import frozen
from launcher.recipes.transformer.config import DataConfig, ModelConfig
from launcher.trainer.model.dropout import Draws, Dropout
from launcher.trainer.model.linear import Linear


@frozen
class Batch:
    """Token ids of some sentence pairs, on the device that computes."""

    source_BS: Tensor  # padded with PAD
    target_BT: Tensor  # what the decoder reads: BEGIN, then the sentence
    labels_BT: Tensor  # what it shall say: the sentence, then END; PAD does not count
    row_B: Tensor  # the number of each pair in the global batch, whatever rank and micro batch it falls to

    @property
    def streams_shape(self) -> tuple[int, int]:
        """(B, S + T): what both streams measure when joined along time."""
        return self.source_BS.shape[0], self.source_BS.shape[1] + self.target_BT.shape[1]


# The first ids of every vocabulary (launcher/trainer/data/tokenizer.py trains it so).
PAD, UNKNOWN, BEGIN, END = range(4)


def attention_mask(source_BS: Tensor) -> Tensor:
    """Return the mask B11S: True where a source token may be attended to."""
    return (source_BS != PAD)[:, None, None, :]


Streams = tuple[Tensor, Tensor]  # (encoded_BSD, decoded_BTD): what flows from stage to stage


class Embedding(nn.Module):
    """The sum of a word's and its position's vector."""

    def __init__(self, vocabulary_size: int, length: int, d_model: int, dropout: float) -> None:
        super().__init__()
        # Weights are drawn by `apply_plan`. Drawn here, on the meta device, they would have each rank import torch's compiler.
        self.word = nn.Embedding.from_pretrained(torch.empty(vocabulary_size, d_model), freeze=False)
        self.position = nn.Embedding.from_pretrained(torch.empty(length, d_model), freeze=False)
        self.dropout = Dropout(dropout)

    def forward(self, ids_BT: Tensor, draws: Draws | None = None, *, first: int = 0) -> Tensor:
        """Return the vectors of tokens that stand side by side, the first of them at position `first`."""
        positions_T = torch.arange(first, first + ids_BT.shape[1], device=ids_BT.device)
        return self.dropout(self.word(ids_BT) + self.position(positions_T), draws)


class Attention(nn.Module):
    """Multi-head attention of one sequence (T) to another one (S), or to itself where that is not given."""

    def __init__(self, d_model: int, heads: int) -> None:
        super().__init__()
        self.head_dim = d_model // heads
        self.query = Linear(d_model, d_model)
        self.key = Linear(d_model, d_model)
        self.value = Linear(d_model, d_model)
        self.output = Linear(d_model, d_model)

    def forward(
        self,
        hidden_BTD: Tensor,
        memory_BSD: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        memory_BSD = hidden_BTD if memory_BSD is None else memory_BSD
        mixed_BHTK = functional.scaled_dot_product_attention(
            self._heads(self.query(hidden_BTD)),
            self._heads(self.key(memory_BSD)),
            self._heads(self.value(memory_BSD)),
            attn_mask=mask,
            is_causal=causal,
        )
        return self.output(mixed_BHTK.transpose(1, 2).flatten(start_dim=2))

    def _heads(self, projected_BTD: Tensor) -> Tensor:
        # As many heads as the (possibly sharded) projection is wide.
        return projected_BTD.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


class FeedForward(nn.Module):
    def __init__(self, d_model: int, feed_forward_dim: int) -> None:
        super().__init__()
        self.expand = Linear(d_model, feed_forward_dim)
        self.contract = Linear(feed_forward_dim, d_model)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        return self.contract(functional.relu(self.expand(hidden_BTD)))


class EncoderLayer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.d_model)
        self.attention = Attention(config.d_model, config.heads)
        self.feed_forward_norm = nn.LayerNorm(config.d_model)
        self.feed_forward = FeedForward(config.d_model, config.feed_forward_dim)
        self.attention_dropout = Dropout(config.dropout)
        self.feed_forward_dropout = Dropout(config.dropout)

    def forward(self, encoded_BSD: Tensor, source_mask_B11S: Tensor, draws: Draws | None = None) -> Tensor:
        normed_BSD = self.attention_norm(encoded_BSD)
        update_BSD = self.attention(normed_BSD, mask=source_mask_B11S)
        encoded_BSD = encoded_BSD + self.attention_dropout(update_BSD, draws)
        update_BSD = self.feed_forward(self.feed_forward_norm(encoded_BSD))
        return encoded_BSD + self.feed_forward_dropout(update_BSD, draws)


class DecoderLayer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.d_model)
        self.attention = Attention(config.d_model, config.heads)
        self.cross_attention_norm = nn.LayerNorm(config.d_model)
        self.cross_attention = Attention(config.d_model, config.heads)
        self.feed_forward_norm = nn.LayerNorm(config.d_model)
        self.feed_forward = FeedForward(config.d_model, config.feed_forward_dim)
        self.attention_dropout = Dropout(config.dropout)
        self.cross_attention_dropout = Dropout(config.dropout)
        self.feed_forward_dropout = Dropout(config.dropout)

    def forward(
        self, decoded_BTD: Tensor, memory_BSD: Tensor, source_mask_B11S: Tensor, draws: Draws | None = None
    ) -> Tensor:
        # Padding stands at the end of a target, so the causal mask alone keeps it out of every token that counts.
        normed_BTD = self.attention_norm(decoded_BTD)
        update_BTD = self.attention(normed_BTD, causal=True)
        decoded_BTD = decoded_BTD + self.attention_dropout(update_BTD, draws)
        normed_BTD = self.cross_attention_norm(decoded_BTD)
        update_BTD = self.cross_attention(normed_BTD, memory_BSD, mask=source_mask_B11S)
        decoded_BTD = decoded_BTD + self.cross_attention_dropout(update_BTD, draws)
        update_BTD = self.feed_forward(self.feed_forward_norm(decoded_BTD))
        return decoded_BTD + self.feed_forward_dropout(update_BTD, draws)


class Transformer(nn.Module):
    """The whole model, or one pipeline stage of it once `plan.keep_stage` took the other parts away."""

    def __init__(self, model: ModelConfig, data: DataConfig) -> None:
        super().__init__()
        vocabulary_size, d_model = model.vocabulary_size, model.d_model
        self.source_embedding = Embedding(vocabulary_size, data.source_length, d_model, model.dropout)
        self.target_embedding = Embedding(vocabulary_size, data.target_length, d_model, model.dropout)
        # Keyed by the global index, so that a stage's parameters keep the names they have in the whole model.
        self.encoder = nn.ModuleDict({str(index): EncoderLayer(model) for index in range(model.encoder_layers)})
        self.encoder_norm: nn.Module | None = nn.LayerNorm(d_model)
        self.memory = nn.Identity()  # what all decoder layers attend to
        self.decoder = nn.ModuleDict({str(index): DecoderLayer(model) for index in range(model.decoder_layers)})
        self.decoder_norm = nn.LayerNorm(d_model)
        self.head: Linear | None = Linear(d_model, vocabulary_size, bias=False)
        for name, module in self.named_modules():
            if isinstance(module, Dropout):
                module.place = name

    def forward(self, batch: Batch, streams: Streams | None = None, draws: Draws | None = None) -> Streams:
        """From token ids, or the previous stage's `streams`, to the streams for the next stage or for the head.

        Nothing is dropped without `draws`: in validation and translation.
        """
        if streams is None:
            streams = self.source_embedding(batch.source_BS, draws), self.target_embedding(batch.target_BT, draws)
        mask_B11S = attention_mask(batch.source_BS)
        encoded_BSD = self.encode(streams[0], mask_B11S, draws)
        return encoded_BSD, self.decode(streams[1], encoded_BSD, mask_B11S, draws)

    def encode(self, encoded_BSD: Tensor, source_mask_B11S: Tensor, draws: Draws | None = None) -> Tensor:
        for layer in self.encoder.values():
            encoded_BSD = layer(encoded_BSD, source_mask_B11S, draws)
        return encoded_BSD if self.encoder_norm is None else self.encoder_norm(encoded_BSD)

    def decode(
        self, decoded_BTD: Tensor, encoded_BSD: Tensor, source_mask_B11S: Tensor, draws: Draws | None = None
    ) -> Tensor:
        memory_BSD = self.memory(encoded_BSD)
        for layer in self.decoder.values():
            decoded_BTD = layer(decoded_BTD, memory_BSD, source_mask_B11S, draws)
        return decoded_BTD

    def last_hidden(self, decoded_BTD: Tensor, labels_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the head makes logits of, hidden_ND, and labels_N, for the tokens whose label is not PAD."""
        rows_N = (labels_BT.flatten() != PAD).nonzero()[:, 0]
        hidden_ND = self.decoder_norm(decoded_BTD.flatten(0, 1).index_select(0, rows_N))
        return hidden_ND, labels_BT.flatten()[rows_N]

    def project(self, decoded_BTD: Tensor) -> Tensor:
        """Return logits_BTV."""
        assert self.head is not None, "only the last stage has the head"
        return self.head(self.decoder_norm(decoded_BTD))
