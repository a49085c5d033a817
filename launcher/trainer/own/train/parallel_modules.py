"""The modules before and after the Transformer in MindSpore's `nn.transformer`, by their names, arguments and defaults.

Each computes on one device what MindSpore's does; `train` divides them over ranks.

Shapes: B rows of a batch, T positions, N positions of all rows, D embedding size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from launcher.core.errors import UsageError
from launcher.trainer.own.train.configs import EmbeddingOpParallelConfig, OpParallelConfig


def check_shape(tensor: Tensor, shape: Sequence[int | None], what: str) -> None:
    """Refuse a tensor of another shape; None stands for any length.

    Raises:
        UsageError: with both shapes.
    """
    is_right = tensor.dim() == len(shape) and all(
        want is None or have == want for have, want in zip(tensor.shape, shape, strict=True)
    )
    if not is_right:
        wanted = ", ".join("*" if want is None else str(want) for want in shape)
        raise UsageError(f"{what} has the shape {tuple(tensor.shape)}, and ({wanted}) is needed")


INITIAL_STD = 0.01  # of every weight that "normal" draws, as in MindSpore


class VocabEmbedding(nn.Module):
    """A table of vectors, looked up by ids: of words, or of positions.

    `embedding_table` is a parameter of `vocab_size` rows and `embedding_size` columns, which `param_init` begins with: "normal"
    (deviation 0.01), "zeros", "ones", or a tensor of that shape.
    """

    def __init__(
        self,
        vocab_size: int,
        embedding_size: int,
        parallel_config: EmbeddingOpParallelConfig | None = None,
        param_init: str | Tensor = "normal",
    ) -> None:
        super().__init__()
        self.vocab_size, self.embedding_size = vocab_size, embedding_size
        self.parallel_config = parallel_config or EmbeddingOpParallelConfig()
        table_VD = torch.empty(vocab_size, embedding_size)
        if isinstance(param_init, Tensor):
            check_shape(param_init, (vocab_size, embedding_size), "VocabEmbedding: param_init")
            table_VD.copy_(param_init.detach())
        elif param_init == "normal":
            table_VD.normal_(std=INITIAL_STD)
        elif param_init in {"zeros", "ones"}:
            table_VD.fill_(float(param_init == "ones"))
        else:
            raise UsageError(
                f"VocabEmbedding: param_init = {param_init!r} is not known",
                hint='"normal", "zeros", "ones", or a tensor',
            )
        self.word = nn.Embedding.from_pretrained(table_VD, freeze=False)

    @property
    def embedding_table(self) -> Tensor:
        """The table; where model-parallel ranks have cut it by rows, this rank's rows."""
        return self.word.weight

    def forward(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the vectors of ids of any shape, in one dim more, and the table.

        Raises:
            UsageError: an id is no row of the table. On accelerators that is not looked at where ranks have cut it.
        """
        if input_ids.device.type == "cpu" and input_ids.numel():
            least, most = (int(each) for each in input_ids.aminmax())
            if least < 0 or most >= self.vocab_size:
                raise UsageError(
                    f"VocabEmbedding: the id {least if least < 0 else most} is no row of vocab_size = {self.vocab_size}"
                )
        return self.word(input_ids), self.word.weight


class AttentionMask(nn.Module):
    """Makes the mask of a decoder from the mask of its inputs: a position sees itself and earlier ones that are no padding."""

    def __init__(self, seq_length: int, parallel_config: OpParallelConfig | None = None) -> None:
        super().__init__()
        self.seq_length, self.parallel_config = seq_length, parallel_config

    def forward(self, input_mask: Tensor) -> Tensor:
        """Return a mask BTT from one BT, both 1 where something is seen and 0 elsewhere. A padded position sees nothing.

        Raises:
            UsageError: the mask has another number of positions than `seq_length`.
        """
        check_shape(input_mask, (None, self.seq_length), "AttentionMask: input_mask")
        mask_BT = input_mask if input_mask.is_floating_point() else input_mask.float()
        return (mask_BT[:, :, None] * mask_BT[:, None, :]).tril()


class CrossEntropyLoss(nn.Module):
    """The mean of -log p(label) over the positions that a mask counts.

    In a training by `train` it is the mean over the global batch, however that is divided.
    """

    def __init__(self, parallel_config: OpParallelConfig | None = None) -> None:
        super().__init__()
        self.parallel_config = parallel_config
        # What a training has the sums of the next calls divided by, one after another, instead of the sums of their own masks.
        self._divisors: Iterator[Tensor] | None = None

    def begin(self, divisors: Sequence[Tensor]) -> None:
        """Have the calls that follow divide by these, each by one."""
        self._divisors = iter(divisors)

    def forward(self, logits: Tensor, label: Tensor, input_mask: Tensor) -> Tensor:
        """Return the loss, a scalar, of logits_NV, label_N and a mask of N weights.

        Raises:
            UsageError: the shapes are others.
        """
        check_shape(logits, (None, None), "CrossEntropyLoss: logits")
        check_shape(label, logits.shape[:1], "CrossEntropyLoss: label")
        check_shape(input_mask, logits.shape[:1], "CrossEntropyLoss: input_mask")
        losses_N = functional.cross_entropy(logits, label.long(), reduction="none")
        mask_N = input_mask.to(losses_N.dtype)
        divisor = mask_N.sum() if self._divisors is None else next(self._divisors, None)
        if divisor is None:
            raise UsageError(
                "a CrossEntropyLoss is called more often than the code of its network tells",
                hint="another CrossEntropyLoss for each of its uses",
            )
        return (losses_N * mask_N).sum() / divisor.to(losses_N.dtype).clamp(min=torch.finfo(losses_N.dtype).tiny)
