"""The baseline loss: a model that ignores the source and the word order."""

from __future__ import annotations

import math

import numpy as np

from launcher.trainer.data.tokens import Integers, TokenizedPairs


def unigram_perplexity(counts: Integers, valid: TokenizedPairs, vocabulary_size: int) -> float:
    """Return the perplexity of `valid` targets for token frequencies `counts`, with one added to every count.

    p(v) = (count(v) + 1) / (total + V)        perplexity = exp(-mean over tokens of log p)
    """
    log_p = np.log((counts + 1) / (counts.sum() + vocabulary_size))
    occurs = valid.target_counts(len(counts))
    return math.exp(-float(occurs @ log_p) / int(occurs.sum()))
