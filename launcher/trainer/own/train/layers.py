"""The Transformer of MindSpore's `nn.transformer`, its encoder and its decoder, by their names, arguments and defaults.

Each computes on one device what MindSpore's does; `train` divides them over ranks. The differences: there is no incremental inference
(`use_past`; `tlaunch translate` has its own), and there are no experts (`moe_config`); `batch_size` says nothing, any number of
rows will do.

Layers are those of the bundled Transformer (launcher/trainer/model/transformer.py), without a norm after the last one.

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

MASKED = -10000.0  # added to the scores of what is not attended to, as in MindSpore: a row without any key has no NaN


class _Layers(nn.Module):
    """Layers one after another, for so many positions, of which a stage of a pipeline keeps some; `blocks` has them by their numbers."""

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
            raise UsageError(f"{name}: hidden_size = {config.d_model} cannot be divided by num_heads = {config.heads}")
        if config.activation not in ACTIVATIONS:
            known = " or ".join(f'"{each}"' for each in ACTIVATIONS)
            raise UsageError(f"{name}: hidden_act = {config.activation!r} is not known", hint=known)
        for told, rate in (
            ("hidden_dropout_rate", config.dropout),
            ("attention_dropout_rate", config.attention_dropout),
        ):
            if not 0 <= rate < 1:
                raise UsageError(f"{name}: {told} = {rate} is no share", hint="0 or more, and below 1")
        self.config, self.offset, self.length = config, offset, length
        self.lambda_func, self.parallel_config = lambda_func, parallel_config
        self.draws: DropoutBits | None = None  # of the micro batch that a training computes
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
        """Have the calls that follow drop by `draws`; without any, as torch's generator says if in training."""
        self.draws = draws

    def _drawn(self, hidden_BTD: Tensor) -> DropoutBits | None:
        """Return what decides the dropouts of a call: what `train` has said, else the numbers of torch's generator."""
        if self.draws is not None or not (self.training and self.config.drops):
            return self.draws
        rows, length = hidden_BTD.shape[:2]
        seed = int(torch.randint(1 << 62, ()))
        return DropoutBits.of(torch.arange(rows, device=hidden_BTD.device), length, seed=seed, step=0)


class TransformerEncoder(_Layers):
    """Layers of attention to oneself and a feed-forward block; norms before them, and none at the end.

    With `post_layernorm_residual` what a block gives is added to its normed input. `hidden_act` is "gelu" (by tanh) or "relu".
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
        del batch_size  # any number of rows will do
        self.seq_length = seq_length

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, None]:
        """Return encoded_BSD of hidden_states_BSD, and None in the place of keys and values that are kept for later.

        The mask, BSS, is 1 where a position (the second dim) may attend to another one (the third), and 0 elsewhere; without one
        all may attend to all.

        Raises:
            UsageError: the shapes are others.
        """
        check_shape(hidden_states, (None, self.seq_length, self.config.d_model), "TransformerEncoder: hidden_states")
        mask = _added(attention_mask, hidden_states, self.seq_length, "TransformerEncoder: attention_mask")
        draws = self._drawn(hidden_states)
        for layer in self.blocks.values():
            hidden_states = layer(hidden_states, mask, draws)
        return hidden_states, None


class TransformerDecoder(_Layers):
    """Layers as those of `TransformerEncoder`, each with attention to the encoder's output between its two blocks."""

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
        del batch_size  # any number of rows will do
        self.src_seq_length, self.tgt_seq_length = src_seq_length, tgt_seq_length
        self.memory = nn.Identity()  # what all layers attend to
        for layer in self.blocks.values():
            assert isinstance(layer, DecoderLayer), "a decoder has no other layers"
            layer.is_causal = False  # the mask says so

    def forward(
        self,
        hidden_states: Tensor,
        decoder_mask: Tensor | None,
        encoder_output: Tensor,
        memory_mask: Tensor | None = None,
    ) -> tuple[Tensor, None]:
        """Return decoded_BTD of hidden_states_BTD and encoder_output_BSD, and None in the place of keys and values.

        Masks as `TransformerEncoder` has them: `decoder_mask` BTT, `memory_mask` BTS.

        Raises:
            UsageError: the shapes are others.
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
    """An encoder and a decoder, or an encoder alone where `decoder_layers` is 0.

    `lambda_func(network, layer_id, offset, parallel_config, layers)` is asked for each layer when the training begins: it may set
    `network.pipeline_stage`, and call `network.recompute()` and `network.set_comm_fusion(number)`. Without it, or where it sets
    no stage, stages are cut by cost.

    Raises:
        UsageError: there are decoder layers and no encoder layer, or an argument that cannot be served.
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
                hint="an encoder of 1 layer or more, and a decoder of any number",
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
        self.stage: Stage | None = None  # of a pipeline, where `keep` has been called

    @property
    def streams_length(self) -> int:
        """S + T: the positions of what stages send each other, both streams joined along time."""
        return self.src_seq_length + (0 if self.decoder is None else self.tgt_seq_length)

    def layers_on(self, stage: Stage) -> list[nn.Module]:
        """Return the layers that a stage of a pipeline computes."""
        of_decoder = nn.ModuleDict() if self.decoder is None else self.decoder.blocks
        return [
            *(self.encoder.blocks[str(number)] for number in stage.encoder_layers),
            *(of_decoder[str(number)] for number in stage.decoder_layers),
        ]

    def keep(self, stage: Stage) -> None:
        """Keep the layers of a stage of a pipeline alone. From then on all stages but the last return their streams."""
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
        """Return the decoder's output, BTD (without a decoder the encoder's, BSD), and twice None, as MindSpore's without `use_past`.

        Inputs are vectors, BSD and BTD; masks as those of `TransformerEncoder` and `TransformerDecoder`: BSS, BTT, BTS. On a later
        stage of a pipeline `received` takes the place of the inputs.

        Raises:
            UsageError: the shapes are others.
        """
        if received is not None:
            encoder_inputs, decoder_inputs = received, None
            if self.decoder is not None:
                encoder_inputs, decoder_inputs = received.split([self.src_seq_length, self.tgt_seq_length], dim=1)
        if encoder_inputs is None:
            raise UsageError("Transformer: encoder_inputs are not given")
        if (decoder_inputs is None) != (self.decoder is None):
            raise UsageError(
                f"Transformer: it has {self.decoder_layers} decoder layers, and decoder_inputs "
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
    """Refuse what MindSpore's modules have and these have not."""
    if any(each != torch.float32 for each in types):
        told = ", ".join(str(each) for each in types)
        raise UsageError(
            f"{name}: its compute and parameter types are {told}; a network has one type for all of it",
            hint="leave them out, and call network.to(torch.bfloat16)",
        )
    if use_past:
        raise UsageError(f"{name}: use_past = True, and keys and values are not kept", hint="use_past = False")
    if moe_config is not None:
        raise UsageError(f"{name}: a moe_config is given, and there are no experts", hint="leave it out")


def _added(mask: Tensor | None, hidden_BTD: Tensor, keys: int, told: str) -> Tensor | None:
    """Return what is added to scores, B1TS, from a mask BTS of ones and zeros."""
    if mask is None:
        return None
    check_shape(mask, (*hidden_BTD.shape[:2], keys), told)
    return ((1 - mask.to(hidden_BTD.dtype)) * MASKED)[:, None]
