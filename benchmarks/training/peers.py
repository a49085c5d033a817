"""The same model and training step in other libraries: torch.nn.Transformer and Hugging Face's MarianMTModel.

Both have the sizes, dropout, smoothing, clipping and AdamW of the trainer's settings, an untied head, and the
trainer's batches. Dropout is applied only to embeddings and residual branches, as in the trainer. nn.Transformer's
single dropout option also sets it for attention weights and inner activations, so it is removed there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from launcher.recipes.transformer.transformer_settings import TransformerSettings
from launcher.trainer.model.transformer import BEGIN, END, PAD, Batch
from training.batches import RATE

Step = Callable[[Batch], float]


class TorchTransformer(nn.Module):
    """Embeddings, torch.nn.Transformer with norms first, and a head."""

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__()
        model, data = settings.model, settings.data
        self.source_word = nn.Embedding(model.vocabulary_size, model.d_model)
        self.target_word = nn.Embedding(model.vocabulary_size, model.d_model)
        self.source_position = nn.Embedding(data.source_length, model.d_model)
        self.target_position = nn.Embedding(data.target_length, model.d_model)
        self.dropout = nn.Dropout(model.dropout)
        self.transformer = nn.Transformer(
            model.d_model, model.heads, model.encoder_layers, model.decoder_layers, model.feed_forward_dim,
            dropout=model.dropout, batch_first=True, norm_first=True,
        )  # fmt: skip
        for layer in (*self.transformer.encoder.layers, *self.transformer.decoder.layers):
            layer.dropout = nn.Identity()
            for attention in (layer.self_attn, getattr(layer, "multihead_attn", None)):
                if attention is not None:
                    attention.dropout = 0.0
        self.head = nn.Linear(model.d_model, model.vocabulary_size, bias=False)

    def forward(self, batch: Batch) -> Tensor:
        source, target = batch.source_BS, batch.target_BT
        encoded = self.dropout(self.source_word(source) + self.source_position.weight[: source.shape[1]])
        decoded = self.dropout(self.target_word(target) + self.target_position.weight[: target.shape[1]])
        is_padding = source == PAD
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.head(
            self.transformer(
                encoded, decoded, tgt_mask=causal, tgt_is_causal=True,
                src_key_padding_mask=is_padding, memory_key_padding_mask=is_padding,
            )
        )  # fmt: skip


def torch_step(settings: TransformerSettings) -> Step:
    model = TorchTransformer(settings).train()
    return _step(settings, model, model)


def marian_model(settings: TransformerSettings) -> Any:
    """Return a MarianMTModel of the same sizes, in training; with one matrix for embeddings and head where the settings share it.

    Its norms stand after each block and its positions are sinusoids, whatever the settings say.
    """
    from transformers import MarianConfig, MarianMTModel  # noqa: PLC0415 - the extra `bench`

    sizes, data = settings.model, settings.data
    is_shared = sizes.share == "all"
    return MarianMTModel(
        MarianConfig(
            vocab_size=sizes.vocabulary_size, decoder_vocab_size=sizes.vocabulary_size, share_encoder_decoder_embeddings=is_shared,
            tie_word_embeddings=is_shared, scale_embedding=sizes.scale_embedding, d_model=sizes.d_model,
            max_position_embeddings=max(data.source_length, data.target_length),
            encoder_layers=sizes.encoder_layers, decoder_layers=sizes.decoder_layers,
            encoder_attention_heads=sizes.heads, decoder_attention_heads=sizes.heads,
            encoder_ffn_dim=sizes.feed_forward_dim, decoder_ffn_dim=sizes.feed_forward_dim, activation_function="relu",
            dropout=sizes.dropout, attention_dropout=0.0, activation_dropout=0.0,
            pad_token_id=PAD, eos_token_id=END, bos_token_id=BEGIN, decoder_start_token_id=BEGIN, forced_eos_token_id=END,
            attn_implementation="sdpa",
        )
    ).train()  # fmt: skip


def marian_step(settings: TransformerSettings) -> Step:
    model = marian_model(settings)

    def logits(batch: Batch) -> Tensor:
        return model(
            input_ids=batch.source_BS,
            attention_mask=batch.source_BS != PAD,
            decoder_input_ids=batch.target_BT,
            use_cache=False,
        ).logits

    return _step(settings, model, logits)


def _step(settings: TransformerSettings, model: nn.Module, logits_of: Callable[[Batch], Tensor]) -> Step:
    train = settings.train
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=RATE,
        betas=(train.beta1, train.beta2),
        eps=train.epsilon,
        weight_decay=train.weight_decay,
    )

    def step(batch: Batch) -> float:
        optimizer.zero_grad()
        loss = functional.cross_entropy(
            logits_of(batch).flatten(0, 1),
            batch.labels_BT.flatten(),
            ignore_index=PAD,
            label_smoothing=train.label_smoothing,
        )
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), train.clip_norm)
        optimizer.step()
        return loss.item()

    return step
