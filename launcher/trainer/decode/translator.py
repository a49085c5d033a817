"""Translate sentences with the single-device model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch

from launcher.core.frozen import frozen
from launcher.corpus.text_files import normalised
from launcher.recipes.transformer.transformer_settings import DataConfig
from launcher.trainer.data.tokenizer import Tokenizer
from launcher.trainer.decode.beam import Hypothesis, Search, search
from launcher.trainer.decode.cache import CachedDecoder
from launcher.trainer.model.transformer import END, PAD, Transformer

BATCH_TOKENS = 2048
MAX_LONGER = 50  # maximum tokens beyond the length of the source, as in Vaswani et al. 2017, section 6.1
# A token has at most 16 characters (sentencepiece's max_sentencepiece_length). Text beyond four times the characters that
# the model can read does not affect its input.
MAX_CHARACTERS_OF_TOKEN = 4 * 16
NOTHING = Hypothesis((), math.nan)  # of a blank line: 0 would be the highest score


@frozen
class Translation:
    ids: tuple[int, ...]  # without BEGIN and END
    text: str  # one line
    score: float  # as defined in decode/beam.py; NaN for empty text
    cut_tokens: int  # truncated tokens of the source; a lower bound for very long sources


class Translator:
    """Translates text with `model`, which must not be used elsewhere afterwards."""

    def __init__(self, model: Transformer, tokenizer: Tokenizer, data: DataConfig) -> None:
        self._decoder = CachedDecoder(model.eval())
        self._tokenizer, self._data = tokenizer, data

    def translate(
        self, sentences: Sequence[str], how: Search, *, batch_tokens: int = BATCH_TOKENS
    ) -> list[Translation]:
        """Translate sentences in batches of similar length, with at most `batch_tokens` tokens each, including padding.

        A sentence with more tokens is a batch by itself. Text is normalised as in training. Empty text has an empty
        translation.
        """
        most = self._data.source_length
        if self._data.normalise:
            sentences = [normalised(text) for text in sentences]
        encoded = self._tokenizer.encode([text[: most * MAX_CHARACTERS_OF_TOKEN] for text in sentences])
        sources = {place: [*ids[: most - 1], END] for place, ids in enumerate(encoded) if sentences[place]}
        found: dict[int, Hypothesis] = {}
        for places in _batches(sources, batch_tokens):
            lengths = [len(sources[place]) for place in places]
            padded = [[*sources[place], *[PAD] * (max(lengths) - len(sources[place]))] for place in places]
            source_BS = torch.tensor(padded, device=self._decoder.device)
            limits = [min(self._data.target_length, length + MAX_LONGER) for length in lengths]
            best_of_all = search(self._decoder, source_BS, limits, how, self._tokenizer.size)
            found |= zip(places, best_of_all, strict=True)
        translations = []
        for place, ids in enumerate(encoded):
            best = found.get(place, NOTHING)
            # On one line, since a line break would look like two translations.
            text = self._tokenizer.decode(best.ids).replace("\r", " ").replace("\n", " ")
            translations.append(Translation(best.ids, text, best.score, max(0, len(ids) + 1 - most)))
        return translations


def _batches(sources: Mapping[int, Sequence[int]], batch_tokens: int) -> Iterator[list[int]]:
    """Yield batches of positions in `sources`. The longest sources come first, because they need the most memory."""
    batch: list[int] = []
    for place in sorted(sources, key=lambda place: -len(sources[place])):
        if batch and (len(batch) + 1) * len(sources[batch[0]]) > batch_tokens:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch
