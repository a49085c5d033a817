"""The encoder-decoder Transformer (Vaswani et al. 2017, arXiv:1706.03762) as single-device code.

With `model.norm = "pre"` (Xiong et al. 2020, arXiv:2002.04745) a norm precedes each sublayer and ends the encoder and
the decoder. With "post", as in the original, a norm follows each sublayer's residual sum.

The code is independent of ranks. `plan.py` adds model parallelism: it replaces weights by shards and inserts
communication. So widths are read from the weights, never from the configuration. For pipeline parallelism `plan.py`
removes the layers of other stages, and `forward` skips missing layers.

Shapes: B sentences, S source tokens, T target tokens, N target tokens without padding, D model width, H heads, K width
of a head, F feed-forward width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from launcher.core.frozen import frozen
from launcher.recipes.transformer.transformer_settings import TOKEN_IDS, DataConfig, ModelConfig
from launcher.trainer.model.dropout import AttentionDropout, Dropout, DropoutBits
from launcher.trainer.model.linear import Linear, TiedLinear


@frozen
class Batch:
    """Token ids of sentence pairs, on the device of the model."""

    source_BS: Tensor  # padded with PAD
    target_BT: Tensor  # the decoder's input: BEGIN, then the sentence
    labels_BT: Tensor  # the expected output: the sentence, then END; PAD does not count
    row_B: Tensor  # the index of each pair in the global batch
    # Known from the host's ids, so that no step waits for an accelerator to count them:
    labelled_N: Tensor  # the position of each label except PAD in the flattened labels
    source_tokens: int  # without padding

    @property
    def streams_shape(self) -> tuple[int, int]:
        """The first two dims (B, S + T) of the encoder and decoder states, concatenated along time."""
        return self.source_BS.shape[0], self.source_BS.shape[1] + self.target_BT.shape[1]


# The first ids of every vocabulary (launcher/trainer/data/tokenizer.py trains it so).
PAD, UNKNOWN, BEGIN, END = TOKEN_IDS.values()


def attention_mask(source_BS: Tensor) -> Tensor:
    """Return the mask (B11S) that is True at source tokens and False at padding."""
    return (source_BS != PAD)[:, None, None, :]


Streams = tuple[Tensor, Tensor]  # (encoded_BSD, decoded_BTD): passed from stage to stage


# The parameter shared by embeddings and head, unless `model.share` is "none".
SHARED_WEIGHT = "shared_embedding.weight"


def word_embedding(config: ModelConfig) -> nn.Embedding:
    # `apply_plan` sets the weights. nn.Embedding would initialize them on the meta device and import torch's compiler.
    return nn.Embedding.from_pretrained(torch.empty(config.vocabulary_size, config.d_model), freeze=False)


class Embedding(nn.Module):
    """The sum of word and position vectors. With `model.scale_embedding`, word vectors are scaled by sqrt(D)."""

    def __init__(self, config: ModelConfig, length: int, shared: nn.Embedding | None = None) -> None:
        super().__init__()
        if shared is None:
            self.word = word_embedding(config)
        else:
            object.__setattr__(self, "word", shared)  # registered by the model, under whose name the weight appears
        self.position: nn.Module
        if config.positions == "learned":
            self.position = nn.Embedding.from_pretrained(torch.empty(length, config.d_model), freeze=False)
        else:
            self.position = Sinusoids(length, config.d_model)
        self.scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.dropout = Dropout(config.dropout)

    def forward(self, ids_BT: Tensor, draws: DropoutBits | None = None, *, first: int = 0) -> Tensor:
        """Return the embeddings (BTD) of consecutive tokens. `first` is the position of the first token."""
        positions_T = torch.arange(first, first + ids_BT.shape[1], device=ids_BT.device)
        word_BTD = self.word(ids_BT)
        if self.scale != 1:
            word_BTD = word_BTD * self.scale
        return self.dropout(word_BTD + self.position(positions_T).to(word_BTD.dtype), draws)


class Sinusoids(nn.Module):
    """Sinusoidal position vectors for positions below `length` (Vaswani et al. 2017, section 3.5).

    Feature i < D/2 of position p is sin(p / 10000^(2i/D)), and feature D/2 + i is the cosine. All sines precede the
    cosines, as in tensor2tensor, fairseq and Marian; the paper alternates them.
    """

    def __init__(self, length: int, d_model: int) -> None:
        super().__init__()
        self.length, self.d_model = length, d_model

    def forward(self, positions_T: Tensor) -> Tensor:
        return sinusoids(self.length, self.d_model, positions_T.device)[positions_T]


@cache
def sinusoids(length: int, d_model: int, device: torch.device) -> Tensor:
    """Return the vectors of `Sinusoids` for all positions, in float64 on a CPU and in float32 on other devices."""
    half = (d_model + 1) // 2
    with torch.device("cpu"):
        frequencies_I = 10000.0 ** (torch.arange(half, dtype=torch.float64) * (-2 / d_model))
        angles_TI = torch.arange(length, dtype=torch.float64)[:, None] * frequencies_I
        vectors_TD = torch.cat([angles_TI.sin(), angles_TI.cos()], dim=1)[:, :d_model]
    return vectors_TD if device.type == "cpu" else vectors_TD.float().to(device)


class _SublayerNorm(nn.LayerNorm):
    """The norm of a sublayer. It is applied before the sublayer ("pre") or after its residual sum ("post")."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config.d_model)
        self.is_first = config.norm == "pre"
        self.is_residual = False  # the residual is the normalized input instead of the input

    def around(self, hidden_BTD: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply `sublayer` with its norm and its residual connection, and return the hidden states."""
        normed_BTD = self(hidden_BTD) if self.is_first else hidden_BTD
        update_BTD = sublayer(normed_BTD)
        sum_BTD = (normed_BTD if self.is_residual else hidden_BTD) + update_BTD
        return sum_BTD if self.is_first else self(sum_BTD)


class Attention(nn.Module):
    """Multi-head attention of a sequence (T) to another sequence (S). Without another sequence, it is self-attention.

    A boolean mask is True where a query may attend to a key. A mask of numbers is added to the scores.
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
        draws: DropoutBits | None = None,
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
        draws: DropoutBits,
        *,
        causal: bool,
    ) -> Tensor:
        """Compute scaled dot-product attention. `draws` are the random bits for dropout of attention weights."""
        scores_BHTS = (query_BHTK * self.head_dim**-0.5) @ key_BHSK.transpose(-1, -2)
        if causal:
            mask = scores_BHTS.new_ones(scores_BHTS.shape[-2:], dtype=torch.bool).tril()
        if mask is not None:
            is_choice = mask.dtype == torch.bool
            scores_BHTS = scores_BHTS.masked_fill(~mask, -torch.inf) if is_choice else scores_BHTS + mask
        return self.dropout(scores_BHTS.softmax(dim=-1), draws) @ value_BHSK

    def _heads(self, projected_BTD: Tensor) -> Tensor:
        # The width of the projection, which may be sharded, gives the number of heads.
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

    def forward(self, hidden_BTD: Tensor, draws: DropoutBits | None = None) -> Tensor:
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

    def forward(self, encoded_BSD: Tensor, source_mask: Tensor | None, draws: DropoutBits | None = None) -> Tensor:
        def attend(normed_BSD: Tensor) -> Tensor:
            return self.attention_dropout(self.attention(normed_BSD, mask=source_mask, draws=draws), draws)

        def feed_forward(normed_BSD: Tensor) -> Tensor:
            return self.feed_forward_dropout(self.feed_forward(normed_BSD, draws), draws)

        return self.feed_forward_norm.around(self.attention_norm.around(encoded_BSD, attend), feed_forward)


class DecoderLayer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.is_causal = True  # if False, `own_mask` is the only mask of self-attention
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
        draws: DropoutBits | None = None,
        own_mask: Tensor | None = None,
    ) -> Tensor:
        """Apply the layer. `source_mask` (B11S, B1TS) is for cross attention, `own_mask` (B1TT) for self-attention."""

        def attend(normed_BTD: Tensor) -> Tensor:
            # Padding is at the end of a target, so the causal mask is enough to exclude it.
            update_BTD = self.attention(normed_BTD, mask=own_mask, causal=self.is_causal, draws=draws)
            return self.attention_dropout(update_BTD, draws)

        def attend_to_memory(normed_BTD: Tensor) -> Tensor:
            update_BTD = self.cross_attention(normed_BTD, memory_BSD, mask=source_mask, draws=draws)
            return self.cross_attention_dropout(update_BTD, draws)

        def feed_forward(normed_BTD: Tensor) -> Tensor:
            return self.feed_forward_dropout(self.feed_forward(normed_BTD, draws), draws)

        decoded_BTD = self.attention_norm.around(decoded_BTD, attend)
        decoded_BTD = self.cross_attention_norm.around(decoded_BTD, attend_to_memory)
        return self.feed_forward_norm.around(decoded_BTD, feed_forward)


class Transformer(nn.Module):
    """The complete model, or the pipeline stages of one rank after `plan.keep_stages` has removed the others."""

    def __init__(self, model: ModelConfig, data: DataConfig) -> None:
        super().__init__()
        shared = None if model.share == "none" else word_embedding(model)
        self.shared_embedding = shared  # owned by the first stage; the last stage has a copy
        self.source_embedding = Embedding(model, data.source_length, shared if model.share == "all" else None)
        self.target_embedding = Embedding(model, data.target_length, shared)
        # Keyed by the global index, so that a stage's parameters keep their names of the full model.
        self.encoder = nn.ModuleDict({str(index): EncoderLayer(model) for index in range(model.encoder_layers)})
        self.encoder_norm: nn.Module | None = nn.LayerNorm(model.d_model) if model.norm == "pre" else None
        self.memory = nn.Identity()  # the encoder's output, input of all cross attention
        self.decoder = nn.ModuleDict({str(index): DecoderLayer(model) for index in range(model.decoder_layers)})
        self.decoder_norm: nn.Module = nn.LayerNorm(model.d_model) if model.norm == "pre" else nn.Identity()
        self.head: Linear | TiedLinear | None = (
            Linear(model.d_model, model.vocabulary_size, bias=False) if shared is None else TiedLinear(shared)
        )
        for name, module in self.named_modules():
            if isinstance(module, Dropout):
                module.place = name

    def forward(self, batch: Batch, streams: Streams | None = None, draws: DropoutBits | None = None) -> Streams:
        """Compute the hidden states (encoded_BSD, decoded_BTD) from the ids in `batch`, or from `streams` if given.

        `streams` are the states that the previous stage returned. Without `draws`, as in validation and translation,
        there is no dropout.
        """
        if streams is None:
            streams = self.source_embedding(batch.source_BS, draws), self.target_embedding(batch.target_BT, draws)
        mask_B11S = attention_mask(batch.source_BS)
        encoded_BSD = self.encode(streams[0], mask_B11S, draws)
        return encoded_BSD, self.decode(streams[1], encoded_BSD, mask_B11S, draws)

    def encode(self, encoded_BSD: Tensor, source_mask_B11S: Tensor, draws: DropoutBits | None = None) -> Tensor:
        for layer in self.encoder.values():
            encoded_BSD = layer(encoded_BSD, source_mask_B11S, draws)
        return encoded_BSD if self.encoder_norm is None else self.encoder_norm(encoded_BSD)

    def decode(
        self, decoded_BTD: Tensor, encoded_BSD: Tensor, source_mask_B11S: Tensor, draws: DropoutBits | None = None
    ) -> Tensor:
        memory_BSD = self.memory(encoded_BSD)
        for layer in self.decoder.values():
            decoded_BTD = layer(decoded_BTD, memory_BSD, source_mask_B11S, draws)
        return decoded_BTD

    def last_hidden(self, decoded_BTD: Tensor, labels_BT: Tensor, labelled_N: Tensor) -> tuple[Tensor, Tensor]:
        """Return the input (ND) of the head and the labels (N) at the positions `labelled_N` of the flattened labels."""
        hidden_ND = self.decoder_norm(decoded_BTD.flatten(0, 1).index_select(0, labelled_N))
        return hidden_ND, labels_BT.flatten()[labelled_N]

    def project(self, decoded_BTD: Tensor) -> Tensor:
        """Return the logits (BTV) that the head computes."""
        assert self.head is not None, "only the last stage has the head"
        return self.head(self.decoder_norm(decoded_BTD))
