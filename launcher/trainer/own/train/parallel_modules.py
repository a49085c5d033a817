"""The embedding, mask and loss modules of MindSpore's `nn.transformer`, with the same names, arguments and defaults.

On one device they compute the same results as MindSpore's modules; `train` distributes them over ranks. Dropout has
masks that do not depend on the layout of ranks (see launcher/trainer/model/dropout.py).

Shapes: B rows of a batch, T positions, N positions of all rows, D embedding size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from launcher.core.errors import UsageError
from launcher.trainer.model.dropout import Dropout, DropoutBits
from launcher.trainer.own.train.configs import EmbeddingOpParallelConfig, OpParallelConfig


def check_shape(tensor: Tensor, shape: Sequence[int | None], what: str) -> None:
    """Raise a UsageError if `tensor` does not have the given shape. None in `shape` matches any length."""
    is_right = tensor.dim() == len(shape) and all(
        want is None or have == want for have, want in zip(tensor.shape, shape, strict=True)
    )
    if not is_right:
        wanted = ", ".join("*" if want is None else str(want) for want in shape)
        raise UsageError(f"{what} has the shape {tuple(tensor.shape)}, and ({wanted}) is expected")


INITIAL_STD = 0.01  # standard deviation of weights initialised by "normal", as in MindSpore


class VocabEmbedding(nn.Module):
    """An embedding of words or positions: a table of vectors that is indexed by ids.

    `embedding_table` is a parameter with `vocab_size` rows and `embedding_size` columns. `param_init` sets its
    initial values: "normal" (standard deviation 0.01), "zeros", "ones", or a tensor of that shape.
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
                f"VocabEmbedding: param_init = {param_init!r} is unknown",
                hint='use "normal", "zeros", "ones", or a tensor',
            )
        self.word = nn.Embedding.from_pretrained(table_VD, freeze=False)

    @property
    def embedding_table(self) -> Tensor:
        """The embedding table, or this rank's rows if the table is sharded over model-parallel ranks."""
        return self.word.weight

    def forward(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the embedding vectors of the ids, and the embedding table.

        Raises:
            UsageError: an id is not a row of the table. On accelerators this is not checked for a sharded table.
        """
        if input_ids.device.type == "cpu" and input_ids.numel():
            least, most = (int(each) for each in input_ids.aminmax())
            if least < 0 or most >= self.vocab_size:
                raise UsageError(
                    f"VocabEmbedding: the id {least if least < 0 else most} is outside vocab_size = {self.vocab_size}"
                )
        return self.word(input_ids), self.word.weight


class AttentionMask(nn.Module):
    """A module that builds a causal decoder mask from a padding mask."""

    def __init__(self, seq_length: int, parallel_config: OpParallelConfig | None = None) -> None:
        super().__init__()
        self.seq_length, self.parallel_config = seq_length, parallel_config

    def forward(self, input_mask: Tensor) -> Tensor:
        """Return a causal mask (BTT) for a padding mask (BT). In both masks, 1 means visible and 0 means masked.

        A padded position attends to nothing.

        Raises:
            UsageError: the number of positions in the mask is not `seq_length`.
        """
        check_shape(input_mask, (None, self.seq_length), "AttentionMask: input_mask")
        mask_BT = input_mask if input_mask.is_floating_point() else input_mask.float()
        return (mask_BT[:, :, None] * mask_BT[:, None, :]).tril()


class CrossEntropyLoss(nn.Module):
    """The mean of -log p(label) over the positions that a mask selects.

    Under `train`, the mean is over the global batch for any layout of ranks.
    """

    def __init__(self, parallel_config: OpParallelConfig | None = None) -> None:
        super().__init__()
        self.parallel_config = parallel_config
        # Divisors of the next calls, set by training, instead of the sums of the calls' own masks.
        self._divisors: Iterator[Tensor] | None = None

    def begin(self, divisors: Sequence[Tensor]) -> None:
        """Set the divisors of the loss in the next calls, one for each call."""
        self._divisors = iter(divisors)

    def forward(self, logits: Tensor, label: Tensor, input_mask: Tensor) -> Tensor:
        """Return the scalar loss for logits (NV) and labels (N), weighted by a mask (N).

        Raises:
            UsageError: a tensor has the wrong shape.
        """
        check_shape(logits, (None, None), "CrossEntropyLoss: logits")
        check_shape(label, logits.shape[:1], "CrossEntropyLoss: label")
        check_shape(input_mask, logits.shape[:1], "CrossEntropyLoss: input_mask")
        losses_N = functional.cross_entropy(logits, label.long(), reduction="none")
        mask_N = input_mask.to(losses_N.dtype)
        divisor = mask_N.sum() if self._divisors is None else next(self._divisors, None)
        if divisor is None:
            raise UsageError(
                "a CrossEntropyLoss was called more times than during tracing",
                hint="create a separate CrossEntropyLoss for each call",
            )
        return (losses_N * mask_N).sum() / divisor.to(losses_N.dtype).clamp(min=torch.finfo(losses_N.dtype).tiny)


class DrawnDropout(nn.Module):
    """A replacement for `nn.Dropout` whose masks do not depend on the layout of ranks.

    `begin` sets its random bits before each micro batch. The first dim of the input must be the rows of the micro
    batch, or rows and positions merged: B... or (B T)... Only the size of that dim is checked. Inputs with positions
    first, whose number is a multiple of the rows, get different masks on each layout.
    """

    def __init__(self, p: float, place: str) -> None:
        super().__init__()
        self.p = p
        self.dropout, self._place = Dropout(p), place
        self._draws: DropoutBits | None = None
        self._calls = 0  # calls with these random bits; each call has different masks

    def begin(self, draws: DropoutBits | None) -> None:
        """Set the random bits for the next calls. If `draws` is None, nothing is dropped."""
        self._draws, self._calls = draws, 0

    def forward(self, tensor: Tensor) -> Tensor:
        if self._draws is None or self.p == 0:
            return tensor
        self._calls += 1
        self.dropout.place = f"{self._place}.{self._calls}"
        rows = len(self._draws.factor_BT1)
        if not tensor.dim() or len(tensor) % rows:
            raise UsageError(
                f"the dropout {self._place} is called with the shape {tuple(tensor.shape)}, but the first dim is not a "
                f"multiple of the {rows} rows of a micro batch",
                hint="pass a tensor whose first dim is the batch",
            )
        # Each row counts as one position with many features; each feature has its own random bits.
        return self.dropout(tensor.reshape(rows, 1, -1), self._draws).view(tensor.shape)


def draw_dropouts(network: nn.Module) -> None:
    """Replace every `nn.Dropout` of a network by a `DrawnDropout`. Raise a UsageError for other dropout classes."""
    drawn: dict[int, DrawnDropout] = {}
    for path, module in list(network.named_modules(remove_duplicate=False)):
        if not isinstance(module, nn.modules.dropout._DropoutNd):  # noqa: SLF001 - the class of all of them
            continue
        if type(module) is not nn.Dropout:
            raise UsageError(f"{path} is a {type(module).__name__}, which is not supported", hint="use nn.Dropout")
        parent, _, name = path.rpartition(".")
        setattr(network.get_submodule(parent), name, drawn.setdefault(id(module), DrawnDropout(module.p, path)))
