"""Graphs that tests of sharding share."""

from launcher.sharding.expression import Expression
from launcher.sharding.graph import Graph, Leaf, Operator


def matmul(name, x, w, *, rows, inner, columns):
    sizes = {"i": rows, "k": inner, "j": columns}
    expression = Expression((("i", "k"), ("k", "j")), ("i", "j"), sizes)
    return Operator(name, "matmul", (x, w), (rows, columns), expression, 2 * rows * inner * columns)


def elementwise(name, kind, inputs, rows, columns):
    expression = Expression((("i", "j"),) * len(inputs), ("i", "j"), {"i": rows, "j": columns})
    return Operator(name, kind, inputs, (rows, columns), expression, 0)


def quickstart(rows=16, inner=32, hidden=16, columns=16):
    """The network of the tutorial with its mean squared error."""
    mean = Expression((("i", "j"),), (), {"i": rows, "j": columns})
    return Graph(
        leaves=(
            Leaf("x", (rows, inner), is_parameter=False),
            Leaf("label", (rows, columns), is_parameter=False),
            Leaf("weight", (inner, hidden), is_parameter=True),
            Leaf("weight2", (hidden, columns), is_parameter=True),
        ),
        operators=(
            matmul("matmul", "x", "weight", rows=rows, inner=inner, columns=hidden),
            elementwise("relu", "relu", ("matmul",), rows, hidden),
            matmul("matmul2", "relu", "weight2", rows=rows, inner=hidden, columns=columns),
            elementwise("sub", "sub", ("matmul2", "label"), rows, columns),
            elementwise("square", "square", ("sub",), rows, columns),
            Operator("mean", "mean", ("square",), (), mean, 0),
        ),
        output="mean",
    )
