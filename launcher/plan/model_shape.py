"""The shape of a Transformer, and what its layers hold and compute.

h hidden, f feed-forward, s positions, b samples. A layer has 4 h² weights for attention, 2 h f for its feed-forward
(3 h f if it is gated), and 4 h² more for cross attention. Counts are for one sample and the whole layer; mp divides them.
Worked example, h = 1,024, f = 4,096, s = 1,024: a decoder layer has 12 h² = 12.6 M weights, and its products take
12.9 G multiply-adds a sample; attention takes another 2 s² h = 2.1 G.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from launcher.core.codec import integer
from launcher.core.errors import UnreadableError
from launcher.core.frozen import frozen

REQUIRED = ("layers", "hidden", "heads", "seq", "vocab")
_OPTIONAL = ("ffn", "kv_heads", "encoder_layers", "source_seq")
_SWITCHES = ("gated_mlp", "tied_embeddings")
MAX_SIZE = 1 << 32
# Names of Megatron-LM's arguments and of config.json in Hugging Face models, so that their files can be read.
_SYNONYMS = {
    "layers": ("num_layers", "num_hidden_layers"), "hidden": ("hidden_size",), "heads": ("num_attention_heads",),
    "seq": ("seq_length",), "vocab": ("padded_vocab_size", "vocab_size"),
    "ffn": ("ffn_hidden_size", "intermediate_size"), "kv_heads": ("num_query_groups", "num_key_value_heads"),
}  # fmt: skip
_GATED_ACTIVATIONS = ("silu", "swiglu", "geglu")


@frozen
class LayerShape:
    """One kind of layer. Everything is for one sample."""

    positions: int
    cut_features: int  # features of the activations that mp divides, for each position
    weights: int
    multiply_adds: int  # of matrix products with weights
    attention_multiply_adds: int
    scores: int  # elements of the attention matrices of all heads
    all_reduces: int  # in a forward pass; backward has as many


@frozen
class ModelShape:
    """A decoder, or an encoder and a decoder if `encoder_layers` is positive."""

    hidden: int
    heads: int
    seq: int
    vocab: int
    layers: int  # of the decoder
    ffn: int
    kv_heads: int
    encoder_layers: int = 0
    source_seq: int = 0  # positions of the encoder
    gated_mlp: bool = False
    tied_embeddings: bool = True

    @cached_property
    def decoder_layer(self) -> LayerShape:
        return self._layer(self.seq, self.source_seq if self.encoder_layers else 0)

    @cached_property
    def encoder_layer(self) -> LayerShape:
        return self._layer(self.source_seq, 0)

    @cached_property
    def stack(self) -> tuple[LayerShape, ...]:
        """All layers in order, the encoder's first."""
        return (self.encoder_layer,) * self.encoder_layers + (self.decoder_layer,) * self.layers

    @cached_property
    def parameters(self) -> int:
        tables = 1 if self.tied_embeddings else 2
        return sum(layer.weights for layer in self.stack) + tables * self.vocab * self.hidden

    @property
    def tokens(self) -> int:
        """Positions of a sample, of the encoder and the decoder."""
        return self.seq + (self.source_seq if self.encoder_layers else 0)

    @cached_property
    def forward_flops(self) -> float:
        """FLOPs of a sample's forward pass. Attention is counted in full, masked or not."""
        layers = sum(layer.multiply_adds + layer.attention_multiply_adds for layer in self.stack)
        return 2 * (layers + self.seq * self.hidden * self.vocab)

    def step_flops(self, samples: int, *, recompute: bool) -> float:
        """Return the FLOPs of a step. With recompute the layers' second forward pass counts, as Megatron-LM counts it."""
        head = 2 * self.seq * self.hidden * self.vocab
        return samples * (3 * self.forward_flops + (self.forward_flops - head if recompute else 0))

    def _layer(self, positions: int, memory: int) -> LayerShape:
        h, f = self.hidden, self.ffn
        keys = h * self.kv_heads // self.heads
        feed_forward = (3 if self.gated_mlp else 2) * h * f
        attention = 2 * h * h + 2 * h * keys
        cross = attention if memory else 0
        pairs = positions * (positions + memory)
        return LayerShape(
            positions=positions,
            cut_features=(8 + (4 if memory else 0)) * h + (6 if self.gated_mlp else 4) * f,
            weights=attention + cross + feed_forward,
            # Keys and values of cross attention are computed from the encoder's positions.
            multiply_adds=positions * (attention + feed_forward + (2 * h * h if memory else 0)) + memory * 2 * h * keys,
            attention_multiply_adds=2 * pairs * h,
            scores=self.heads * pairs,
            all_reduces=3 if memory else 2,
        )


def model_from(values: object, where: str) -> ModelShape:
    """Return the model that a JSON object describes. Raises UnreadableError, which starts with `where`."""
    if not isinstance(values, Mapping):
        raise UnreadableError(f"{where}: a model is a JSON object, not {type(values).__name__}", hint=_HINT)
    sizes = {name: _size(values, name, where) for name in (*REQUIRED, *_OPTIONAL)}
    missing = [name for name in REQUIRED if sizes[name] is None]
    if missing:
        raise UnreadableError(f"{where}: the model lacks {', '.join(f'`{name}`' for name in missing)}", hint=_HINT)
    known = {name: size for name, size in sizes.items() if size is not None}
    if known["hidden"] % known["heads"]:
        raise UnreadableError(
            f"{where}: `hidden` {known['hidden']} is not divisible by `heads` {known['heads']}", hint=_HINT
        )
    heads, hidden = known["heads"], known["hidden"]
    return ModelShape(
        hidden=hidden, heads=heads, seq=known["seq"], vocab=known["vocab"], layers=known["layers"],
        ffn=known.get("ffn", 4 * hidden), kv_heads=known.get("kv_heads", heads),
        encoder_layers=known.get("encoder_layers", 0), source_seq=known.get("source_seq", known["seq"]),
        gated_mlp=_is_gated(values), tied_embeddings=_is_tied(values),
    )  # fmt: skip


def _is_gated(values: Mapping[str, Any]) -> bool:
    stated = values.get("gated_mlp", values.get("swiglu"))
    return bool(stated) if stated is not None else values.get("hidden_act") in _GATED_ACTIVATIONS


def _is_tied(values: Mapping[str, Any]) -> bool:
    stated = values.get("tied_embeddings", values.get("tie_word_embeddings"))
    return stated is not False and values.get("untie_embeddings_and_output_weights") is not True


_HINT = (
    f"give {', '.join(f'`{name}`' for name in REQUIRED)}; optional: "
    f"{', '.join(f'`{name}`' for name in (*_OPTIONAL, *_SWITCHES))}"
)


def size_in(values: Mapping[str, Any], name: str) -> Any:
    """Return the value of a size, under its name or a synonym; None if it is missing or null."""
    return next((values[each] for each in (name, *_SYNONYMS.get(name, ())) if values.get(each) is not None), None)


def _size(values: Mapping[str, Any], name: str, where: str) -> int | None:
    value = size_in(values, name)
    if value is None:
        return None
    size = integer(value)
    least = 0 if name == "encoder_layers" else 1
    if size is None or not least <= size <= MAX_SIZE:
        raise UnreadableError(f"{where}: `{name}` is {value!r}, not a whole number of at least {least}", hint=_HINT)
    return size
