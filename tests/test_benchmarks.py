"""Benchmarks run seldom: every name that they import from the package exists."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
EARLIER = "earlier_trainer.py"  # runs with an earlier version of the package


@pytest.mark.parametrize("path", sorted(BENCHMARKS.rglob("*.py")), ids=lambda path: str(path.relative_to(BENCHMARKS)))
def test_names_that_a_benchmark_imports_exist(path):
    if path.name == EARLIER:
        pytest.skip("its names are of an earlier version")
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "launcher":
            module = import_module(node.module)
            for name in node.names:
                assert hasattr(module, name.name) or import_module(f"{node.module}.{name.name}")
