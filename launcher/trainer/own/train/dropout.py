"""Dropout in a network of one's own, whose masks do not depend on the layout of ranks (launcher/trainer/model/dropout.py)."""

from __future__ import annotations

from torch import Tensor, nn

from launcher.core.errors import UsageError
from launcher.trainer.model.dropout import Dropout, DropoutBits


class DrawnDropout(nn.Module):
    """Takes the place of an `nn.Dropout` in a training: draws, which the training gives before each micro batch, decide.

    What it is called with has the rows of the micro batch as its first dim, or positions row by row: B..., or (B T)... That the first
    dim is so is told by its size alone: what has the positions first, in a number that the rows divide, gets other masks on each layout.
    """

    def __init__(self, p: float, place: str) -> None:
        super().__init__()
        self.p = p
        self.dropout, self._place = Dropout(p), place
        self._draws: DropoutBits | None = None
        self._calls = 0  # with these draws: each has masks of its own

    def begin(self, draws: DropoutBits | None) -> None:
        """Have the calls that follow decide by `draws`, and drop nothing without any."""
        self._draws, self._calls = draws, 0

    def forward(self, tensor: Tensor) -> Tensor:
        if self._draws is None or self.p == 0:
            return tensor
        self._calls += 1
        self.dropout.place = f"{self._place}.{self._calls}"
        rows = len(self._draws.factor_BT1)
        if not tensor.dim() or len(tensor) % rows:
            raise UsageError(
                f"{self._place} drops elements of the shape {tuple(tensor.shape)}, of which the first dim is no rows of a "
                f"micro batch of {rows}",
                hint="a tensor with the batch first",
            )
        # As one position of many features in each row: their words tell them apart.
        return self.dropout(tensor.reshape(rows, 1, -1), self._draws).view(tensor.shape)


def draw_dropouts(network: nn.Module) -> None:
    """Have every `nn.Dropout` of a network decide by draws, each with the first of its paths as its place.

    Raises:
        UsageError: a dropout is of another kind, such as those of whole channels.
    """
    drawn: dict[int, DrawnDropout] = {}
    for path, module in list(network.named_modules(remove_duplicate=False)):
        if not isinstance(module, nn.modules.dropout._DropoutNd):  # noqa: SLF001 - the class of all of them
            continue
        if type(module) is not nn.Dropout:
            raise UsageError(f"{path} is a {type(module).__name__}, which is not known here", hint="nn.Dropout")
        parent, _, name = path.rpartition(".")
        setattr(network.get_submodule(parent), name, drawn.setdefault(id(module), DrawnDropout(module.p, path)))
