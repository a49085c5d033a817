"""The result of a simulated training step: memory, FLOPs and collectives of each distinct rank.

`launcher/trainer/simulate` computes it in a process with torch, and prints it as JSON.
"""

from __future__ import annotations

from launcher.core.frozen import frozen
from launcher.sharding.strategy_report import ReportKind, ReportPhase

# The kinds of memory, in the order in which they are shown.
MEMORY_KINDS = ("weights", "gradients", "moments", "activations", "buffers")


@frozen
class MemoryPeak:
    """The tensors of a rank at the moment of the step when they need most memory, in bytes by kind."""

    weights: int
    gradients: int  # with the buffers in which they are summed
    moments: int  # with float32 copies of narrower weights
    activations: int
    buffers: int  # ids, dropout's random words, messages, and temporary tensors of the optimizer
    phase: ReportPhase  # of the operator that allocated last
    operator: str  # of the model; "" if it is unknown, as for most of backward
    function: str  # of torch

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    @property
    def parts(self) -> dict[str, int]:
        return {kind: getattr(self, kind) for kind in MEMORY_KINDS}


@frozen
class CollectiveSum:
    """All collectives of a step with the same kind, group and purpose. Messages name the sender, then the receiver."""

    kind: ReportKind
    axis: str  # of the layout: "dp", "mp" or "pp"
    group: tuple[int, ...]
    what: str
    count: int
    bytes: int  # in all; see `ReportCollective`


@frozen
class SimulatedRank:
    """One rank, and the other ranks that have the same memory, FLOPs and collectives."""

    rank: int
    same: tuple[int, ...]  # all such ranks, including `rank`
    stage: int
    peak: MemoryPeak
    forward_flops: int
    backward_flops: int  # with recomputed activations
    collectives: tuple[CollectiveSum, ...]


@frozen
class SimulatedStep:
    recipe: str
    layout: str
    micro_batches: int
    device: str
    torch: str  # version
    assumption: str
    pairs: int  # of the global batch
    source_tokens: int  # of each pair
    target_tokens: int
    ranks: tuple[SimulatedRank, ...]

    @property
    def fullest(self) -> SimulatedRank:
        return max(self.ranks, key=lambda each: each.peak.total)
