"""Robust least squares with priors, for a few dozen unknowns. Standard library only.

Minimises    Σ huber(residual_i / SIGMA) + Σ (x_j / width_j)²    where x_j = ln(number_j / its prior)

by Gauss-Newton steps with Levenberg's damping. Huber's function is quadratic up to HUBER, then linear: a single outlier
does not move the others. A number that no row depends on stays at its prior.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

# Residuals at the given logarithms. If `exact` is false, they may be linear around the last exact call.
Residuals = Callable[[Sequence[float], bool], Sequence[float]]

SIGMA = 0.05  # error of a row that the model can explain
HUBER = 1.5  # in units of SIGMA
MAX_STEPS = 15
_SHIFT = 1e-4  # of a logarithm, for derivatives
_MAX_STEP = 1.0
_MIN_GAIN = 1e-3


def minimised(residuals: Residuals, widths: Sequence[float], *, most_free: int) -> tuple[list[float], tuple[int, ...]]:
    """Return the logarithms that minimise the sum above, and the indices of the numbers that were free.

    At most `most_free` numbers are free: those with the largest effect on the residuals within their widths.
    """
    x = [0.0] * len(widths)
    errors = residuals(x, True)
    loss = _loss(errors, x, widths)
    columns = _derivatives(residuals, x, errors, range(len(x)))
    effect = [math.fsum(each**2 for each in column) * width**2 for column, width in zip(columns, widths, strict=True)]
    useful = sorted((index for index, each in enumerate(effect) if each > 0), key=lambda index: -effect[index])
    free = tuple(sorted(useful[:most_free]))
    columns, damping = [columns[index] for index in free], 1e-2
    for _ in range(MAX_STEPS):
        weights = [min(1.0, HUBER * SIGMA / max(abs(error), 1e-12)) / SIGMA**2 for error in errors]
        matrix, right = _normal_equations(columns, weights, errors, [x[i] for i in free], [widths[i] for i in free])
        while damping < 1e6:
            step = solved(_damped(matrix, damping), right)
            tried = list(x)
            for index, move in zip(free, step, strict=True):
                tried[index] += max(-_MAX_STEP, min(_MAX_STEP, move))
            new_errors = residuals(tried, True)
            new_loss = _loss(new_errors, tried, widths)
            if new_loss < loss:
                break
            damping *= 6
        else:
            break
        gained, x, errors, loss = loss - new_loss, tried, new_errors, new_loss
        if gained < _MIN_GAIN * loss:
            break
        damping = max(damping / 5, 1e-6)
        columns = _derivatives(residuals, x, errors, free)
    return x, free


def solved(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """Return the solution of a linear system by Gaussian elimination with partial pivoting."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    size = len(rows)
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(rows[row][column]))
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for row in range(column + 1, size):
            if factor := rows[row][column] / rows[column][column]:
                rows[row] = [each - factor * above for each, above in zip(rows[row], rows[column], strict=True)]
    solution = [0.0] * size
    for row in reversed(range(size)):
        known = math.fsum(rows[row][column] * solution[column] for column in range(row + 1, size))
        solution[row] = (rows[row][size] - known) / rows[row][row]
    return solution


def _derivatives(
    residuals: Residuals, x: Sequence[float], errors: Sequence[float], free: Sequence[int]
) -> list[list[float]]:
    """Return the derivatives of the residuals for each index in `free`. `errors` are the residuals at `x`."""
    columns = []
    for index in free:
        shifted = [value + (_SHIFT if index == number else 0) for number, value in enumerate(x)]
        columns.append([(new - old) / _SHIFT for new, old in zip(residuals(shifted, False), errors, strict=True)])
    return columns


def _loss(errors: Sequence[float], x: Sequence[float], widths: Sequence[float]) -> float:
    scaled = [abs(error) / SIGMA for error in errors]
    of_rows = math.fsum(each**2 if each < HUBER else 2 * HUBER * each - HUBER**2 for each in scaled)
    return of_rows + math.fsum((value / width) ** 2 for value, width in zip(x, widths, strict=True))


def _normal_equations(
    columns: Sequence[Sequence[float]],
    weights: Sequence[float],
    errors: Sequence[float],
    x: Sequence[float],
    widths: Sequence[float],
) -> tuple[list[list[float]], list[float]]:
    weighted = [[weight * each for weight, each in zip(weights, column, strict=True)] for column in columns]
    matrix = [[math.fsum(a * b for a, b in zip(row, column, strict=True)) for column in columns] for row in weighted]
    for index, width in enumerate(widths):
        matrix[index][index] += width**-2
    right = [
        -math.fsum(a * error for a, error in zip(row, errors, strict=True)) - value / width**2
        for row, value, width in zip(weighted, x, widths, strict=True)
    ]
    return matrix, right


def _damped(matrix: Sequence[Sequence[float]], damping: float) -> list[list[float]]:
    return [
        [each * (1 + damping) if row == column else each for column, each in enumerate(line)]
        for row, line in enumerate(matrix)
    ]
