"""A weight used by the first and the last stage of a pipeline: the matrix shared by embeddings and head.

The first stage owns the weight: its optimizer updates it, and norm and checkpoints include it once. The last stage has
a copy:

    1. collect    after its last backward pass the last stage sends its gradient, and the first stage adds it
    2. publish    after the update the first stage sends the weight

Each rank exchanges messages with the rank at the same data- and model-parallel coordinate. Both messages are sent while
the pipeline idles: the last stage finishes backward before the first, and needs the weight only for its next micro
batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from launcher.trainer.parallel.collectives import Group
from launcher.trainer.telemetry import recording
from launcher.trainer.telemetry.step_time import bubble


class SharedWeight:
    """A weight that the first and last pipeline stages share. The first stage owns it, and the last has a copy."""

    def __init__(self, name: str, parameter: nn.Parameter, pp: Group) -> None:
        """Allocate the gradient, which the last stage accumulates. `pp` is the group of pipeline stages."""
        self.name, self.is_owner = name, pp.index == 0
        self.parameter, self._handle = parameter, pp.handle
        self._other = pp.ranks[-1 if self.is_owner else 0]
        # The type in which the optimizer accumulates gradients.
        dtype = torch.promote_types(parameter.dtype, torch.float32)
        self._gradient = torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
        if not self.is_owner and parameter.dtype == dtype:
            parameter.grad = self._gradient
        elif not self.is_owner:
            parameter.register_post_accumulate_grad_hook(self._take)

    @classmethod
    def of(cls, name: str, parameters: Mapping[str, nn.Parameter], pp: Group) -> SharedWeight | None:
        """Return the shared weight, or None if there is only one stage or this stage does not use the weight."""
        return cls(name, parameters[name], pp) if pp.size > 1 and name in parameters else None

    @property
    def gradient(self) -> Tensor:
        """The tensor that is sent or received as the gradient of the weight."""
        return self._gradient

    def zero_gradient(self) -> None:
        if not self.is_owner:
            self._gradient.zero_()

    def collect(self, add: Callable[[Tensor], None]) -> None:
        """Send the copy's gradient to the owner, which passes it to `add`. Blocks until the transfer is done."""
        with recording.within("optimizer", "optimizer"):
            self._pass(self._gradient, sends=not self.is_owner, what="gradient of the shared weight")
        if self.is_owner:
            add(self._gradient)

    @torch.no_grad()
    def publish(self) -> None:
        """Send the shared weight from the stage that updates it to the stage that has a copy. Blocks until it is sent."""
        with recording.within("optimizer", "optimizer"):
            self._pass(self.parameter.detach(), sends=self.is_owner, what="shared weight")

    def _pass(self, tensor: Tensor, *, sends: bool, what: str) -> None:
        if recording.active is not None:
            ends = (recording.active.rank, self._other) if sends else (self._other, recording.active.rank)
            recording.active.communicated("send" if sends else "receive", ends, tensor.nbytes, what)
        with bubble:
            if sends:
                dist.send(tensor, self._other, group=self._handle)
            else:
                dist.recv(tensor, self._other, group=self._handle)

    def _take(self, parameter: Tensor) -> None:
        assert parameter.grad is not None, "autograd has just computed it"
        self._gradient.add_(parameter.grad)
        parameter.grad = None
