"""Greedy translation with the single-device model: at each step, the likeliest next token.

Shapes: B sentences, S source tokens, T target tokens so far, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from launcher.trainer.data.tokenizer import Tokenizer
from launcher.trainer.model.transformer import BEGIN, END, PAD, Transformer, attention_mask
from launcher.trainer.telemetry.heartbeat import getting_on


@torch.no_grad()
def translate(
    model: Transformer, tokenizer: Tokenizer, sentences: Sequence[str], *, source_length: int, target_length: int
) -> list[str]:
    """Translate `sentences` together; a translation ends with END or after `target_length` tokens."""
    device = next(model.parameters()).device
    encoded = [[*ids[: source_length - 1], END] for ids in tokenizer.encode(sentences)]
    width = max(len(ids) for ids in encoded)
    source_BS = torch.tensor([[*ids, *[PAD] * (width - len(ids))] for ids in encoded], device=device)
    mask_B11S = attention_mask(source_BS)
    encoded_BSD = model.encode(model.source_embedding(source_BS), mask_B11S)
    target_BT = torch.full((len(encoded), 1), BEGIN, device=device)
    for _ in range(target_length):  # the position embedding has that many rows, and BEGIN takes the first
        decoded_BTD = model.decode(model.target_embedding(target_BT), encoded_BSD, mask_B11S)
        logits_B1V = model.project(decoded_BTD[:, -1:])
        next_B1 = logits_B1V[..., : tokenizer.size].argmax(dim=-1)
        target_BT = torch.cat([target_BT, next_B1], dim=1)
        if (target_BT == END).any(dim=1).all():
            break
        getting_on()
    return [tokenizer.decode(ids[1:]) for ids in target_BT.tolist()]
