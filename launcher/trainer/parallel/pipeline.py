"""Runs one stage of a pipeline by a schedule (`launcher/mesh/schedules.py`): a list of forwards and backwards.

The states of encoder and decoder, (encoded_BSD, decoded_BTD), cross a stage boundary as one tensor, concatenated along
time. Shapes may differ between micro batches: every stage has the token ids, so it knows the next message's shape.

Messages in one direction between two neighbours arrive in order, and each direction has its own process group. So no
message tags are needed, which NCCL and HCCL do not have. A rank that waits to send does not block its peer from sending
in the other direction. If stages hold several chunks of layers, the last stage sends the output of all chunks but the
last to the first stage, in separate process groups.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from launcher.core.frozen import frozen
from launcher.mesh.schedules import Action, Schedule
from launcher.trainer.telemetry import recording
from launcher.trainer.telemetry.step_time import bubble

MESSAGES_ON_THEIR_WAY = 2  # per stage and direction


@frozen
class Link:
    """A connection to a rank of another pipeline stage, with a separate process group for each direction."""

    rank: int
    forward_group: dist.ProcessGroup | None
    backward_group: dist.ProcessGroup | None


@frozen
class Links:
    """The connections of this stage to its neighbours in the pipeline. Without a neighbour, the link is None."""

    previous: Link | None = None
    following: Link | None = None
    chunks: int = 1  # chunks of layers per stage
    around: Link | None = None  # with several chunks: from the last stage to the first, and vice versa

    def before(self, chunk: int) -> Link | None:
        """Return the link that provides the input of a chunk, or None if the chunk is the first part of the model."""
        return self.previous or (self.around if chunk > 0 else None)

    def after(self, chunk: int) -> Link | None:
        """Return the link that takes the output of a chunk, or None if the chunk computes the loss."""
        return self.following or (self.around if chunk < self.chunks - 1 else None)

    def shake_hands(self, device: torch.device) -> None:
        """Open all connections between neighbouring stages, one after another along the pipeline.

        NCCL and HCCL open a connection at its first message, and block until both ends take part. If connections were
        opened in the order of a schedule, two neighbours could deadlock.
        """
        token = torch.zeros(1, device=device)
        if self.previous is not None:
            meet(self.previous, token, speaks=False)
        if self.following is not None:
            meet(self.following, token, speaks=True)


def meet(link: Link, token: Tensor, *, speaks: bool) -> None:
    """Open a link's connections by sending one message in each direction. If `speaks`, this rank sends first."""
    if speaks:
        dist.send(token, link.rank, group=link.forward_group)
        dist.recv(token, link.rank, group=link.backward_group)
    else:
        dist.recv(token, link.rank, group=link.forward_group)
        dist.send(token, link.rank, group=link.backward_group)


@dataclass
class Pipeline:
    """Runs the forward and backward passes of one pipeline stage in the order of a schedule.

    `compute(chunk, micro_batch, received)` returns the output of a chunk of this stage for a micro batch. `received` is
    the output of the preceding chunk, or None for the first one of the model. The output of the model's last chunk is a
    scalar, the loss. `shape_of(micro_batch)` returns the shape of the messages between stages.
    """

    links: Links
    compute: Callable[[int, int, Tensor | None], Tensor]
    shape_of: Callable[[int], Sequence[int]]
    _: KW_ONLY
    device: torch.device
    dtype: torch.dtype

    def run(self, schedule: Schedule) -> list[Tensor]:
        """Run `schedule`. Return the detached loss of each micro batch on the last stage, and [] on other stages.

        Blocks until every message of this stage has been sent and received.
        """
        arriving: dict[Action, tuple[dist.Work, Tensor]] = {}
        forward, backward = _Outbox("forward"), _Outbox("backward")
        graphs: dict[tuple[int, int], tuple[Tensor | None, Tensor]] = {}
        losses: list[Tensor] = []
        trains = any(action.kind == "backward" for action in schedule)
        for index, action in enumerate(schedule):
            recording.enter_phase(action.kind)
            # Receives are posted one action ahead, so that a message can arrive while this stage computes.
            for coming in schedule[index : index + 2]:
                self._expect(coming, arriving)
            received = None
            if action in arriving:
                work, received = arriving.pop(action)
                with bubble:
                    work.wait()
            if action.kind == "forward":
                if trains and received is not None:
                    received.requires_grad_()
                output = self.compute(action.chunk, action.micro_batch, received)
                if trains:
                    graphs[action.chunk, action.micro_batch] = (received, output)
                if (to := self.links.after(action.chunk)) is None:
                    losses.append(output.detach())
                else:
                    forward.send(output.detach(), to)
            else:
                graph_input, graph_output = graphs.pop((action.chunk, action.micro_batch))
                graph_output.backward(received)
                if (to := self.links.before(action.chunk)) is not None:
                    assert graph_input is not None, "the chunk has received its input"
                    assert graph_input.grad is not None, "a received tensor is a leaf that requires a gradient"
                    backward.send(graph_input.grad, to)
        forward.close()
        backward.close()
        recording.enter_phase("optimizer")
        return losses

    def _expect(self, action: Action, arriving: dict[Action, tuple[dist.Work, Tensor]]) -> None:
        """Post the receive for `action`, unless it is already posted or no other stage sends the input."""
        forward = action.kind == "forward"
        source = self.links.before(action.chunk) if forward else self.links.after(action.chunk)
        if source is None or action in arriving:
            return
        buffer = torch.empty(tuple(self.shape_of(action.micro_batch)), device=self.device, dtype=self.dtype)
        recording.passed("receive", action.kind, source.rank, buffer.nbytes)
        work = dist.irecv(buffer, source.rank, group=source.forward_group if forward else source.backward_group)
        assert work is not None, "a stage receives only within its own group"
        arriving[action] = (work, buffer)


class _Outbox:
    """Sends messages in one direction, at most two at a time, and keeps each tensor alive until it is sent.

    Waiting for message k - 2 before sending message k cannot deadlock: the neighbour receives it without message k.
    """

    def __init__(self, direction: Literal["forward", "backward"]) -> None:
        self._direction = direction
        self._leaving: deque[tuple[dist.Work, Tensor]] = deque()

    def send(self, tensor: Tensor, to: Link) -> None:
        """Send `tensor` asynchronously. If two messages are already in flight, first wait for the older one."""
        if len(self._leaving) == MESSAGES_ON_THEIR_WAY:
            self._wait_for_oldest()
        tensor = tensor.contiguous()
        recording.passed("send", self._direction, to.rank, tensor.nbytes)
        group = to.forward_group if self._direction == "forward" else to.backward_group
        work = dist.isend(tensor, to.rank, group=group)
        assert work is not None, "a stage sends only within its own group"
        self._leaving.append((work, tensor))

    def close(self) -> None:
        while self._leaving:
            self._wait_for_oldest()

    def _wait_for_oldest(self) -> None:
        work, _tensor = self._leaving.popleft()
        with bubble:
            work.wait()
