"""Compare two checkpoints, even if ranks of different layouts wrote them.

Two checkpoints are equal if training resumes identically from both: same step, parameters, settings that define the
training, and bitwise equal values. The file layout and settings that may change are reported but do not count. Requires
numpy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from launcher.checkpoint.index import ITEM_BYTES, Index
from launcher.checkpoint.same_settings import FREE_SETTINGS, SAME_SETTINGS
from launcher.checkpoint.tensors import StoredBoxes, pieces
from launcher.core.frozen import frozen
from launcher.mesh.boxes import full_box

_ABSENT = "(none)"
READ_ELEMENTS = 1 << 16  # per read
COMPARED_ELEMENTS = 1 << 14  # per comparison, to fit into a core's cache

Values = npt.NDArray[np.floating[Any]]


@frozen
class Fact:
    """A difference between checkpoints outside their tensors. `matters` is True if it changes the training's state."""

    name: str
    first: Any
    second: Any
    matters: bool


@frozen
class TensorDifference:
    """Two tensors whose bits differ. The difference of two values is infinite if one of them is infinite or NaN."""

    parameter: str
    kind: str  # one of `Index.kinds_of`
    elements: int
    differing: int  # number of unequal values; -0 equals 0, and NaN equals NaN
    largest_absolute: float  # |a - b|
    largest_relative: float  # |a - b| / max(|a|, |b|)


@frozen
class Difference:
    facts: tuple[Fact, ...]
    only_first: tuple[str, ...]  # parameters and buffers
    only_second: tuple[str, ...]
    shapes: tuple[Fact, ...]  # of parameters in both
    tensors: tuple[TensorDifference, ...]
    compared: int  # tensors

    @property
    def is_same_state(self) -> bool:
        matters = any(fact.matters for fact in self.facts)
        return not (matters or self.only_first or self.only_second or self.shapes or self.tensors)


def compare(first: StoredBoxes, second: StoredBoxes) -> Difference:
    """Compare the settings and the tensors of two checkpoints, block by block."""
    mine, its = first.index.tensors, second.index.tensors
    both = [name for name in mine if name in its]
    shapes = [Fact(name, mine[name], its[name], matters=True) for name in both if mine[name] != its[name]]
    alike = [name for name in both if mine[name] == its[name]]
    tensors = [
        (kind, name) for name in alike for kind in first.index.kinds_of(name) if kind in second.index.kinds_of(name)
    ]
    found = (_tensor_difference(first, second, kind, name) for kind, name in tensors)
    return Difference(
        tuple(_facts(first.index, second.index)),
        tuple(name for name in mine if name not in its),
        tuple(name for name in its if name not in mine),
        tuple(shapes),
        tuple(each for each in found if each is not None),
        len(tensors),
    )


def _facts(first: Index, second: Index) -> Iterator[Fact]:
    pairs: list[tuple[str, Any, Any, bool]] = [
        ("step", first.step, second.step, True),
        ("program", first.program, second.program, True),
        ("type", first.dtype, second.dtype, True),
        ("text", first.text, second.text, True),
        ("kinds", ", ".join(first.kinds), ", ".join(second.kinds), True),
        ("tokenizer", first.tokenizer or _ABSENT, second.tokenizer or _ABSENT, True),
        ("data", first.data, second.data, False),
        ("layout", str(first.layout), str(second.layout), False),
        ("micro_batches", first.layout.micro_batches, second.layout.micro_batches, False),
    ]
    mine, its = _flattened(first.settings), _flattened(second.settings)
    for name in dict.fromkeys((*mine, *its)):
        # A setting that a checkpoint's version lacked counts as equal, as in `differing_settings`.
        section, setting = name
        names = SAME_SETTINGS.get(section, ())
        decides = name not in FREE_SETTINGS and (names is None or setting in names)
        matters = decides and name in mine and name in its
        pairs.append((".".join(name), mine.get(name, _ABSENT), its.get(name, _ABSENT), matters))
    return (Fact(*pair) for pair in pairs if pair[1] != pair[2])


def _flattened(settings: Mapping[str, Mapping[str, Any]]) -> dict[tuple[str, str], Any]:
    return {(section, name): value for section, values in settings.items() for name, value in values.items()}


def _tensor_difference(first: StoredBoxes, second: StoredBoxes, kind: str, name: str) -> TensorDifference | None:
    box = full_box(first.index.tensors[name])
    my_kind, its_kind = (each.index.kinds_of(name).index(kind) for each in (first, second))
    is_same, differing, absolute, relative = True, 0, 0.0, 0.0
    for piece in pieces(box, READ_ELEMENTS):
        mine, its = first.read(my_kind, name, piece), second.read(its_kind, name, piece)
        if mine == its and first.index.dtype == second.index.dtype:
            continue
        is_same = False
        my_values, its_values = _values(first, mine), _values(second, its)
        for start in range(0, piece.count, COMPARED_ELEMENTS):
            part = slice(start, start + COMPARED_ELEMENTS)
            count, difference, share = _differences(my_values[part], its_values[part])
            differing, absolute, relative = differing + count, max(absolute, difference), max(relative, share)
    return None if is_same else TensorDifference(name, kind, box.count, differing, absolute, relative)


def _values(stored: StoredBoxes, content: bytearray) -> Values:
    return np.frombuffer(content, f"<f{ITEM_BYTES[stored.index.dtype]}")


@np.errstate(all="ignore")
def _differences(mine: Values, its: Values) -> tuple[int, float, float]:
    """Return the number of differing values, and the largest absolute and relative difference."""
    differ = mine != its
    absolute = np.abs(np.subtract(mine, its, dtype=np.float64))
    relative = absolute / np.maximum(np.abs(mine), np.abs(its))
    if not math.isfinite(relative.max()):  # some values are zero, infinite or NaN
        unbounded = ~np.isfinite(absolute)
        absolute[unbounded] = relative[unbounded] = math.inf
        differ &= ~(np.isnan(mine) & np.isnan(its))
        absolute[~differ] = relative[~differ] = 0.0
    return int(np.count_nonzero(differ)), float(absolute.max()), float(relative.max())
