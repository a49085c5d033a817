"""The loss of a model that ignores the source and the word order: the bar that learning has to clear."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from launcher.trainer.data.batches import Example, token_count


def unigram_perplexity(train: Sequence[Example], valid: Sequence[Example], vocabulary_size: int) -> float:
    """Perplexity of `valid` targets under the token frequencies of `train`, with one added to every count.

    p(v) = (count(v) + 1) / (total + V)        perplexity = exp(-mean over tokens of log p)
    """
    counts = Counter(token for example in train for token in example.target)
    total = token_count(train) + vocabulary_size
    losses = [-math.log((counts[token] + 1) / total) for example in valid for token in example.target]
    return math.exp(sum(losses) / len(losses))
