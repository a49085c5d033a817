"""The encoder-decoder Transformer (Vaswani et al. 2017, arXiv:1706.03762) as single-device code.

Norms stand before each sublayer (`model.norm = "pre"`; Xiong et al. 2020, arXiv:2002.04745), and at the end of encoder and
decoder; or after each sublayer's residual sum, as in the original ("post"), and then not at the end.

Nothing here knows of ranks. Model parallelism replaces weights by shards and adds communication from outside
(`plan.py`), so widths are read from the weights, never from the configuration. Pipeline parallelism takes parts away:
a stage is this model without the layers of the others, and `forward` skips what is not there.

Shapes: B sentences, S source tokens, T target tokens, N target tokens without padding, D model width, H heads, K width of
a head, F feed-forward width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from launcher.core.frozen import frozen
from launcher.recipes.transformer.transformer_settings import DataConfig, ModelConfig
from launcher.trainer.model.dropout import AttentionDropout, Draws, Dropout
from launcher.trainer.model.linear import Linear, TiedLinear


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


# The name of the parameter that embeddings and head have in common where `model.share` is not "none".
SHARED_WEIGHT = "shared_embedding.weight"


def word_embedding(config: ModelConfig) -> nn.Embedding:
    # Weights are drawn by `apply_plan`. Drawn here, on the meta device, they would have each rank import torch's compiler.
    return nn.Embedding.from_pretrained(torch.empty(config.vocabulary_size, config.d_model), freeze=False)


class Embedding(nn.Module):
    """The sum of a word's vector, scaled by sqrt(D) where `model.scale_embedding` says so, and its position's."""

    def __init__(self, config: ModelConfig, length: int, shared: nn.Embedding | None = None) -> None:
        super().__init__()
        if shared is None:
            self.word = word_embedding(config)
        else:
            object.__setattr__(self, "word", shared)  # a module of the whole model, which names its weight
        self.position: nn.Module
        if config.positions == "learned":
            self.position = nn.Embedding.from_pretrained(torch.empty(length, config.d_model), freeze=False)
        else:
            self.position = Sinusoids(length, config.d_model)
        self.scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.dropout = Dropout(config.dropout)

    def forward(self, ids_BT: Tensor, draws: Draws | None = None, *, first: int = 0) -> Tensor:
        """Return the vectors of tokens that stand side by side, the first of them at position `first`."""
        positions_T = torch.arange(first, first + ids_BT.shape[1], device=ids_BT.device)
        word_BTD = self.word(ids_BT)
        if self.scale != 1:
            word_BTD = word_BTD * self.scale
        return self.dropout(word_BTD + self.position(positions_T).to(word_BTD.dtype), draws)


class Sinusoids(nn.Module):
    """The sines and cosines of Vaswani et al. 2017, section 3.5, for positions below `length`.

    Feature i < D/2 of position p is sin(p / 10000^(2i/D)), and feature D/2 + i its cosine. Sines first, not in turn with the
    cosines, is how tensor2tensor, fairseq and Marian order them; it is the same but for the order of the features.
    """

    def __init__(self, length: int, d_model: int) -> None:
        super().__init__()
        self.length, self.d_model = length, d_model

    def forward(self, positions_T: Tensor) -> Tensor:
        return sinusoids(self.length, self.d_model, positions_T.device)[positions_T]


@cache
def sinusoids(length: int, d_model: int, device: torch.device) -> Tensor:
    """Return all vectors of `Sinusoids`, of shape (length, d_model), in float64 on a CPU and else in float32."""
    half = (d_model + 1) // 2
    with torch.device("cpu"):
        frequencies_I = 10000.0 ** (torch.arange(half, dtype=torch.float64) * (-2 / d_model))
        angles_TI = torch.arange(length, dtype=torch.float64)[:, None] * frequencies_I
        vectors_TD = torch.cat([angles_TI.sin(), angles_TI.cos()], dim=1)[:, :d_model]
    return vectors_TD if device.type == "cpu" else vectors_TD.float().to(device)


class _SublayerNorm(nn.LayerNorm):
    """The norm of a sublayer, which is applied before it, or after what it gives is added."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config.d_model)
        self.is_first = config.norm == "pre"
        self.is_residual = False  # what the sublayer gives is added to its normed input, instead of to its input

    def before(self, hidden_BTD: Tensor) -> Tensor:
        return self(hidden_BTD) if self.is_first else hidden_BTD

    def residual(self, hidden_BTD: Tensor, normed_BTD: Tensor) -> Tensor:
        return normed_BTD if self.is_residual else hidden_BTD

    def after(self, hidden_BTD: Tensor) -> Tensor:
        return hidden_BTD if self.is_first else self(hidden_BTD)


class Attention(nn.Module):
    """Multi-head attention of one sequence (T) to another one (S), or to itself where that is not given.

    A mask of booleans is True where a query may attend to a key; one of numbers is added to the scores.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        d_model = config.d_model
        self.head_dim = d_model // config.heads
        self.query = Linear(d_model, d_model)
        self.key = Linear(d_model, d_model)
        self.value = Linear(d_model, d_model)
        self.output = Linear(d_model, d_model)
        self.dropout = AttentionDropout(config.attention_dropout)

    def forward(
        self,
        hidden_BTD: Tensor,
        memory_BSD: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
        draws: Draws | None = None,
    ) -> Tensor:
        memory_BSD = hidden_BTD if memory_BSD is None else memory_BSD
        projected = (
            self._heads(self.query(hidden_BTD)),
            self._heads(self.key(memory_BSD)),
            self._heads(self.value(memory_BSD)),
        )
        if draws is None or self.dropout.rate == 0:
            mixed_BHTK = functional.scaled_dot_product_attention(*projected, attn_mask=mask, is_causal=causal)
        else:
            mixed_BHTK = self._attend(*projected, mask, draws, causal=causal)
        return self.output(mixed_BHTK.transpose(1, 2).flatten(start_dim=2))

    def _attend(
        self,
        query_BHTK: Tensor,
        key_BHSK: Tensor,
        value_BHSK: Tensor,
        mask: Tensor | None,
        draws: Draws,
        *,
        causal: bool,
    ) -> Tensor:
        """Do what scaled_dot_product_attention does, with dropout of the weights by `draws`."""
        scores_BHTS = (query_BHTK * self.head_dim**-0.5) @ key_BHSK.transpose(-1, -2)
        if causal:
            mask = scores_BHTS.new_ones(scores_BHTS.shape[-2:], dtype=torch.bool).tril()
        if mask is not None:
            is_choice = mask.dtype == torch.bool
            scores_BHTS = scores_BHTS.masked_fill(~mask, -torch.inf) if is_choice else scores_BHTS + mask
        return self.dropout(scores_BHTS.softmax(dim=-1), draws) @ value_BHSK

    def _heads(self, projected_BTD: Tensor) -> Tensor:
        # As many heads as the (possibly sharded) projection is wide.
        return projected_BTD.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": partial(functional.gelu, approximate="tanh"),
}


class FeedForward(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activate = ACTIVATIONS[config.activation]
        self.expand = Linear(config.d_model, config.feed_forward_dim)
        self.dropout = Dropout(config.activation_dropout)
        self.contract = Linear(config.feed_forward_dim, config.d_model)

    def forward(self, hidden_BTD: Tensor, draws: Draws | None = None) -> Tensor:
        return self.contract(self.dropout(self.activate(self.expand(hidden_BTD)), draws))


class EncoderLayer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = _SublayerNorm(config)
        self.attention = Attention(config)
        self.feed_forward_norm = _SublayerNorm(config)
        self.feed_forward = FeedForward(config)
        self.attention_dropout = Dropout(config.dropout)
        self.feed_forward_dropout = Dropout(config.dropout)

    def forward(self, encoded_BSD: Tensor, source_mask: Tensor | None, draws: Draws | None = None) -> Tensor:
        norm = self.attention_norm
        normed_BSD = norm.before(encoded_BSD)
        update_BSD = self.attention(normed_BSD, mask=source_mask, draws=draws)
        encoded_BSD = norm.after(norm.residual(encoded_BSD, normed_BSD) + self.attention_dropout(update_BSD, draws))
        norm = self.feed_forward_norm
        normed_BSD = norm.before(encoded_BSD)
        update_BSD = self.feed_forward(normed_BSD, draws)
        return norm.after(norm.residual(encoded_BSD, normed_BSD) + self.feed_forward_dropout(update_BSD, draws))


class DecoderLayer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.is_causal = True  # else attention to the targets themselves has `own_mask` alone
        self.attention_norm = _SublayerNorm(config)
        self.attention = Attention(config)
        self.cross_attention_norm = _SublayerNorm(config)
        self.cross_attention = Attention(config)
        self.feed_forward_norm = _SublayerNorm(config)
        self.feed_forward = FeedForward(config)
        self.attention_dropout = Dropout(config.dropout)
        self.cross_attention_dropout = Dropout(config.dropout)
        self.feed_forward_dropout = Dropout(config.dropout)

    def forward(
        self,
        decoded_BTD: Tensor,
        memory_BSD: Tensor,
        source_mask: Tensor | None,
        draws: Draws | None = None,
        own_mask: Tensor | None = None,
    ) -> Tensor:
        """Masks are of cross attention, B11S or B1TS, and of attention to the targets themselves, B1TT."""
        # Padding stands at the end of a target, so the causal mask alone keeps it out of every token that counts.
        norm = self.attention_norm
        normed_BTD = norm.before(decoded_BTD)
        update_BTD = self.attention(normed_BTD, mask=own_mask, causal=self.is_causal, draws=draws)
        decoded_BTD = norm.after(norm.residual(decoded_BTD, normed_BTD) + self.attention_dropout(update_BTD, draws))
        norm = self.cross_attention_norm
        normed_BTD = norm.before(decoded_BTD)
        update_BTD = self.cross_attention(normed_BTD, memory_BSD, mask=source_mask, draws=draws)
        update_BTD = self.cross_attention_dropout(update_BTD, draws)
        decoded_BTD = norm.after(norm.residual(decoded_BTD, normed_BTD) + update_BTD)
        norm = self.feed_forward_norm
        normed_BTD = norm.before(decoded_BTD)
        update_BTD = self.feed_forward(normed_BTD, draws)
        return norm.after(norm.residual(decoded_BTD, normed_BTD) + self.feed_forward_dropout(update_BTD, draws))


class Transformer(nn.Module):
    """The whole model, or one pipeline stage of it once `plan.keep_stages` took the other parts away."""

    def __init__(self, model: ModelConfig, data: DataConfig) -> None:
        super().__init__()
        shared = None if model.share == "none" else word_embedding(model)
        self.shared_embedding = shared  # a parameter of the first stage, and of the last one a copy
        self.source_embedding = Embedding(model, data.source_length, shared if model.share == "all" else None)
        self.target_embedding = Embedding(model, data.target_length, shared)
        # Keyed by the global index, so that a stage's parameters keep the names they have in the whole model.
        self.encoder = nn.ModuleDict({str(index): EncoderLayer(model) for index in range(model.encoder_layers)})
        self.encoder_norm: nn.Module | None = nn.LayerNorm(model.d_model) if model.norm == "pre" else None
        self.memory = nn.Identity()  # what all decoder layers attend to
        self.decoder = nn.ModuleDict({str(index): DecoderLayer(model) for index in range(model.decoder_layers)})
        self.decoder_norm: nn.Module = nn.LayerNorm(model.d_model) if model.norm == "pre" else nn.Identity()
        self.head: Linear | TiedLinear | None = (
            Linear(model.d_model, model.vocabulary_size, bias=False) if shared is None else TiedLinear(shared)
        )
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
