"""Pipeline schedules: the order of a stage's forward and backward passes for its micro batches, as lists of actions.

P stages, M micro batches, and v chunks of layers on each stage: stage i holds the parts i, P + i, 2P + i, ... of P v
parts of the model, and a micro batch passes all stages v times. With equal stages, the table shows a rank's idle share
of a step, and the number of micro batches whose activations a stage keeps for backward (counted for all its layers):

    1f1b          (P - 1) / (M + P - 1)      min(M, P - i)
    gpipe         (P - 1) / (M + P - 1)      M
    interleaved   (P - 1) / (v M + P - 1)    min(v M, 2 (P - 1 - i) + (v - 1) P + 1) / v

(Narayanan et al. 2021, arXiv:2104.04473, sections 2.2.1 and 2.2.2, which give the bubble relative to the time without it:
(P - 1) / M and (P - 1) / (v M).) Worked example, P = 2, M = 4, v = 2: interleaved is idle for 1/9 of a step instead of 1/5, and
stage 0 keeps 5/2 micro batches instead of 2.
"""

from __future__ import annotations

from typing import Literal

from launcher.core.frozen import frozen

KINDS = ONE_FORWARD_ONE_BACKWARD, GPIPE, INTERLEAVED = "1f1b", "gpipe", "interleaved"


@frozen
class Action:
    kind: Literal["forward", "backward"]
    micro_batch: int
    chunk: int = 0  # index among the stage's chunks


Schedule = tuple[Action, ...]


def schedule_of(kind: str, stage: int, stage_count: int, micro_batches: int, *, chunks: int = 1) -> Schedule:
    """Return the schedule of the given kind for one stage. Only INTERLEAVED supports several chunks."""
    if kind == GPIPE:
        return gpipe(micro_batches)
    if kind == INTERLEAVED:
        return interleaved(stage, stage_count, micro_batches, chunks)
    return one_forward_one_backward(stage, stage_count, micro_batches)


def one_forward_one_backward(stage: int, stage_count: int, micro_batches: int) -> Schedule:
    """Return the 1F1B schedule of one stage (Narayanan et al. 2019, PipeDream).

    Stage i of P first runs min(M, P - 1 - i) forwards, then alternates, then runs the remaining backwards. With P = 2 and
    M = 3, stage 0 does F0 F1 B0 F2 B1 B2 and stage 1 does F0 B0 F1 B1 F2 B2.
    """
    return _alternating(
        forward_only(micro_batches),
        tuple(Action("backward", index) for index in range(micro_batches)),
        ahead=stage_count - 1 - stage,
    )


def gpipe(micro_batches: int) -> Schedule:
    """Return the GPipe schedule (Huang et al. 2019, arXiv:1811.06965), in which all forwards precede all backwards."""
    return (*forward_only(micro_batches), *(Action("backward", index) for index in range(micro_batches)))


def interleaved(stage: int, stage_count: int, micro_batches: int, chunks: int) -> Schedule:
    """Return the interleaved 1F1B schedule of one stage. `stage_count` must divide `micro_batches`.

    Groups of P micro batches pass one chunk after another: forward from the first chunk, backward from the last. Stage
    i first runs min(v M, 2 (P - 1 - i) + (v - 1) P) forwards, then alternates. With P = 2, M = 2 and v = 2, where F1.0
    is micro batch 1 in chunk 0, stage 1 does F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 B0.0 B1.0. A single stage with one chunk
    behaves as in 1F1B.
    """
    forwards = forward_only(micro_batches, stage_count=stage_count, chunks=chunks)
    backwards = tuple(Action("backward", one.micro_batch, chunks - 1 - one.chunk) for one in forwards)
    return _alternating(forwards, backwards, ahead=2 * (stage_count - 1 - stage) + (chunks - 1) * stage_count)


def forward_only(micro_batches: int, *, stage_count: int = 1, chunks: int = 1) -> Schedule:
    """Return the schedule of a validation pass. With several chunks, `stage_count` must divide `micro_batches`."""
    if chunks == 1:
        return tuple(Action("forward", index) for index in range(micro_batches))
    return tuple(
        Action("forward", index, chunk)
        for first in range(0, micro_batches, stage_count)
        for chunk in range(chunks)
        for index in range(first, first + stage_count)
    )


def most_in_flight(schedule: Schedule) -> int:
    """Return the maximum number of forwards that wait for their backward. Each keeps the activations of a chunk."""
    in_flight = most = 0
    for action in schedule:
        in_flight += 1 if action.kind == "forward" else -1
        most = max(most, in_flight)
    return most


def _alternating(forwards: Schedule, backwards: Schedule, *, ahead: int) -> Schedule:
    """Return `ahead` forwards, then alternating forwards and backwards, then the remaining backwards."""
    ahead = min(len(forwards), ahead)
    steady = [action for pair in zip(forwards[ahead:], backwards, strict=False) for action in pair]
    return (*forwards[:ahead], *steady, *backwards[len(forwards) - ahead :])
