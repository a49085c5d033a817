"""BLEU while a model is trained: its greedy translations of some validation sentences, which all ranks share."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from launcher.recipes.transformer.config import TransformerSettings
from launcher.trainer.data.tokenizer import Tokenizer
from launcher.trainer.data.tokens import TokenizedPairs
from launcher.trainer.decode.beam import Search
from launcher.trainer.decode.score import bleu
from launcher.trainer.decode.translator import Translator
from launcher.trainer.model.transformer import END
from launcher.trainer.parallel.world import World
from launcher.trainer.saved import single_device_model
from launcher.trainer.session import model_shapes


def sample_bleu(
    settings: TransformerSettings,
    weights: Mapping[str, Tensor] | None,
    dtype: torch.dtype,
    sample: TokenizedPairs,
    tokenizer: Tokenizer,
    world: World,
) -> float:
    """Return the BLEU of the model with `weights`, which rank 0 has, on every rank. All ranks must call it.

    For the time of it every rank holds the whole model, whatever the layout is, and translates every n-th sentence.
    """
    everywhere = _on_all_ranks(weights, model_shapes(settings), dtype, world)
    model = single_device_model(settings, everywhere, world.device)
    pairs = sample.uncut()
    own = range(world.place.global_rank, len(pairs), world.place.world_size)
    sources = [tokenizer.decode(pairs[number].source) for number in own]
    found = Translator(model, tokenizer, settings.data).translate(sources, Search(beam=1))
    # Each row is filled by one rank.
    ids_BT = torch.zeros(len(pairs), settings.data.target_length, dtype=torch.int32, device=world.device)
    for number, translation in zip(own, found, strict=True):
        ids = [*translation.ids, END]
        ids_BT[number, : len(ids)] = torch.tensor(ids, dtype=torch.int32)
    hypotheses = world.sum_over_all(ids_BT).tolist()

    def score() -> bytes:
        references = [tokenizer.decode(pairs[number].target) for number in range(len(pairs))]
        return repr(bleu([tokenizer.decode(ids) for ids in hypotheses], references).score).encode()

    return float(world.from_rank_0(score))


def _on_all_ranks(
    weights: Mapping[str, Tensor] | None, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype, world: World
) -> dict[str, Tensor]:
    """Return on all ranks what rank 0 has, of these shapes. All ranks must call it."""
    everywhere = {}
    for name, shape in shapes.items():
        whole = torch.empty(shape, dtype=dtype, device=world.device)
        if weights is not None:
            whole.copy_(weights[name])
        if world.place.world_size > 1:
            dist.broadcast(whole, src=0)
        everywhere[name] = whole
    return everywhere
