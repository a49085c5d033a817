"""The buffers of a custom network, which are part of its saved state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from launcher.trainer.own.divide import of_rank_0
from launcher.trainer.parallel.world import World


class Buffers:
    """The buffers of a network by name, and a copy of rank 0's buffers for checkpoints."""

    def __init__(self, network: nn.Module) -> None:
        """Make all buffers contiguous, so that they can be written to. Shared buffers stay shared."""
        made: dict[int, Tensor] = {}
        for module, name, buffer in _buffers_of(network):
            setattr(module, name, made.setdefault(id(buffer), buffer.contiguous()))
        self._network = network
        self._modules: Mapping[str, nn.Module] = dict(network.named_modules(remove_duplicate=False))
        # The values for checkpoints, which store only floating-point numbers. Keys are the buffers' first names.
        self.saved: dict[str, Tensor] = {}
        for name, buffer in network.named_buffers():
            self.saved[name] = buffer.detach().clone() if buffer.is_floating_point() else buffer.double()

    def of(self, name: str) -> Tensor:
        """Return the network's current buffer with this name. A shared buffer has several names."""
        path, _, own = name.rpartition(".")
        return self._modules[path].get_buffer(own)

    def share(self, world: World) -> None:
        """Broadcast rank 0's buffers to all ranks. All ranks must call it."""
        for name in self.saved:
            buffer = self.of(name)
            buffer.copy_(of_rank_0(buffer, world.device))

    def settle(self, world: World) -> None:
        """Broadcast rank 0's buffers, and store them in `saved` on all ranks. All ranks must call it."""
        for name, saved in self.saved.items():
            saved.copy_(of_rank_0(self.of(name), world.device))

    def take(self) -> None:
        """Copy the restored values in `saved` to the network's buffers.

        A checkpoint rounds large integers to float32. A buffer that rounds to the same number is not changed.
        """
        for name, saved in self.saved.items():
            buffer = self.of(name)
            if buffer.is_floating_point() or not torch.equal(buffer.to(torch.float32).cpu(), saved.to(torch.float32)):
                buffer.copy_(saved)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Restore all buffers on exit, since traced code may change them or replace them by proxies."""
        buffers = {name: self.of(name) for name in self.saved}
        values = {name: buffer.clone() for name, buffer in buffers.items()}
        places = _buffers_of(self._network)
        try:
            yield
        finally:
            for module, own, buffer in places:
                setattr(module, own, buffer)
            for name, buffer in buffers.items():
                buffer.copy_(values[name])


def move_buffers(module: nn.Module, device: torch.device) -> None:
    """Move the buffers of a module and its submodules to a device."""
    for each, name, buffer in _buffers_of(module):
        setattr(each, name, buffer.to(device))


def _buffers_of(network: nn.Module) -> list[tuple[nn.Module, str, Tensor]]:
    return [(each, name, buffer) for each in network.modules() for name, buffer in each.named_buffers(recurse=False)]
