"""Check that strategies and layout fit the quickstart network."""

from __future__ import annotations

from pathlib import Path

from launcher.core.errors import RefusedLayoutError, UsageError
from launcher.core.records import Layout
from launcher.core.text import did_you_mean, near
from launcher.recipes.quickstart.quickstart_settings import QuickstartSettings
from launcher.recipes.strategies import DATA_PARALLEL, check_mode, operators_layout
from launcher.recipes.train import check_early_stopping
from launcher.sharding.expression import Expression
from launcher.sharding.graph import Graph, Leaf, Operator
from launcher.sharding.strategy import cutting_of


def own_layout(settings: QuickstartSettings, layout: Layout) -> Layout:
    """Return the layout that the program trains in. Raises the errors of `operators_layout`."""
    return operators_layout(settings.parallel.mode, layout)


def check_layout(settings: QuickstartSettings, layout: Layout) -> None:
    """Raise if the layout or a strategy does not fit.

    Raises:
        RefusedLayoutError: the mode does not support the layout, or the batch is not divisible.
        UsageError: a strategy names an unknown operator, or does not fit the operator or the devices.
    """
    rows = settings.train.batch_size
    check_mode(settings.parallel.mode, settings.strategies, layout)
    check_early_stopping(settings.train)
    if rows % layout.dp:
        raise RefusedLayoutError(
            f"train.batch_size = {rows} is not divisible by dp = {layout.dp}",
            hint=f"use `--set train.batch_size={rows - rows % layout.dp or layout.dp}`",
        )
    if settings.train.validate_every or settings.checkpoint.keep_best:
        raise UsageError(
            "train.validate_every and checkpoint.keep_best need validations, but the quickstart network has none",
            hint="use `--set train.validate_every=0 --set checkpoint.keep_best=false`",
        )
    if settings.parallel.mode == DATA_PARALLEL and rows % layout.mp:
        raise RefusedLayoutError(
            f"train.batch_size = {rows} is not divisible by {layout.mp} devices",
            hint=f"use `--set train.batch_size={rows - rows % layout.mp or layout.mp}`",
        )
    operators = {operator.name: operator for operator in graph_of(settings, copies=layout.dp).operators}
    for name, strategy in settings.strategies.items():
        if name not in operators:
            hint = did_you_mean(near(name, operators)) or f"operators: {', '.join(operators)}"
            raise UsageError(f"strategies.{name}: the network has no such operator", hint=hint)
        cutting_of(operators[name].expression, strategy, layout.mp, name)


def check_data(settings: QuickstartSettings, data: Path | None) -> None:  # noqa: ARG001
    """Raise if a path is given, because the network generates its data.

    Raises:
        UsageError: a path is given.
    """
    if data is None:
        return
    raise UsageError(
        f"--data {data}: the quickstart network generates its data from data.seed", hint="leave out `--data`"
    )


def graph_of(settings: QuickstartSettings, *, copies: int = 1) -> Graph:
    """Return the graph that tracing the network and its loss would give, to check strategies without torch.

    Each of the data-parallel `copies`, which divide the batch, has the same graph.
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
