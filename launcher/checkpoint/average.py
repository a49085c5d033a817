"""The mean of the weights of several checkpoints of one training, as fairseq's and tensor2tensor's averages are.

Sums are of Python's floats, which are float64, block by block: it takes the memory of a block of each checkpoint.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from launcher.checkpoint.index import TOKENIZER, Index
from launcher.checkpoint.same_settings import differing_settings
from launcher.checkpoint.tensors import BLOCK_BYTES, StoredBoxes, pieces
from launcher.core.errors import UsageError
from launcher.mesh.boxes import Box

TYPE_CODES = {"F32": "f", "F64": "d"}  # of the array module


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

    def blocks(self, kind: int, name: str, box: Box) -> Iterator[memoryview]:
        """Yield the mean values of a box in row-major order, as `StoredBoxes.blocks`, which names the errors."""
        code, count = TYPE_CODES[self.index.dtype], len(self._stored)
        for piece in pieces(box, BLOCK_BYTES // count // array(code).itemsize):
            values = [array(code, each.read(kind, name, piece)) for each in self._stored]
            mean = array(code, [total / count for total in map(sum, zip(*values, strict=True))])
            yield memoryview(mean).cast("B")


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
