"""Training of an image classifier that is replicated on every rank: model, optimizer and batch-norm statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from launcher.trainer.optimizer.sharded import ShardedOptimizer
from launcher.trainer.optimizer.update_rules import Rule
from launcher.trainer.parallel.batch_norm import synchronise_batch_norms
from launcher.trainer.parallel.collectives import all_reduce
from launcher.trainer.parallel.placement import Placement
from launcher.trainer.parallel.world import World
from launcher.trainer.programs.network_program import NetworkTraining
from launcher.trainer.programs.strategy_recorder import RecordedModel, StepRecorder
from launcher.trainer.telemetry import recording

SMALL_PIXELS = 160  # on each side


class ReplicatedTraining(NetworkTraining):
    """One rank's replica of an image classifier. Each rank trains on its share of the batch."""

    def __init__(
        self,
        model: nn.Module,
        settings: Any,
        world: World,
        rule: Rule,
        weights: Callable[[str, torch.Size], Tensor],
        dtype: torch.dtype,
    ) -> None:
        """Move `model` to this rank's device, and initialise it with `weights(name, shape)`. All ranks must call it."""
        self.world, self.backward_passes = world, world.place.layout.micro_batches
        self._is_synchronised = settings.model.batch_norm == "synchronised"
        self.model = model.to(world.device, dtype)
        if self._is_synchronised:
            synchronise_batch_norms(self.model, world.dp)
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(weights(name, parameter.shape))
        self.parameters = dict(self.model.named_parameters())
        self.buffers: Mapping[str, Tensor] = {
            name: buffer for name, buffer in self.model.named_buffers() if buffer.is_floating_point()
        }
        self._placements = {name: Placement.uncut(parameter.shape) for name, parameter in self.parameters.items()}
        self.optimizer = ShardedOptimizer(
            self.parameters,
            self._placements,
            rule,
            gradient_groups=settings.parallel.gradient_groups,
            dp=world.dp,
            mp=world.mp,
            pp=world.pp,
        )

    def placements(self, rank: int) -> Mapping[str, Placement]:
        del rank
        return self._placements

    def forward_and_backward(self, inputs: tuple[Tensor, ...], count: int) -> Tensor:
        images_BCHW, label_B = inputs
        if recording.active is not None:
            recording.active.graph.name_tensors({"images": images_BCHW, "labels": label_B})
        total = torch.zeros((), device=images_BCHW.device, dtype=torch.promote_types(images_BCHW.dtype, torch.float32))
        # Channels last is faster, except for small images on processors with AVX-512.
        has_avx512 = images_BCHW.device.type == "cpu" and torch.backends.cpu.get_cpu_capability() == "AVX512"
        is_small = images_BCHW.shape[-1] < SMALL_PIXELS
        memory_format = torch.contiguous_format if has_avx512 and is_small else torch.channels_last
        for part in range(self.backward_passes):
            recording.enter_phase("forward")
            here = slice(part, None, self.backward_passes)
            part_BCHW = images_BCHW[here].contiguous(memory_format=memory_format)
            loss = functional.cross_entropy(self.model(part_BCHW), label_B[here], reduction="sum") / count
            recording.enter_phase("backward")
            loss.backward()
            total += loss.detach()
        return total

    @torch.no_grad()
    def settle_buffers(self) -> None:
        """Average the running statistics over the ranks. Synchronised batch norms already have equal statistics."""
        dp = self.world.dp
        if dp.size == 1 or self._is_synchronised:
            return
        flat = torch.cat([buffer.view(-1) for buffer in self.buffers.values()])
        all_reduce(flat, dp).div_(dp.size)
        means = flat.split([each.numel() for each in self.buffers.values()])
        for buffer, mean in zip(self.buffers.values(), means, strict=True):
            buffer.copy_(mean.view_as(buffer))

    def take_buffers(self) -> None:
        """Do nothing, since checkpoints are read directly into the model's buffers."""

    @contextmanager
    def full_model(self, make: Callable[[], nn.Module]) -> Iterator[nn.Module]:
        del make
        yield self.model.eval()
        self.model.train()

    def step_recorder(self, path: Path | None, recipe: str, attempt: int) -> StepRecorder:
        recorded = RecordedModel(recipe, self.model, self._placements, gives_parts=())
        return recorded.recorder(path, self.world, attempt)
