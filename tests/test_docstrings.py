"""Worked examples in docstrings are true."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "launcher").rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)
TORCH_NN = {"launcher.trainer.telemetry.watch"}  # whose examples name modules of torch.nn


@pytest.mark.parametrize("name", MODULES)
def test_examples_are_true(name):
    names = {"nn": importlib.import_module("torch.nn")} if name in TORCH_NN else {}
    assert doctest.testmod(importlib.import_module(name), extraglobs=names).failed == 0
