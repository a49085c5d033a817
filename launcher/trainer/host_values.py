"""Reads numbers from tensors. A training step reads a device only here.

An accelerator works in the background; reading a value waits for it. `launcher/trainer/simulate` answers these reads.
"""

from __future__ import annotations

from torch import Tensor


def host_values(vector: Tensor) -> list[float]:
    """Return the values of a one-dimensional tensor as Python numbers."""
    return vector.tolist()


def host_value(scalar: Tensor) -> float:
    return float(scalar)
