"""Average the weights of several checkpoints of one training, like fairseq and tensor2tensor.

Sums are float64 and computed block by block, so only a few blocks are in memory. Requires numpy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from launcher.checkpoint.index import ITEM_BYTES, Index
from launcher.checkpoint.same_settings import differing_settings
from launcher.checkpoint.tensors import StoredBoxes, pieces
from launcher.core.errors import UsageError
from launcher.mesh.boxes import Box

BLOCK_ELEMENTS = 1 << 15  # their sums fit into a core's cache


class AveragedBoxes:
    """Presents several checkpoints of one training as a single checkpoint with their average weights."""

    def __init__(self, stored: Sequence[StoredBoxes]) -> None:
        """Combine the checkpoints in `stored`, which are sorted newest first. Raise UsageError if they do not match."""
        newest = stored[0]
        self.path, self.index = newest.path, newest.index
        self._stored = stored
        if self.index.buffers:
            raise UsageError(
                f"{newest.path} ({self.index.program}): models with running means cannot be averaged, because averaged running "
                "means would not match averaged weights"
            )
        for other in stored[1:]:
            if difference := _difference(self.index, other.index):
                raise UsageError(f"{newest.path} and {other.path} are from different trainings: {difference}")

    @property
    def steps(self) -> list[int]:
        return [each.index.step for each in self._stored]

    def blocks(self, kind: int, name: str, box: Box) -> Iterator[bytes]:
        """Yield the average values of `box` (a part of a tensor) in row-major order."""
        dtype = f"<f{ITEM_BYTES[self.index.dtype]}"
        for piece in pieces(box, BLOCK_ELEMENTS):
            total = np.zeros(piece.count)
            for each in self._stored:
                total += np.frombuffer(each.read(kind, name, piece), dtype)
            yield (total / len(self._stored)).astype(dtype).tobytes()


def _difference(first: Index, second: Index) -> str:
    """Compare two checkpoints. If they are from different trainings, return a difference as text, else ""."""
    for what in ("program", "text", "dtype", "shapes", "buffers"):
        if getattr(first, what) != getattr(second, what):
            return f"different {'data' if what == 'text' else what}"
    if first.tokenizer != second.tokenizer:
        return "different tokenizer"
    settings = differing_settings(second, first.settings)
    return ", ".join(f"{name} = {ours} and {theirs}" for name, theirs, ours in settings)
