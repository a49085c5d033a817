"""Index expressions: name the dims of an operator's inputs and output by indices, as in Einstein notation.

    matmul             x (i, k), w (k, j)         -> (i, j)          k is summed over
    relu, add          (i, j), (i, j)             -> (i, j)
    convolution        x (n, c, -, -), w (o, c, -, -) -> (n, o, -, -)   c is summed over
    batch norm         x (n, c, -, -), w (c), b (c)   -> (n, c, -, -)   statistics are shared over n
    mean               (n, j)                     -> ()              n and j are summed over

A dim without an index (None, "-" above) is never cut. This defines a sharding strategy: it cuts indices. If the output
lacks a cut index, each rank computes a partial sum. If an input lacks a cut index, the gradient of that input is a
partial sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from math import prod

from launcher.core.frozen import frozen
from launcher.sharding.layout import TensorLayout

Strategy = tuple[tuple[int, ...], ...]  # number of parts of each dim of each input: ((2, 4), (4, 1))
Cuts = Mapping[str, int]  # number of parts of each index; a missing index is not cut


@frozen
class Expression:
    inputs: tuple[tuple[str | None, ...], ...]
    output: tuple[str | None, ...]
    sizes: Mapping[str, int]  # of the indices that may be cut; for a dim that combines several indices, the outermost
    shared: tuple[str, ...] = ()  # indices over which ranks exchange statistics if they are cut

    @cached_property
    def indices(self) -> tuple[str, ...]:
        """The indices in the order of their first use in the inputs. The axes of the device matrix have this order."""
        found = (index for dims in self.inputs for index in dims if index is not None)
        return tuple(dict.fromkeys(found))

    @cached_property
    def reduced(self) -> tuple[str, ...]:
        """The indices that are summed over."""
        return tuple(index for index in self.indices if index not in self.output)

    def strategy_of(self, cuts: Cuts) -> Strategy:
        return tuple(tuple(1 if index is None else cuts.get(index, 1) for index in dims) for dims in self.inputs)


@frozen
class Partition:
    """A split of the indices of an expression over ranks. It determines the device matrix and all layouts.

    The matrix has an axis for each index, in order. If there are more ranks than parts, a last axis contains the ranks
    that repeat the same work.
    """

    expression: Expression
    cuts: tuple[tuple[str, int], ...]  # of all indices, in order
    ranks: int

    @cached_property
    def strategy(self) -> Strategy:
        return self.expression.strategy_of(dict(self.cuts))

    @cached_property
    def used(self) -> int:
        """The number of parts that the work is split into."""
        return prod(cut for _, cut in self.cuts)

    @cached_property
    def devices(self) -> tuple[int, ...]:
        """The size of each axis of the device matrix.

        >>> matmul = Expression((("i", "k"), ("k", "j")), ("i", "j"), {"i": 16, "k": 32, "j": 16})
        >>> cut(matmul, {"i": 2, "k": 2}, ranks=8).devices
        (2, 2, 1, 2)
        """
        repeated = self.ranks // self.used
        return tuple(cut for _, cut in self.cuts) + ((repeated,) if repeated > 1 else ())

    def layout_of(self, dims: Sequence[str | None]) -> TensorLayout:
        """Return the layout of a tensor whose dims have the given index names."""
        axes = {index: axis for axis, (index, cut) in enumerate(self.cuts) if cut > 1}
        return TensorLayout(self.devices, tuple((axes[index],) if index in axes else () for index in dims))

    @cached_property
    def inputs(self) -> tuple[TensorLayout, ...]:
        return tuple(map(self.layout_of, self.expression.inputs))

    @cached_property
    def output(self) -> TensorLayout:
        """The layout of the output after the sum over `reduced_axes`."""
        return self.layout_of(self.expression.output)

    @cached_property
    def reduced_axes(self) -> tuple[int, ...]:
        """The axes of the device matrix along which ranks hold partial sums of the output."""
        return self._axes_of(self.expression.reduced)

    @cached_property
    def shared_axes(self) -> tuple[int, ...]:
        """The axes of the device matrix along which ranks exchange statistics."""
        return self._axes_of(self.expression.shared)

    def gradient_axes(self, number: int) -> tuple[int, ...]:
        """Return the axes of the device matrix along which ranks hold partial sums of an input's gradient."""
        lacking = [index for index, _ in self.cuts if index not in self.expression.inputs[number]]
        return self._axes_of(lacking)

    def _axes_of(self, indices: Sequence[str]) -> tuple[int, ...]:
        return tuple(axis for axis, (index, cut) in enumerate(self.cuts) if cut > 1 and index in indices)


def cut(expression: Expression, cuts: Cuts, ranks: int) -> Partition:
    """Split each index of an expression into the number of parts in `cuts`. Their product must divide `ranks`."""
    return Partition(expression, tuple((index, cuts.get(index, 1)) for index in expression.indices), ranks)


def cuttings(expression: Expression, ranks: int) -> Iterator[Partition]:
    """Yield every partition of an expression over at most `ranks` ranks. Partitions that use all ranks come first.

    >>> relu = Expression((("i", "j"),), ("i", "j"), {"i": 4, "j": 6})
    >>> [each.strategy for each in cuttings(relu, ranks=4)]
    [((2, 2),), ((4, 1),), ((1, 2),), ((2, 1),), ((1, 1),)]
    """
    divisors = [parts for parts in range(1, ranks + 1) if ranks % parts == 0]
    ways: list[tuple[int, ...]] = [()]
    for index in expression.indices:  # those that do not divide the ranks are left out early: there may be millions
        fitting = [parts for parts in divisors if expression.sizes[index] % parts == 0]
        ways = [(*way, parts) for way in ways for parts in fitting if ranks % (prod(way) * parts) == 0]
    found = [Partition(expression, tuple(zip(expression.indices, way, strict=True)), ranks) for way in ways]
    return iter(sorted(found, key=lambda each: (-each.used, each.strategy)))
