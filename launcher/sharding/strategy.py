"""Parse, check and write strategies in the user's notation, ((2, 4), (4, 1)): the parts of each dim of each input."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import suppress
from math import prod
from typing import Any

from launcher.core.errors import UsageError
from launcher.core.frozen import frozen
from launcher.sharding.expression import Expression, Partition, Strategy, cut


@frozen
class _Part:
    """The parts that a strategy gives for one dim that may be cut."""

    index: str
    count: int
    where: str  # "dim 1 of input 0"


def cutting_of(expression: Expression, strategy: Strategy, ranks: int, name: str) -> Partition:
    """Return the partition that the user's strategy for the operator `name` describes.

    Raises:
        UsageError: it does not fit the operator's inputs or the ranks; with the numbers.
    """
    told = f"the strategy {written(strategy)} of {name}"
    found: dict[str, _Part] = {}
    for part in _parts(expression, strategy, ranks, name):
        before = found.setdefault(part.index, part)
        if before.count != part.count:
            same = f"{before.where}, which is the same index, into {before.count}"
            raise UsageError(
                f"{told} cuts {part.where} into {part.count} parts, and {same}", hint="use the same number for both"
            )
    product = prod(part.count for part in found.values())
    if product > ranks:
        hint = f"use {product} devices, or fewer parts"
        raise UsageError(f"{told} needs {product} devices, but there are {ranks}", hint=hint)
    if ranks % product:
        raise UsageError(
            f"{told} uses {product} devices, which does not divide {ranks}",
            hint=f"use parts whose product is one of {_words(_divisors(ranks, ranks))}",
        )
    return cut(expression, {index: part.count for index, part in found.items()}, ranks)


def _parts(expression: Expression, strategy: Strategy, ranks: int, name: str) -> Iterator[_Part]:
    """Yield the parts of all dims that may be cut, after checking each dim. Raises as `cutting_of`."""
    told, hint = f"the strategy {written(strategy)} of {name}", f"for instance {written(expression.strategy_of({}))}"
    if len(strategy) != len(expression.inputs):
        raise UsageError(f"{told} is for {len(strategy)} inputs, but {name} has {len(expression.inputs)}", hint=hint)
    for number, (counts, dims) in enumerate(zip(strategy, expression.inputs, strict=True)):
        if len(counts) != len(dims):
            raise UsageError(f"{told} is for {len(counts)} dims of input {number}, which has {len(dims)}", hint=hint)
        for dim, (count, index) in enumerate(zip(counts, dims, strict=True)):
            where = f"dim {dim} of input {number}"
            cuts = f"{told} cuts {where} into {count} parts"
            if count < 1:
                raise UsageError(cuts, hint="use 1 for a dim that is not cut")
            if index is not None:
                if expression.sizes[index] % count:
                    divisors = _words(_divisors(expression.sizes[index], ranks))
                    reason = f"{expression.sizes[index]} is not divisible by {count}"
                    raise UsageError(f"{cuts}, and {reason}", hint=f"it can be cut into {divisors}")
                yield _Part(index, count, where)
            elif count > 1:
                raise UsageError(f"{cuts}, but {name} needs it whole", hint=f"1 there, {hint}")


def written(strategy: Strategy) -> str:
    """Return a strategy in the notation of the tutorials.

    >>> written(((2, 4), (4,), ()))
    '((2, 4), (4,), ())'
    """
    return str(strategy)


def _divisors(value: int, most: int) -> list[int]:
    return [parts for parts in range(1, min(value, most) + 1) if value % parts == 0]


def _words(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))


def strategy_from(value: Any) -> Strategy:
    """Parse a strategy from a TOML value, [[2, 4], [4, 1]], or from text in the notation of the tutorials.

    Raises:
        ValueError: it is not a strategy; the message shows an example.
    """
    if isinstance(value, str):
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            value = ast.literal_eval(value)
    if isinstance(value, list | tuple) and all(
        isinstance(dims, list | tuple) and all(type(count) is int for count in dims) for dims in value
    ):
        return tuple(map(tuple, value))
    raise ValueError("the number of parts of each dim of each input, for example [[2, 4], [4, 1]]")
