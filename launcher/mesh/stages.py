"""Map layers to pipeline stages, with encoder and decoder as one stack, and compute the load of each stage.

Worked example, 2 encoder and 2 decoder layers of costs 2 2 3 3 and a head of cost 6 on pp=2: the parts are e0 e1 d0 d1
head = 2 2 3 3 6, and the partition with the least busy maximum is (e0 e1 d0) (d1 head) = 7 + 9.
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
    encoder_layers: range  # global indices of this stage's encoder layers; may be empty
    decoder_layers: range
    closes_encoder: bool  # applies the encoder's final norm after its layers

    @property
    def is_first(self) -> bool:
        """True for the stage with the embeddings of both languages."""
        return self.index == 0

    @property
    def is_last(self) -> bool:
        """True for the stage with the decoder's final norm, the output head and the loss."""
        return self.index == self.count - 1


def stages_of(layer_counts: Sequence[int], encoder_layers: int) -> tuple[Stage, ...]:
    """Return stages with the given numbers of layers. The first `encoder_layers` layers belong to the encoder."""
    cuts = list(accumulate(layer_counts, initial=0))
    # The encoder's final norm follows its last layer, or is on the first stage if there is no encoder layer.
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
    """Partition parts with `costs` into `count` stages so that the highest cost is minimal. Return the stage sizes.

    Among equal partitions, return the most even one (smallest sum of squared costs), then the one whose earlier stages
    hold more parts. Every stage holds at least one part: 1 <= `count` <= the number of parts. Costs are integers, so
    that every rank computes the same sums and the same partition.
    """
    busiest, _ = _best_cut(costs, count, max)
    _, sizes = _best_cut(costs, count, lambda squares, cost: squares + cost**2 if cost <= busiest else math.inf)
    return sizes


def _best_cut(costs: Sequence[int], count: int, join: Callable[[float, int], float]) -> tuple[float, tuple[int, ...]]:
    """Return the cost and stage sizes of the cheapest partition. `join` combines the cost so far with a stage's cost.

    Dynamic programming over the stages: only the best partition of the first parts into a number of stages can begin
    the best whole partition, since `join` is monotonic. Among equal ones, larger sizes come first.
    """
    ends = list(accumulate(costs, initial=0))
    # By the number of parts in the stages so far: the lowest cost, and the stages' sizes, negated for sorting.
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
    """Return the fraction of a step for which each stage is busy, given the cost of a micro batch on each stage.

    A micro batch passes all stages once; the others follow at the pace of the busiest stage, c_max. If a stage holds v
    chunks, the first micro batch reaches every stage after one chunk of each stage before it:

        share_i = M c_i / (M c_max + (sum of all c - c_max) / v)

    With equal stages this is the bubble (P - 1) / (v M + P - 1) of Narayanan et al. 2021, arXiv:2104.04473.
    """
    step = micro_batches * max(costs) + (sum(costs) - max(costs)) / chunks
    return tuple(micro_batches * cost / step for cost in costs)
