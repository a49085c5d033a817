"""A weight that the first and the last stage of a pipeline compute with: the matrix that embeddings and head share.

The first stage owns it, and so do its optimizer, its norm and its checkpoints, each once. The last stage has a copy:

    1. collect    after its last backward pass the last stage sends its gradient, which the first adds to its own
    2. publish    after the update the first stage sends the weight

Ranks of the same data- and model-parallel place send each other what they hold. Both messages go while the pipeline idles: the last
stage is through with backward before the first is, and needs the weight only once a micro batch has come to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from launcher.trainer.parallel.collectives import Group
from launcher.trainer.parallel.waiting import bubble
from launcher.trainer.telemetry import recording


class SharedWeight:
    """One end of a weight that two stages of a pipeline share: that of the first or of the last stage."""

    def __init__(self, name: str, parameter: nn.Parameter, pp: Group) -> None:
        """`pp`: the ranks of the stages. Where this one is the last, it takes over the gradient of `parameter`."""
        self.name, self.is_owner = name, pp.index == 0
        self.parameter, self._handle = parameter, pp.handle
        self._other = pp.ranks[-1 if self.is_owner else 0]
        # In the type in which the optimizer adds gradients up.
        dtype = torch.promote_types(parameter.dtype, torch.float32)
        self._gradient = torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
        if not self.is_owner and parameter.dtype == dtype:
            parameter.grad = self._gradient
        elif not self.is_owner:
            parameter.register_post_accumulate_grad_hook(self._take)

    @classmethod
    def of(cls, name: str, parameters: Mapping[str, nn.Parameter], pp: Group) -> SharedWeight | None:
        """Return this rank's end; None where no other stage has the weight: there is one stage, or no such weight here."""
        return cls(name, parameters[name], pp) if pp.size > 1 and name in parameters else None

    def zero_gradient(self) -> None:
        if not self.is_owner:
            self._gradient.zero_()

    def collect(self, add: Callable[[Tensor], None]) -> None:
        """Send the copy's gradient; on the owner, `add` it. Blocks until it is there."""
        with recording.within("optimizer", "optimizer"):
            self._pass(self._gradient, sends=not self.is_owner, what="gradient of the shared weight")
        if self.is_owner:
            add(self._gradient)

    @torch.no_grad()
    def publish(self) -> None:
        """Make the copy what the owner has. Blocks until it is there."""
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
        assert parameter.grad is not None, "autograd has just made it"
        self._gradient.add_(parameter.grad)
        parameter.grad = None
