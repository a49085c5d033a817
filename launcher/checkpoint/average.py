"""The mean of the weights of several checkpoints of one training, as fairseq's and tensor2tensor's averages are.

Sums are float64, block by block: it takes the memory of a few blocks. Import it only where numpy is installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from launcher.checkpoint.index import ITEM_BYTES, TOKENIZER, Index
from launcher.checkpoint.same_settings import differing_settings
from launcher.checkpoint.tensors import StoredBoxes, pieces
from launcher.core.errors import UsageError
from launcher.mesh.boxes import Box

BLOCK_ELEMENTS = 1 << 15  # whose sums stay in a core's cache


class AveragedBoxes:
    """Checkpoints of one training, read as the one that has their mean weights."""

    def __init__(self, stored: Sequence[StoredBoxes]) -> None:
        """Take the newest first: what is not averaged is that one's.

        Raises:
            UsageError: they are not of one training, or their model has buffers.
        """
        newest = stored[0]
        self.path, self.index = newest.path, newest.index
        self._stored = stored
        if self.index.buffers:
            raise UsageError(
                f"{newest.path} is of the program {self.index.program}, whose model has running means: "
                "their average is not what the averaged weights would have"
            )
        for other in stored[1:]:
            if difference := _difference(self.index, other.index):
                raise UsageError(f"{newest.path} and {other.path} are not of one training: {difference}")

    @property
    def steps(self) -> list[int]:
        """The steps after which the weights are that are averaged, the newest first."""
        return [each.index.step for each in self._stored]

    def blocks(self, kind: int, name: str, box: Box) -> Iterator[bytes]:
        """Yield the mean values of a box in row-major order, as `StoredBoxes.blocks`, which names the errors."""
        dtype = f"<f{ITEM_BYTES[self.index.dtype]}"
        for piece in pieces(box, BLOCK_ELEMENTS):
            total = np.zeros(piece.count)
            for each in self._stored:
                total += np.frombuffer(each.read(kind, name, piece), dtype)
            yield (total / len(self._stored)).astype(dtype).tobytes()


def _difference(first: Index, second: Index) -> str:
    """Return in words what says that two checkpoints are of different trainings; nothing where they are of one."""
    for what in ("program", "text", "dtype", "shapes", "buffers"):
        if getattr(first, what) != getattr(second, what):
            return f"another {'data' if what == 'text' else what}"
    if _tokenizer(first) != _tokenizer(second):
        return "another tokenizer"
    settings = differing_settings(second, first.settings)
    return ", ".join(f"{name} = {ours} and {theirs}" for name, theirs, ours in settings)


def _tokenizer(index: Index) -> str | None:
    return index.files[TOKENIZER].sha256 if TOKENIZER in index.files else None
