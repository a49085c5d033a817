"""The settings of the quickstart network, and checks of its strategies and layout.

The network is two matrix products with a ReLU between them. Defaults are the tutorial's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from pathlib import Path

from launcher.core.errors import UsageError
from launcher.core.frozen import frozen
from launcher.core.records import Layout
from launcher.core.text import did_you_mean, near
from launcher.recipes.settings import setting
from launcher.recipes.strategies import (
    AUTO,
    DATA_PARALLEL,
    PROPAGATION,
    Strategies,
    check_mode,
    mode_setting,
    operators_layout,
    search_setting,
    strategies,
)
from launcher.recipes.train import (
    GRADIENT_GROUPS,
    TRANSPORT,
    CheckpointConfig,
    TrainConfig,
    check_divisible,
    check_early_stopping,
)
from launcher.sharding.expression import Expression
from launcher.sharding.graph import Graph, Leaf, Operator
from launcher.sharding.strategy import cutting_of


@frozen
class QuickstartModelConfig:
    inputs: int = setting(32, "columns of the input", minimum=1, maximum=65_536)
    hidden: int = setting(16, "columns of the first matrix product", minimum=1, maximum=65_536)
    outputs: int = setting(16, "columns of the second matrix product", minimum=1, maximum=65_536)
    weight_std: float = setting(0.02, "standard deviation of the normally distributed initial weights", minimum=0)


@frozen
class QuickstartDataConfig:
    seed: int = setting(1, "random seed for inputs and labels, uniform in [0, 1)", minimum=0)
    steps_per_epoch: int = setting(4, "steps per epoch, all on the same rows", minimum=1, maximum=1_000_000)


@frozen
class QuickstartTrainConfig(TrainConfig):
    epochs: int = setting(5, "number of epochs; an epoch has data.steps_per_epoch steps", minimum=1)
    steps: int = TrainConfig.steps
    batch_size: int = setting(16, "rows per step, over all ranks", minimum=1, maximum=1_000_000)
    micro_batches: int = TrainConfig.micro_batches
    learning_rate: float = setting(0.2, "step size of the Momentum optimizer", minimum=0)
    momentum: float = setting(0.1, "fraction of the previous step that is added to each step", minimum=0, below=1)
    seed: int = setting(1, "random seed for initial weights", minimum=0)
    precision: str = setting("float32", "number format of weights and arithmetic", choices=("float32", "float64"))
    device: str = TrainConfig.device
    validate_every: int = TrainConfig.validate_every
    early_stopping: int = TrainConfig.early_stopping
    profile_steps: int = TrainConfig.profile_steps


@frozen
class QuickstartParallelConfig:
    mode: str = mode_setting(AUTO)
    search_mode: str = search_setting(PROPAGATION)
    gradient_groups: int = GRADIENT_GROUPS
    transport: str = TRANSPORT


@frozen
class QuickstartSettings:
    model: QuickstartModelConfig = field(default_factory=QuickstartModelConfig)
    data: QuickstartDataConfig = field(default_factory=QuickstartDataConfig)
    train: QuickstartTrainConfig = field(default_factory=QuickstartTrainConfig)
    parallel: QuickstartParallelConfig = field(default_factory=QuickstartParallelConfig)
    strategies: Strategies = strategies()
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)


# --- checks ---


def own_layout(settings: QuickstartSettings, layout: Layout) -> Layout:
    """Return the layout that the training uses in the chosen mode."""
    return operators_layout(settings.parallel.mode, layout)


def check_layout(settings: QuickstartSettings, layout: Layout) -> None:
    """Raise RefusedLayoutError if the mode does not support the layout, or the batch is not divisible by the ranks.

    Raises UsageError if a strategy names an unknown operator, or does not fit the operator or the devices.
    """
    rows = settings.train.batch_size
    check_mode(settings.parallel.mode, settings.strategies, layout)
    check_early_stopping(settings.train)
    check_divisible(rows, layout.dp, f"dp = {layout.dp}")
    if settings.train.validate_every or settings.checkpoint.keep_best:
        raise UsageError(
            "train.validate_every and checkpoint.keep_best need validation, but the quickstart network has no validation",
            hint="use `--set train.validate_every=0 --set checkpoint.keep_best=false`",
        )
    if settings.parallel.mode == DATA_PARALLEL:
        check_divisible(rows, layout.mp, f"{layout.mp} devices")
    operators = {operator.name: operator for operator in graph_of(settings, copies=layout.dp).operators}
    for name, strategy in settings.strategies.items():
        if name not in operators:
            hint = did_you_mean(near(name, operators)) or f"operators: {', '.join(operators)}"
            raise UsageError(f"strategies.{name}: the network has no operator with this name", hint=hint)
        cutting_of(operators[name].expression, strategy, layout.mp, name)


def check_data(settings: QuickstartSettings, data: Sequence[Path]) -> None:  # noqa: ARG001
    """Raise UsageError if `data` is given, because the network generates its own data."""
    if data:
        message = f"{data[0]}: the quickstart network reads no data; it generates its data from data.seed"
        raise UsageError(message, hint="leave out `--data`, `--source` and `--target`")


def graph_of(settings: QuickstartSettings, *, copies: int = 1) -> Graph:
    """Return the graph of the network and its loss, so that strategies can be checked without torch.

    The data-parallel `copies` divide the batch. Each copy has this graph.
    """
    model, rows = settings.model, settings.train.batch_size // copies
    item_bytes = 8 if settings.train.precision == "float64" else 4

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
            Leaf("inputs", (rows, model.inputs), False, item_bytes),
            Leaf("label", (rows, model.outputs), False, item_bytes),
            Leaf("weight", (model.inputs, model.hidden), True, item_bytes),
            Leaf("weight2", (model.hidden, model.outputs), True, item_bytes),
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
