"""The buffers of a network of one's own: what its code changes in them belongs to its state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from launcher.trainer.own.divide import of_rank_0
from launcher.trainer.parallel.world import World


class Buffers:
    """Knows where the buffers of a network are, which a move to a device replaces. Of ranks whose code changes them rank 0's count."""

    def __init__(self, network: nn.Module) -> None:
        """Each is contiguous from here on, as what is written to must be; one that several modules have stays one."""
        made: dict[int, Tensor] = {}
        for module in network.modules():
            for name, buffer in list(module.named_buffers(recurse=False)):
                setattr(module, name, made.setdefault(id(buffer), buffer.contiguous()))
        self._network = network
        self._modules: Mapping[str, nn.Module] = dict(network.named_modules(remove_duplicate=False))
        # As checkpoints keep them, in which all numbers are floating-point ones; each by the first of its names.
        self.saved: dict[str, Tensor] = {}
        for name, buffer in network.named_buffers():
            self.saved[name] = buffer.detach().clone() if buffer.is_floating_point() else buffer.double()

    def of(self, name: str) -> Tensor:
        """Return a buffer as it is now, by any of its names."""
        path, _, own = name.rpartition(".")
        return self._modules[path].get_buffer(own)

    def share(self, world: World) -> None:
        """Have all ranks begin with rank 0's. All ranks must call it."""
        for name in self.saved:
            buffer = self.of(name)
            buffer.copy_(of_rank_0(buffer, world.device))

    def settle(self, world: World) -> None:
        """Put the present values of rank 0 into `saved`, on all ranks. All ranks must call it."""
        for name, saved in self.saved.items():
            saved.copy_(of_rank_0(self.of(name), world.device))

    def take(self) -> None:
        """Give the network what `saved` holds.

        Integers too large for the type in which a checkpoint keeps them stay as the network has them, unless they differ by more.
        """
        for name, saved in self.saved.items():
            buffer = self.of(name)
            if buffer.is_floating_point() or not torch.equal(buffer.to(torch.float32).cpu(), saved.to(torch.float32)):
                buffer.copy_(saved)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Undo, at the end, what is done to buffers: code that is traced may change them, or put what is no tensor in their place."""
        buffers = {name: self.of(name) for name in self.saved}
        values = {name: buffer.clone() for name, buffer in buffers.items()}
        places = [
            (module, own, buffer)
            for module in self._network.modules()
            for own, buffer in module.named_buffers(recurse=False)
        ]
        try:
            yield
        finally:
            for module, own, buffer in places:
                setattr(module, own, buffer)
            for name, buffer in buffers.items():
                buffer.copy_(values[name])


def move_buffers(module: nn.Module, device: torch.device) -> None:
    """Put the buffers of a module and of all within it on a device."""
    for each in module.modules():
        for name, buffer in list(each.named_buffers(recurse=False)):
            setattr(each, name, buffer.to(device))
