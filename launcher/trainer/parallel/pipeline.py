"""Pipeline parallelism: a schedule is a list of actions, and one engine runs any list.

One forward, one backward (1F1B; Narayanan et al. 2019, PipeDream): stage i of P first runs min(M, P - 1 - i) forwards,
then alternates, then runs the remaining backwards, so that at most P - i micro batches are in flight there. With P = 2
and M = 3, stage 0 does F0 F1 B0 F2 B1 B2 and stage 1 does F0 B0 F1 B1 F2 B2.

Both streams, (encoded_BSD, decoded_BTD), cross a stage boundary as one tensor joined along time. Shapes may differ
from one micro batch to the next: every stage sees the token ids, so it knows what will arrive.

Messages of one direction between two neighbours arrive in the order in which they are sent, and each direction has a
process group of its own. Thus nothing relies on message tags, which NCCL and HCCL do not have, and a rank that waits
to send never keeps its peer from sending the other way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from launcher.core.frozen import frozen
from launcher.trainer.parallel.waiting import bubble
from launcher.trainer.telemetry import recording

MESSAGES_ON_THEIR_WAY = 2  # in one direction, of one stage


@frozen
class Action:
    kind: Literal["forward", "backward"]
    micro_batch: int


Schedule = tuple[Action, ...]


def one_forward_one_backward(stage: int, stage_count: int, micro_batches: int) -> Schedule:
    """Return the 1F1B schedule of one stage."""
    ahead = min(micro_batches, stage_count - 1 - stage)
    forwards = [Action("forward", index) for index in range(micro_batches)]
    backwards = [Action("backward", index) for index in range(micro_batches)]
    steady = [action for pair in zip(forwards[ahead:], backwards, strict=False) for action in pair]
    return (*forwards[:ahead], *steady, *backwards[micro_batches - ahead :])


def forward_only(micro_batches: int) -> Schedule:
    """Return the schedule of a validation."""
    return tuple(Action("forward", index) for index in range(micro_batches))


@frozen
class Links:
    """This stage's neighbours along the pipeline, as global ranks, and a process group for each direction."""

    previous: int | None = None
    following: int | None = None
    forward_group: dist.ProcessGroup | None = None
    backward_group: dist.ProcessGroup | None = None

    def shake_hands(self, device: torch.device) -> None:
        """Open every connection once, boundary by boundary along the pipeline.

        NCCL and HCCL open a connection at its first message and block until both ends are there. Opened on demand,
        in the order of a schedule, two neighbours could wait for each other for ever.
        """
        token = torch.zeros(1, device=device)
        if self.previous is not None:
            dist.recv(token, self.previous, group=self.forward_group)
            dist.send(token, self.previous, group=self.backward_group)
        if self.following is not None:
            dist.send(token, self.following, group=self.forward_group)
            dist.recv(token, self.following, group=self.backward_group)


class Pipeline:
    """Runs schedules on one stage.

    `compute(micro_batch, received)` gives this stage's output for a micro batch, from the previous stage's output
    (None on the first stage). The output of the last stage is a scalar, the loss. `shape_of(micro_batch)` is the
    shape of what stages send each other.
    """

    def __init__(
        self,
        links: Links,
        compute: Callable[[int, Tensor | None], Tensor],
        shape_of: Callable[[int], Sequence[int]],
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._links, self._compute, self._shape_of = links, compute, shape_of
        self._device, self._dtype = device, dtype

    def run(self, schedule: Schedule) -> list[Tensor]:
        """Run `schedule` to its end; on the last stage, give the loss of each micro batch, without its graph.

        Blocks until every message of this stage has been sent and received.
        """
        arriving: dict[Action, tuple[dist.Work, Tensor]] = {}
        forward = _Outbox("forward", self._links.following, self._links.forward_group)
        backward = _Outbox("backward", self._links.previous, self._links.backward_group)
        graphs: dict[int, tuple[Tensor | None, Tensor]] = {}
        losses: list[Tensor] = []
        trains = any(action.kind == "backward" for action in schedule)
        for index, action in enumerate(schedule):
            recording.enter_phase(action.kind)
            # Receives are posted one action ahead, so that a message can arrive while this stage computes.
            for coming in schedule[index : index + 2]:
                self._expect(coming, arriving)
            received = self._take(action, arriving)
            if action.kind == "forward":
                if trains and received is not None:
                    received.requires_grad_()
                output = self._compute(action.micro_batch, received)
                if trains:
                    graphs[action.micro_batch] = (received, output)
                if self._links.following is None:
                    losses.append(output.detach())
                forward.send(output.detach())
            else:
                graph_input, graph_output = graphs.pop(action.micro_batch)
                graph_output.backward(received)
                if graph_input is not None:
                    assert graph_input.grad is not None, "a received tensor is a leaf that requires a gradient"
                    backward.send(graph_input.grad)
        forward.close()
        backward.close()
        recording.enter_phase("optimizer")
        return losses

    def _expect(self, action: Action, arriving: dict[Action, tuple[dist.Work, Tensor]]) -> None:
        """Post the receive that `action` needs, unless it needs none or it is posted already."""
        forward = action.kind == "forward"
        source = self._links.previous if forward else self._links.following
        if source is None or action in arriving:
            return
        buffer = torch.empty(tuple(self._shape_of(action.micro_batch)), device=self._device, dtype=self._dtype)
        group = self._links.forward_group if forward else self._links.backward_group
        if recording.active is not None:
            recording.active.received(action.kind, source, buffer.nbytes)
        work = dist.irecv(buffer, source, group=group)
        assert work is not None, "a stage receives only within its own group"
        arriving[action] = (work, buffer)

    @staticmethod
    def _take(action: Action, arriving: dict[Action, tuple[dist.Work, Tensor]]) -> Tensor | None:
        if action not in arriving:
            return None
        work, buffer = arriving.pop(action)
        with bubble:
            work.wait()
        return buffer


class _Outbox:
    """Messages in one direction. A tensor lives until it has left, and at most two are on their way.

    Waiting for the last but one never deadlocks: a neighbour takes message k - 2 without having seen message k.
    """

    def __init__(
        self, direction: Literal["forward", "backward"], to: int | None, group: dist.ProcessGroup | None
    ) -> None:
        self._direction, self._to, self._group = direction, to, group
        self._leaving: deque[tuple[dist.Work, Tensor]] = deque()

    def send(self, tensor: Tensor) -> None:
        """Send in the background; at the end of the pipeline there is nobody to send to."""
        if self._to is None:
            return
        if len(self._leaving) == MESSAGES_ON_THEIR_WAY:
            self._wait_for_oldest()
        tensor = tensor.contiguous()
        if recording.active is not None:
            recording.active.sent(self._direction, self._to, tensor.nbytes)
        work = dist.isend(tensor, self._to, group=self._group)
        assert work is not None, "a stage sends only within its own group"
        self._leaving.append((work, tensor))

    def close(self) -> None:
        while self._leaving:
            self._wait_for_oldest()

    def _wait_for_oldest(self) -> None:
        work, _tensor = self._leaving.popleft()
        with bubble:
            work.wait()
