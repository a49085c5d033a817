"""The same model under torch's own parallelism: what oracles and benchmarks hold the trainer against."""

import torch
from torch import Tensor, nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from launcher.trainer.model.linear import Linear
from launcher.trainer.model.transformer import Batch


class TorchStage(nn.Module):
    """One of the trainer's stages with the calling convention of torch's pipeline; the last one gives logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        for module in model.modules():
            if isinstance(module, Linear):
                module.__class__ = nn.Linear

    def forward(self, *received: Tensor, source_ids: Tensor, target_ids: Tensor) -> object:
        # torch insists on an argument for the first stage; later ones get the two streams.
        streams = received if len(received) == 2 else None
        rows = torch.arange(len(source_ids))
        batch = Batch(
            source_BS=source_ids,
            target_BT=target_ids,
            labels_BT=target_ids,
            row_B=rows,
            labelled_N=rows,
            source_tokens=0,
        )
        encoded, decoded = self.model(batch, streams)
        return (encoded, decoded) if self.model.head is None else self.model.project(decoded)


def tensor_parallel_styles(model: nn.Module) -> dict[str, ParallelStyle]:
    """DTensor's plan for the same layers that the trainer shards; the output head gives whole logits."""
    styles: dict[str, ParallelStyle] = {}
    for name, _ in model.named_modules():
        if name.endswith((".query", ".key", ".value", ".expand")):
            styles[name] = ColwiseParallel()
        elif name.endswith((".output", ".contract")):
            styles[name] = RowwiseParallel()
        elif name.endswith(".word"):
            styles[name] = RowwiseParallel(input_layouts=Replicate())
        elif name == "head":
            styles[name] = ColwiseParallel(output_layouts=Replicate())
    return styles
