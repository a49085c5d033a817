"""The operators of the quickstart network and of its loss, the mean squared error, as a graph of shapes."""

from __future__ import annotations

from launcher.recipes.quickstart.config import QuickstartSettings
from launcher.sharding.expression import Expression
from launcher.sharding.graph import Graph, Leaf, Operator


def graph_of(settings: QuickstartSettings, *, copies: int = 1) -> Graph:
    """Return the graph that tracing the trainer's network gives, so that strategies are checked without torch.

    Each of the data-parallel `copies`, which divide the batch, has the same.
    """
    model, rows = settings.model, settings.train.batch_size // copies
    item_bytes = 8 if settings.train.precision == "float64" else 4

    def leaf(name: str, shape: tuple[int, int], *, is_parameter: bool) -> Leaf:
        return Leaf(name, shape, is_parameter, item_bytes)

    def matmul(name: str, left: str, right: str, inner: int, columns: int) -> Operator:
        expression = Expression((("i", "k"), ("k", "j")), ("i", "j"), {"i": rows, "k": inner, "j": columns})
        flops = 2 * rows * inner * columns
        return Operator(name, "matmul", (left, right), (rows, columns), expression, flops, item_bytes)

    def elementwise(name: str, columns: int, *inputs: str) -> Operator:
        expression = Expression((("i", "j"),) * len(inputs), ("i", "j"), {"i": rows, "j": columns})
        return Operator(name, name, inputs, (rows, columns), expression, 0, item_bytes)

    mean = Expression((("i", "j"),), (), {"i": rows, "j": model.outputs})
    return Graph(
        leaves=(
            leaf("inputs", (rows, model.inputs), is_parameter=False),
            leaf("label", (rows, model.outputs), is_parameter=False),
            leaf("weight", (model.inputs, model.hidden), is_parameter=True),
            leaf("weight2", (model.hidden, model.outputs), is_parameter=True),
        ),
        operators=(
            matmul("matmul", "inputs", "weight", model.inputs, model.hidden),
            elementwise("relu", model.hidden, "matmul"),
            matmul("matmul2", "relu", "weight2", model.hidden, model.outputs),
            elementwise("sub", model.outputs, "matmul2", "label"),
            elementwise("square", model.outputs, "sub"),
            Operator("mean", "mean", ("square",), (), mean, 0, item_bytes),
        ),
        output="mean",
    )
