"""Dropout for custom networks. Masks do not depend on the layout of ranks (see launcher/trainer/model/dropout.py)."""

from __future__ import annotations

from torch import Tensor, nn

from launcher.core.errors import UsageError
from launcher.trainer.model.dropout import Dropout, DropoutBits


class DrawnDropout(nn.Module):
    """A replacement for `nn.Dropout` in training. The training sets its random bits before each micro batch.

    The first dim of the input must be the rows of the micro batch, or rows and positions merged: B... or (B T)...
    Only the size of that dim is checked. Inputs with positions first, whose number is a multiple of the rows, get
    different masks on each layout.
    """

    def __init__(self, p: float, place: str) -> None:
        super().__init__()
        self.p = p
        self.dropout, self._place = Dropout(p), place
        self._draws: DropoutBits | None = None
        self._calls = 0  # calls with these random bits; each call has different masks

    def begin(self, draws: DropoutBits | None) -> None:
        """Set the dropout random bits of the next calls. With None they drop nothing."""
        self._draws, self._calls = draws, 0

    def forward(self, tensor: Tensor) -> Tensor:
        if self._draws is None or self.p == 0:
            return tensor
        self._calls += 1
        self.dropout.place = f"{self._place}.{self._calls}"
        rows = len(self._draws.factor_BT1)
        if not tensor.dim() or len(tensor) % rows:
            raise UsageError(
                f"the dropout {self._place} is called with the shape {tuple(tensor.shape)}, and the first dim is "
                "not a multiple of "
                f"the {rows} rows of a micro batch",
                hint="pass a tensor with the batch as its first dim",
            )
        # Each row counts as one position with many features; each feature has its own random bits.
        return self.dropout(tensor.reshape(rows, 1, -1), self._draws).view(tensor.shape)


def draw_dropouts(network: nn.Module) -> None:
    """Replace every `nn.Dropout` of a network by a `DrawnDropout`, identified by the module's first path.

    Raises:
        UsageError: a dropout has another class, such as nn.Dropout2d.
    """
    drawn: dict[int, DrawnDropout] = {}
    for path, module in list(network.named_modules(remove_duplicate=False)):
        if not isinstance(module, nn.modules.dropout._DropoutNd):  # noqa: SLF001 - the class of all of them
            continue
        if type(module) is not nn.Dropout:
            raise UsageError(f"{path} is a {type(module).__name__}, which is not supported", hint="use nn.Dropout")
        parent, _, name = path.rpartition(".")
        setattr(network.get_submodule(parent), name, drawn.setdefault(id(module), DrawnDropout(module.p, path)))
