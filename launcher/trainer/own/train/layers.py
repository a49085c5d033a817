"""The Transformer, encoder and decoder of MindSpore's `nn.transformer`, with the same names, arguments and defaults.

On one device they compute the same results as MindSpore's modules; `train` distributes them over ranks. Differences:

- Incremental inference (`use_past`) is not supported; `tlaunch translate` implements its own.
- Experts (`moe_config`) are not supported.
- `batch_size` is ignored: batches may have any number of rows.

The layers are the bundled Transformer's (launcher/trainer/model/transformer.py), without the norm after the last layer.

Shapes: B rows of a batch, S source and T target positions, D hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from launcher.core.errors import UsageError
from launcher.mesh.stages import Stage
from launcher.recipes.transformer.layers import LambdaFunc
from launcher.recipes.transformer.transformer_settings import ModelConfig
from launcher.trainer.model.dropout import Dropout, DropoutBits
from launcher.trainer.model.linear import Linear
from launcher.trainer.model.transformer import ACTIVATIONS, DecoderLayer, EncoderLayer
from launcher.trainer.own.train.configs import TransformerOpParallelConfig
from launcher.trainer.own.train.parallel_modules import INITIAL_STD, check_shape

MASKED = -10000.0  # added to masked scores, as in MindSpore: rows that are fully masked give no NaN


class _Layers(nn.Module):
    """A stack of Transformer layers. `blocks` has the layers of this pipeline stage by number."""

    def __init__(
        self,
        layer: type[EncoderLayer | DecoderLayer],
        count: int,
        config: ModelConfig,
        *,
        length: int,
        lambda_func: LambdaFunc | None,
        offset: int,
        post_layernorm_residual: bool,
        parallel_config: TransformerOpParallelConfig | None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        if config.d_model % config.heads:
            raise UsageError(f"{name}: hidden_size = {config.d_model} is not divisible by num_heads = {config.heads}")
        if config.activation not in ACTIVATIONS:
            known = " or ".join(f'"{each}"' for each in ACTIVATIONS)
            raise UsageError(f"{name}: hidden_act = {config.activation!r} is unknown", hint=f"use {known}")
        for told, rate in (
            ("hidden_dropout_rate", config.dropout),
            ("attention_dropout_rate", config.attention_dropout),
        ):
            if not 0 <= rate < 1:
                raise UsageError(f"{name}: {told} = {rate} is not a rate", hint="use a rate >= 0 and < 1")
        self.config, self.offset, self.length = config, offset, length
        self.lambda_func, self.parallel_config = lambda_func, parallel_config
        self.draws: DropoutBits | None = None  # dropout random bits for the current micro batch
        self.blocks = nn.ModuleDict({str(number): layer(config) for number in range(count)})
        for path, module in self.blocks.named_modules():
            if isinstance(module, Linear):
                module.weight.data.normal_(std=INITIAL_STD)
                module.bias.data.zero_()
            elif isinstance(module, Dropout):
                module.place = f"{name}.{path}"
            elif hasattr(module, "is_residual"):
                module.is_residual = post_layernorm_residual

    def begin(self, draws: DropoutBits | None) -> None:
        """Set the random bits for dropout in the next calls. If `draws` is None, training uses torch's generator."""
        self.draws = draws

    def _drawn(self, hidden_BTD: Tensor) -> DropoutBits | None:
        """Return the random bits that `begin` has set, or draw new bits. Return None if nothing is dropped."""
        if self.draws is not None or not (self.training and self.config.drops):
            return self.draws
        rows, length = hidden_BTD.shape[:2]
        seed = int(torch.randint(1 << 62, ()))
        return DropoutBits.of(torch.arange(rows, device=hidden_BTD.device), length, seed=seed, step=0)


class TransformerEncoder(_Layers):
    """A pre-norm stack of layers with self-attention and a feed-forward block, without a final norm.

    With `post_layernorm_residual` a block's output is added to its normed input. `hidden_act` is "gelu" (tanh
    approximation) or "relu".
    """

    def __init__(
        self,
        batch_size: int | None,
        num_layers: int,
        hidden_size: int,
        ffn_hidden_size: int,
        seq_length: int,
        num_heads: int,
        attention_dropout_rate: float = 0.1,
        hidden_dropout_rate: float = 0.1,
        hidden_act: str = "gelu",
        post_layernorm_residual: bool = False,
        layernorm_compute_type: torch.dtype = torch.float32,
        softmax_compute_type: torch.dtype = torch.float32,
        param_init_type: torch.dtype = torch.float32,
        lambda_func: LambdaFunc | None = None,
        offset: int = 0,
        use_past: bool = False,
        moe_config: object = None,
        parallel_config: TransformerOpParallelConfig | None = None,
    ) -> None:
        _check_others("TransformerEncoder", (layernorm_compute_type, softmax_compute_type, param_init_type), use_past, moe_config)  # fmt: skip
        config = _config(
            hidden_size, num_heads, ffn_hidden_size, hidden_act, hidden_dropout_rate, attention_dropout_rate
        )
        super().__init__(
            EncoderLayer, num_layers, config, length=seq_length, lambda_func=lambda_func, offset=offset,
            post_layernorm_residual=post_layernorm_residual, parallel_config=parallel_config,
        )  # fmt: skip
        del batch_size  # accepted for compatibility with MindSpore
        self.seq_length = seq_length

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, None]:
        """Return the encoder's output (BSD) and None. In place of None, MindSpore returns cached keys and values.

        `attention_mask` (BSS) is 1 if a position (second dim) may attend to another (third dim), and 0 otherwise.
        Without a mask, every position attends to every other.

        Raises:
            UsageError: a tensor has the wrong shape.
        """
        check_shape(hidden_states, (None, self.seq_length, self.config.d_model), "TransformerEncoder: hidden_states")
        mask = _added(attention_mask, hidden_states, self.seq_length, "TransformerEncoder: attention_mask")
        draws = self._drawn(hidden_states)
        for layer in self.blocks.values():
            hidden_states = layer(hidden_states, mask, draws)
        return hidden_states, None


class TransformerDecoder(_Layers):
    """A pre-norm stack of layers with self-attention, cross-attention and feed-forward block, without a final norm."""

    def __init__(
        self,
        num_layers: int,
        batch_size: int | None,
        hidden_size: int,
        ffn_hidden_size: int,
        src_seq_length: int,
        tgt_seq_length: int,
        num_heads: int,
        attention_dropout_rate: float = 0.1,
        hidden_dropout_rate: float = 0.1,
        post_layernorm_residual: bool = False,
        layernorm_compute_type: torch.dtype = torch.float32,
        softmax_compute_type: torch.dtype = torch.float32,
        param_init_type: torch.dtype = torch.float32,
        hidden_act: str = "gelu",
        lambda_func: LambdaFunc | None = None,
        use_past: bool = False,
        offset: int = 0,
        moe_config: object = None,
        parallel_config: TransformerOpParallelConfig | None = None,
    ) -> None:
        _check_others("TransformerDecoder", (layernorm_compute_type, softmax_compute_type, param_init_type), use_past, moe_config)  # fmt: skip
        config = _config(
            hidden_size, num_heads, ffn_hidden_size, hidden_act, hidden_dropout_rate, attention_dropout_rate
        )
        super().__init__(
            DecoderLayer, num_layers, config, length=tgt_seq_length, lambda_func=lambda_func, offset=offset,
            post_layernorm_residual=post_layernorm_residual, parallel_config=parallel_config,
        )  # fmt: skip
        del batch_size  # accepted for compatibility with MindSpore
        self.src_seq_length, self.tgt_seq_length = src_seq_length, tgt_seq_length
        self.memory = nn.Identity()  # passes on the encoder's output, which all layers attend to
        for layer in self.blocks.values():
            assert isinstance(layer, DecoderLayer), "a decoder has no other layers"
            layer.is_causal = False  # `decoder_mask` decides

    def forward(
        self,
        hidden_states: Tensor,
        decoder_mask: Tensor | None,
        encoder_output: Tensor,
        memory_mask: Tensor | None = None,
    ) -> tuple[Tensor, None]:
        """Return the decoder's output (BTD) and None. In place of None, MindSpore returns cached keys and values.

        Masks are 1 where a target position may attend: `decoder_mask` (BTT) to targets, `memory_mask` (BTS) to sources.

        Raises:
            UsageError: a tensor has the wrong shape.
        """
        sources, targets, name = self.src_seq_length, self.tgt_seq_length, "TransformerDecoder"
        check_shape(hidden_states, (None, targets, self.config.d_model), f"{name}: hidden_states")
        check_shape(encoder_output, (len(hidden_states), sources, self.config.d_model), f"{name}: encoder_output")
        own_mask = _added(decoder_mask, hidden_states, targets, f"{name}: decoder_mask")
        source_mask = _added(memory_mask, hidden_states, sources, f"{name}: memory_mask")
        draws, memory_BSD = self._drawn(hidden_states), self.memory(encoder_output)
        for layer in self.blocks.values():
            hidden_states = layer(hidden_states, memory_BSD, source_mask, draws, own_mask)
        return hidden_states, None


class Transformer(nn.Module):
    """An encoder and a decoder, or only an encoder if `decoder_layers` is 0.

    `lambda_func(network, layer_id, offset, parallel_config, layers)` is called for each layer when the training
    starts. It may set `network.pipeline_stage`, and call `network.recompute()` and `network.set_comm_fusion(number)`.
    If it sets no stages, layers are assigned to stages by cost.

    Raises:
        UsageError: there is no encoder layer, or an argument is not supported.
    """

    def __init__(
        self,
        hidden_size: int,
        batch_size: int | None,
        ffn_hidden_size: int,
        src_seq_length: int,
        tgt_seq_length: int,
        encoder_layers: int = 3,
        decoder_layers: int = 3,
        num_heads: int = 2,
        attention_dropout_rate: float = 0.1,
        hidden_dropout_rate: float = 0.1,
        hidden_act: str = "gelu",
        post_layernorm_residual: bool = False,
        layernorm_compute_type: torch.dtype = torch.float32,
        softmax_compute_type: torch.dtype = torch.float32,
        param_init_type: torch.dtype = torch.float32,
        lambda_func: LambdaFunc | None = None,
        use_past: bool = False,
        moe_config: object = None,
        parallel_config: TransformerOpParallelConfig | None = None,
    ) -> None:
        super().__init__()
        if encoder_layers < 1 or decoder_layers < 0:
            raise UsageError(
                f"Transformer: encoder_layers = {encoder_layers} and decoder_layers = {decoder_layers}",
                hint="set encoder_layers to 1 or more, and decoder_layers to 0 or more",
            )
        self.hidden_size, self.src_seq_length, self.tgt_seq_length = hidden_size, src_seq_length, tgt_seq_length
        self.encoder_layers, self.decoder_layers = encoder_layers, decoder_layers
        self.lambda_func, self.parallel_config = lambda_func, parallel_config
        common: dict[str, Any] = {
            "batch_size": batch_size,
            "hidden_size": hidden_size,
            "ffn_hidden_size": ffn_hidden_size,
            "num_heads": num_heads,
            "attention_dropout_rate": attention_dropout_rate,
            "hidden_dropout_rate": hidden_dropout_rate,
            "hidden_act": hidden_act,
            "post_layernorm_residual": post_layernorm_residual,
            "layernorm_compute_type": layernorm_compute_type,
            "softmax_compute_type": softmax_compute_type,
            "param_init_type": param_init_type,
            "use_past": use_past,
            "moe_config": moe_config,
        }
        self.encoder = TransformerEncoder(num_layers=encoder_layers, seq_length=src_seq_length, **common)
        self.decoder: TransformerDecoder | None = None
        if decoder_layers:
            self.decoder = TransformerDecoder(
                num_layers=decoder_layers, src_seq_length=src_seq_length, tgt_seq_length=tgt_seq_length,
                offset=encoder_layers, **common,
            )  # fmt: skip
        self.stage: Stage | None = None  # the pipeline stage, set by `keep`

    @property
    def streams_length(self) -> int:
        """The sequence length of the tensors between pipeline stages: S, or S + T if there is a decoder."""
        return self.src_seq_length + (0 if self.decoder is None else self.tgt_seq_length)

    def layers_on(self, stage: Stage) -> list[nn.Module]:
        of_decoder = nn.ModuleDict() if self.decoder is None else self.decoder.blocks
        return [
            *(self.encoder.blocks[str(number)] for number in stage.encoder_layers),
            *(of_decoder[str(number)] for number in stage.decoder_layers),
        ]

    def keep(self, stage: Stage) -> None:
        """Keep the layers of one pipeline stage. Except on the last stage, `forward` returns the next stage's input."""
        self.stage, kept = stage, {id(layer) for layer in self.layers_on(stage)}
        for layers in (self.encoder, self.decoder):
            if layers is not None:
                for key in [key for key, layer in layers.blocks.items() if id(layer) not in kept]:
                    del layers.blocks[key]

    def forward(
        self,
        encoder_inputs: Tensor | None,
        encoder_masks: Tensor | None = None,
        decoder_inputs: Tensor | None = None,
        decoder_masks: Tensor | None = None,
        memory_mask: Tensor | None = None,
        *,
        received: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, None, None]:
        """Return (output, None, None), as MindSpore's module does if `use_past` is False.

        `output` is the decoder's (BTD), or the encoder's (BSD) if there is no decoder. The inputs are vectors (BSD and
        BTD). Masks (BSS, BTT and BTS) are those of `TransformerEncoder` and `TransformerDecoder`. After the first
        pipeline stage, `received` replaces the inputs. Stages before the last return one tensor, the next stage's
        `received`.

        Raises:
            UsageError: a tensor has the wrong shape.
        """
        if received is not None:
            encoder_inputs, decoder_inputs = received, None
            if self.decoder is not None:
                encoder_inputs, decoder_inputs = received.split([self.src_seq_length, self.tgt_seq_length], dim=1)
        if encoder_inputs is None:
            raise UsageError("Transformer: encoder_inputs is None", hint="pass encoder_inputs")
        if (decoder_inputs is None) != (self.decoder is None):
            raise UsageError(
                f"Transformer: decoder_layers = {self.decoder_layers}, and decoder_inputs "
                f"{'are not' if decoder_inputs is None else 'are'} given"
            )
        encoded_BSD, _ = self.encoder(encoder_inputs, encoder_masks)
        output = encoded_BSD
        if self.decoder is not None:
            output, _ = self.decoder(decoder_inputs, decoder_masks, encoded_BSD, memory_mask)
        if self.stage is None or self.stage.is_last:
            return output, None, None
        return output if self.decoder is None else torch.cat([encoded_BSD, output], dim=1)


def _config(
    hidden_size: int,
    num_heads: int,
    ffn_hidden_size: int,
    hidden_act: str,
    hidden_dropout_rate: float,
    attention_dropout_rate: float,
) -> ModelConfig:
    return ModelConfig(
        d_model=hidden_size, heads=num_heads, feed_forward_dim=ffn_hidden_size, activation=hidden_act,
        dropout=hidden_dropout_rate, attention_dropout=attention_dropout_rate,
    )  # fmt: skip


def _check_others(name: str, types: Sequence[torch.dtype], use_past: bool, moe_config: object) -> None:
    """Raise a UsageError if an argument is set that MindSpore supports and this module does not."""
    if any(each != torch.float32 for each in types):
        told = ", ".join(str(each) for each in types)
        raise UsageError(
            f"{name}: the compute and parameter dtypes are {told}, but dtypes cannot be set for a single layer",
            hint="set the dtype of the entire network instead, for example with network.to(torch.bfloat16)",
        )
    if use_past:
        raise UsageError(f"{name}: use_past = True, but caching is not supported", hint="set use_past = False")
    if moe_config is not None:
        raise UsageError(f"{name}: moe_config is set, but experts are not supported", hint="leave moe_config out")


def _added(mask: Tensor | None, hidden_BTD: Tensor, keys: int, told: str) -> Tensor | None:
    """Convert a mask of ones and zeros (BTS) to a bias (B1TS), which is added to the attention scores."""
    if mask is None:
        return None
    check_shape(mask, (*hidden_BTD.shape[:2], keys), told)
    return ((1 - mask.to(hidden_BTD.dtype)) * MASKED)[:, None]
