"""Layers -> pipeline stages, over the encoder and the decoder as one stack, and how busy each stage will be.

Worked example, 2 encoder and 2 decoder layers of costs 2 2 3 3 and a head of cost 6 on pp=2: the parts are e0 e1 d0 d1
head = 2 2 3 3 6, and the cut that makes the busiest stage least is (e0 e1 d0) (d1 head) = 7 + 9.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

from launcher.core.frozen import frozen


@frozen
class Stage:
    index: int
    count: int
    encoder_layers: range  # global indices of the encoder layers here, possibly none
    decoder_layers: range
    closes_encoder: bool  # applies the encoder's final norm after its layers

    @property
    def is_first(self) -> bool:
        """True for the stage that holds the embeddings of both languages."""
        return self.index == 0

    @property
    def is_last(self) -> bool:
        """True for the stage that holds the decoder's final norm, the output head and the loss."""
        return self.index == self.count - 1


def stages_of(layer_counts: Sequence[int], encoder_layers: int) -> tuple[Stage, ...]:
    """Return the stages that hold so many layers each, of a stack that begins with `encoder_layers`."""
    cuts = list(accumulate(layer_counts, initial=0))
    # The final norm of the encoder follows its last layer, or stands on the first stage where there is no layer.
    closing = next(index for index, cut in enumerate(cuts[1:]) if cut >= encoder_layers)
    return tuple(
        Stage(
            index=index,
            count=len(layer_counts),
            encoder_layers=range(min(first, encoder_layers), min(last, encoder_layers)),
            decoder_layers=range(max(first - encoder_layers, 0), max(last - encoder_layers, 0)),
            closes_encoder=index == closing,
        )
        for index, (first, last) in enumerate(pairwise(cuts))
    )


def cut_by_cost(costs: Sequence[int], count: int) -> tuple[int, ...]:
    """Return how many consecutive parts each of `count` stages holds, so that the busiest stage has the least to do.

    Of the cuts that are equal in that, it is the most even one, which has the least sum of squared costs; of these, the
    one whose earlier stages hold more. Every stage holds a part: 1 <= `count` <= the number of parts. Costs are whole
    numbers, so that every rank finds the same sums, and the same cut.
    """
    busiest, _ = _best_cut(costs, count, max)
    _, sizes = _best_cut(costs, count, lambda squares, cost: squares + cost**2 if cost <= busiest else math.inf)
    return sizes


def _best_cut(costs: Sequence[int], count: int, join: Callable[[float, int], float]) -> tuple[float, tuple[int, ...]]:
    """Return the least worth of a cut, and its sizes; `join` adds a stage's cost to the worth of the stages before it.

    Dynamic programming over the stages: of all cuts of the first parts into so many stages only the best can begin the
    best whole cut, since `join` never falls when the worth before grows. Of equal ones it is that with larger sizes first.
    """
    ends = list(accumulate(costs, initial=0))
    # By the number of parts in the stages so far: the least worth, and the sizes of the stages, negative to sort them.
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0, ())}
    for stage in range(1, count + 1):
        best = {
            last: min(
                (join(worth, ends[last] - ends[first]), (*sizes, first - last))
                for first, (worth, sizes) in best.items()
                if first < last
            )
            for last in range(stage, len(costs) - (count - stage) + 1)
        }
    worth, sizes = best[len(costs)]
    return worth, tuple(-size for size in sizes)


def busy_shares(costs: Sequence[int], micro_batches: int, *, chunks: int = 1) -> tuple[float, ...]:
    """Return the share of a step that each stage works, from the cost of a micro batch on each of them.

    A micro batch passes all stages once, and the others follow it at the pace of the busiest stage c_max. Where a stage holds
    v chunks, the first micro batch reaches every stage after one chunk of each of those before it:

        share_i = M c_i / (M c_max + (sum of all c - c_max) / v)

    With equal stages that is the bubble of (P - 1) / (v M + P - 1) of Narayanan et al. 2021, arXiv:2104.04473.
    """
    step = micro_batches * max(costs) + (sum(costs) - max(costs)) / chunks
    return tuple(micro_batches * cost / step for cost in costs)
