"""Parse and check strategies such as ((2, 4), (4, 1)), the number of parts of each dim of each input."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import suppress
from math import prod
from typing import Any

from launcher.core.errors import UsageError
from launcher.sharding.expression import Expression, Partition, Strategy, cut

SAME_PARTS = "use equal numbers of parts; the weight of nn.Linear has the dims (out, in)"


def cutting_of(expression: Expression, strategy: Strategy, ranks: int, name: str) -> Partition:
    """Return the partition that the user's `strategy` defines for the operator `name`.

    Raises:
        UsageError: the strategy does not fit the operator's inputs or the number of ranks.
    """
    told = f"the strategy {strategy} of {name}"
    found: dict[str, tuple[int, str]] = {}
    for index, count, where in _parts(expression, strategy, ranks, name):
        before, there = found.setdefault(index, (count, where))
        if before != count:
            same = f"{there} into {before}, but the operator uses both dims together"
            raise UsageError(f"{told} cuts {where} into {count} parts and {same}", hint=SAME_PARTS)
    cuts = {index: count for index, (count, _) in found.items()}
    product = prod(cuts.values())
    if product > ranks:
        hint = f"use {product} devices, or fewer parts"
        raise UsageError(f"{told} needs {product} devices, but there are {ranks}", hint=hint)
    if ranks % product:
        raise UsageError(
            f"{told} needs a multiple of {product} devices, but there are {ranks}",
            hint=f"use numbers of parts that multiply to one of {_divisors(ranks, ranks)}",
        )
    return cut(expression, cuts, ranks)


def _parts(expression: Expression, strategy: Strategy, ranks: int, name: str) -> Iterator[tuple[str, int, str]]:
    """Yield (index, parts, place such as "dim 1 of input 0") for each dim that may be split. Raises UsageError."""
    told, hint = f"the strategy {strategy} of {name}", f"for instance {expression.strategy_of({})}"
    if len(strategy) != len(expression.inputs):
        raise UsageError(f"{told} is for {len(strategy)} inputs, but {name} has {len(expression.inputs)}", hint=hint)
    for number, (counts, dims) in enumerate(zip(strategy, expression.inputs, strict=True)):
        if len(counts) != len(dims):
            raise UsageError(f"{told} is for {len(counts)} dims of input {number}, which has {len(dims)}", hint=hint)
        for dim, (count, index) in enumerate(zip(counts, dims, strict=True)):
            where = f"dim {dim} of input {number}"
            cuts = f"{told} cuts {where} into {count} parts"
            if count < 1:
                raise UsageError(cuts, hint="use 1 to leave a dim uncut")
            if index is not None:
                if expression.sizes[index] % count:
                    reason = f"{expression.sizes[index]} is not divisible by {count}"
                    hint = f"it can be cut into {_divisors(expression.sizes[index], ranks)}"
                    raise UsageError(f"{cuts}, and {reason}", hint=hint)
                yield index, count, where
            elif count > 1:
                raise UsageError(f"{cuts}, but {name} cannot split it", hint=f"use 1 for this dim, {hint}")


def _divisors(value: int, most: int) -> str:
    return ", ".join(str(parts) for parts in range(1, min(value, most) + 1) if value % parts == 0)


def strategy_from(value: Any) -> Strategy:
    """Parse a strategy from a TOML value such as [[2, 4], [4, 1]], or from text such as "((2, 4), (4, 1))".

    Raises:
        ValueError: `value` is not a strategy. The message shows an example.
    """
    if isinstance(value, str):
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            value = ast.literal_eval(value)
    if isinstance(value, list | tuple) and all(
        isinstance(dims, list | tuple) and all(type(count) is int for count in dims) for dims in value
    ):
        return tuple(map(tuple, value))
    raise ValueError("one list per input with the number of parts of each dim, for example [[2, 4], [4, 1]]")
