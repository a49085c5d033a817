"""The check of shapes that all modules of this package share."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from launcher.core.errors import UsageError


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
