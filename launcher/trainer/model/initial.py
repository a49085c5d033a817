"""Computes initial weights from (name, full shape, seed) only, so every layout of ranks starts from the same model."""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

HEAD_STD = 0.01  # small, so that the first loss is the logarithm of the vocabulary size


def initial_weight(name: str, full_shape: torch.Size, seed: int) -> Tensor:
    """Return the initial value of the parameter `name` of the full model as a float32 tensor on the CPU.

    Biases are 0 and norms 1. Embeddings of width d are normal with standard deviation d^-1/2, and an untied head with
    HEAD_STD. Other linear layers are uniform within +-sqrt(6 / (inputs + outputs)) (Glorot and Bengio 2010).
    """
    if name.endswith(".bias"):
        return torch.zeros(full_shape)
    if name.endswith("norm.weight"):
        return torch.ones(full_shape)
    generator = generator_of(name, seed)
    if name == "head.weight":
        return torch.normal(0.0, HEAD_STD, full_shape, generator=generator)
    if "_embedding." in name:
        return torch.normal(0.0, full_shape[1] ** -0.5, full_shape, generator=generator)
    bound = math.sqrt(6 / sum(full_shape))
    return torch.empty(full_shape).uniform_(-bound, bound, generator=generator)


def generator_of(name: str, seed: int) -> torch.Generator:
    """Return a random generator that is seeded with a hash of `seed` and `name`."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
