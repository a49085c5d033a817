"""Train a small model with dropout on many layouts, and hold each against one process. Exit 1 if one differs.

    parity.py [--directory DIRECTORY] [--steps STEPS] [ROW ...]

Prints a table: each row, its largest relative differences of losses, gradients and weights, and whether these are within
the tolerances. Without ROW, the names of some rows, it trains all of them. DIRECTORY keeps what came out.
STEPS are those in float64.
"""

import argparse
import itertools
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

RECOMPUTE = "parallel.recompute=true"
GROUPS = "parallel.gradient_groups=4"
GPIPE = "parallel.schedule=gpipe"
INTERLEAVED = ("parallel.schedule=interleaved", "parallel.interleave=2")
NO_SHARDS = "parallel.optimizer_shard=false"
GRADIENT_SHARDS = "parallel.gradient_accumulation_shard=true"
TABLES = "parallel.vocab_emb_dp=true"
SOME_LAYERS = "parallel.recompute_layers=[0, 3]"
BACKEND = "parallel.transport=backend"  # otherwise ranks of one host share memory
POST, SINUSOIDAL, SCALED = "model.norm=post", "model.positions=sinusoidal", "model.scale_embedding=true"
GELU = "model.activation=gelu"
SHARED, TIED = "model.share=all", "model.share=decoder"
ATTENTION_DROPOUT, ACTIVATION_DROPOUT = "model.attention_dropout=0.2", "model.activation_dropout=0.2"
ORIGINAL = (POST, SINUSOIDAL, SCALED, SHARED, ATTENTION_DROPOUT, ACTIVATION_DROPOUT)  # as in Vaswani et al. 2017


@dataclass(frozen=True)
class Row:
    """A layout, and settings besides: `numbers` change what is computed, so one process is trained with them, too."""

    dp: int
    mp: int
    pp: int
    micro_batches: int = 1
    settings: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    precision: str = "float64"

    @property
    def name(self) -> str:
        axes = " ".join(f"{axis}{size}" for axis in ("dp", "mp", "pp") if (size := getattr(self, axis)) > 1)
        parts = [axes or "one process"]
        if self.micro_batches > 1:
            parts.append(f"{self.micro_batches} micro batches")
        if self.precision != "float64":
            parts.append(self.precision)
        return ", ".join((*parts, *self.settings, *self.numbers))

    @property
    def reference(self) -> "Row":
        """The single process that trains with the same numbers."""
        return Row(1, 1, 1, numbers=self.numbers, precision=self.precision)


# All ways to divide 1, 2, 4 and 8 processes (the model has four layers, so pp is at most 4).
LAYOUTS = [
    (dp, size // dp // pp, pp)
    for size in (1, 2, 4, 8)
    for pp in (1, 2, 4)
    for dp in (1, 2, 4, 8)
    if size % (dp * pp) == 0
]
# Each pair of switches that do not exclude each other, on a layout on which all of them act.
SWITCHES = (
    *((one,) for one in (GPIPE, TABLES, RECOMPUTE, NO_SHARDS, GRADIENT_SHARDS, GROUPS, "parallel.stages=[3, 1]")),
    INTERLEAVED,
)
EXCLUSIVE = (
    {(GPIPE,), INTERLEAVED},
    {(NO_SHARDS,), (GRADIENT_SHARDS,)},
    {("parallel.stages=[3, 1]",), INTERLEAVED},  # which has other stages
)
PAIRS = (
    *(
        Row(2, 1 + ((TABLES,) in pair), 2, 4, (*pair[0], *pair[1]))
        for pair in itertools.combinations(SWITCHES, 2)
        if set(pair) not in EXCLUSIVE
    ),
    Row(2, 1, 2, 4, ("parallel.stages=[1, 0, 1, 2]", *INTERLEAVED)),
)
ROWS = (
    *(Row(*layout, micro_batches) for layout in LAYOUTS for micro_batches in (1, 4)),
    *(Row(*layout, 4, (RECOMPUTE,)) for layout in LAYOUTS),
    Row(1, 1, 1, 1, (RECOMPUTE,)),
    Row(1, 2, 1, 1, (RECOMPUTE,)),
    *(
        Row(*layout, 4, switches)
        for layout in ((2, 1, 1), (4, 2, 1), (2, 2, 2))
        for switches in ((GROUPS,), (BACKEND,), (GROUPS, BACKEND))
    ),
    *(Row(1, 2, 1, micro_batches, (BACKEND,)) for micro_batches in (1, 4)),
    *(Row(1, 1, 2, 4, (f"parallel.stages=[{stages}]",)) for stages in ("1, 3", "3, 1", "4, 0")),
    Row(2, 1, 4, 4, ("parallel.stages=[1, 1, 2, 0]", GROUPS, RECOMPUTE)),
    Row(2, 2, 2, 4, (GROUPS,), ("train.optimizer=adam_weight_decay",)),
    Row(2, 2, 2, 4, numbers=("model.dropout=0",)),
    *(Row(2, 2, 2, 4, numbers=(setting,)) for setting in (*ORIGINAL, TIED, GELU)),
    Row(1, 2, 1, 4, (RECOMPUTE,), (GELU, POST)),
    *(Row(*layout, 4, numbers=ORIGINAL) for layout in LAYOUTS),
    *(Row(*layout, 4, (RECOMPUTE,), ORIGINAL) for layout in ((1, 1, 1), (1, 2, 1), (2, 1, 2))),
    *(Row(*layout, 4, (GROUPS,), (SHARED,)) for layout in ((2, 1, 1), (2, 1, 2), (2, 2, 2))),
    *(Row(*layout, 1, numbers=(TIED,)) for layout in ((2, 1, 1), (1, 2, 1), (1, 1, 2), (1, 1, 4))),
    Row(2, 2, 2, 4, (BACKEND, GROUPS), (POST, SHARED)),
    Row(2, 1, 2, 4, ("parallel.stages=[4, 0]",), ORIGINAL),  # of the last stage all is a copy
    Row(2, 1, 2, 4, numbers=(POST, ATTENTION_DROPOUT)),
    Row(1, 2, 2, 4, numbers=(TIED, SCALED)),
    Row(1, 2, 2, 4, numbers=(SINUSOIDAL, ACTIVATION_DROPOUT)),
    Row(1, 2, 2, 4, numbers=(SHARED,), precision="float32"),
    *(Row(1, 1, pp, 4, (GPIPE,)) for pp in (2, 4)),
    Row(1, 1, 1, 4, (GPIPE,)),
    *(Row(*layout, 4, INTERLEAVED) for layout in ((1, 1, 2), (2, 1, 2), (1, 2, 2), (2, 2, 2), (1, 1, 1))),
    Row(1, 1, 2, 2, INTERLEAVED),
    *(Row(1, mp, 1, 1, (TABLES,)) for mp in (2, 4)),
    *(Row(*layout, 4, (SOME_LAYERS,)) for layout in ((1, 1, 1), (1, 2, 1), (1, 1, 2))),
    *(
        Row(*layout, micro_batches, switches)
        for layout, micro_batches in (((2, 1, 1), 1), ((2, 1, 1), 4), ((2, 2, 2), 4))
        for switches in ((NO_SHARDS,), (NO_SHARDS, BACKEND), (GRADIENT_SHARDS,), (GRADIENT_SHARDS, BACKEND))
    ),
    *(Row(dp, 1, 4, 4, ("parallel.stages=[1, 0, 2, 1]", *more)) for dp, more in ((1, ()), (2, ()), (2, (NO_SHARDS,)))),
    Row(1, 1, 4, 4, ("parallel.stages=[0, 0, 4, 0]", GPIPE)),
    Row(2, 2, 2, 4, (GPIPE, TABLES, SOME_LAYERS)),
    Row(2, 2, 2, 4, (*INTERLEAVED, TABLES, GROUPS)),
    *PAIRS,
    # A shared matrix with each switch that its messages meet.
    Row(2, 1, 2, 4, (GRADIENT_SHARDS,), (SHARED,)),
    Row(2, 1, 2, 4, (GRADIENT_SHARDS, BACKEND, GROUPS), (TIED,)),
    Row(2, 1, 2, 4, (NO_SHARDS,), (TIED,)),
    Row(2, 1, 2, 1, (NO_SHARDS, BACKEND, GROUPS), (SHARED,)),
    Row(1, 1, 2, 4, INTERLEAVED, (SHARED,)),
    Row(1, 2, 2, 4, (GPIPE,), ORIGINAL),
    Row(2, 2, 2, 4, (*INTERLEAVED, GRADIENT_SHARDS, GROUPS), (POST, SHARED)),
    # In float32 each axis, and all of them: more is the same code.
    Row(2, 1, 1, 1, precision="float32"),
    Row(2, 1, 1, 4, (NO_SHARDS,), precision="float32"),
    Row(2, 1, 1, 4, (GRADIENT_SHARDS,), precision="float32"),
    Row(1, 2, 1, 1, precision="float32"),
    Row(1, 1, 2, 4, precision="float32"),
    Row(2, 2, 2, 4, precision="float32"),
)
ROWS = tuple(row for row in ROWS if row != row.reference)

STEPS = {"float64": 20, "float32": 3}


@dataclass(frozen=True)
class Differences:
    """The largest of each kind, relative to the loss, and to the largest element of each tensor."""

    losses: float  # of all steps, and of the validation after them
    gradients: float  # of the first batch; and the norms of all steps
    weights: float  # after the last step


# AdamW divides by the gradient's size, so where a gradient is all but zero, rounding decides the direction of a whole step:
# in float32 weights say nothing.
TOLERANCES = {
    "float64": Differences(losses=1e-12, gradients=1e-9, weights=1e-9),
    "float32": Differences(losses=1e-4, gradients=1e-4, weights=float("inf")),
}


def differences(directory: Path, row: Row) -> Differences:
    """Of what `train_layouts.train` has written for `row` and for its reference."""
    ours, theirs = (json.loads((directory / f"{each.name}.json").read_text()) for each in (row, row.reference))
    return Differences(
        losses=_relative([*ours["losses"], ours["validation_loss"]], [*theirs["losses"], theirs["validation_loss"]]),
        gradients=max(
            _relative(ours["gradient_norms"], theirs["gradient_norms"]), _of_tensors(directory, row, "gradients")
        ),
        weights=_of_tensors(directory, row, "weights"),
    )


def holds(row: Row, found: Differences) -> bool:
    limits = TOLERANCES[row.precision]
    return all(getattr(found, kind) <= getattr(limits, kind) for kind in ("losses", "gradients", "weights"))


def _relative(ours: list[float], theirs: list[float]) -> float:
    return float(np.max(np.abs(np.subtract(ours, theirs)) / np.abs(theirs)))


def _of_tensors(directory: Path, row: Row, what: str) -> float:
    ours, theirs = (load_file(directory / f"{each.name}.{what}") for each in (row, row.reference))
    assert ours.keys() == theirs.keys()
    return max(
        float(np.abs(ours[name] - expected).max() / max(np.abs(expected).max(), 1e-3))
        for name, expected in theirs.items()
        # The bias of a key shifts all scores of a query alike: its gradient is zero but for rounding.
        if not name.endswith("attention.key.bias")
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--steps", type=int, default=STEPS["float64"])
    parser.add_argument("rows", nargs="*", metavar="ROW")
    options = parser.parse_args()
    if unknown := {*options.rows} - {row.name for row in ROWS}:
        parser.error(f"there is no row {unknown.pop()!r}")
    STEPS["float64"] = options.steps
    chosen = [row for row in ROWS if not options.rows or row.name in options.rows]
    with tempfile.TemporaryDirectory() as temporary:
        return 0 if _print_table(chosen, options.directory or Path(temporary)) else 1


def _print_table(rows: list[Row], directory: Path) -> bool:
    from train_layouts import train_on_ranks

    width = max(len(row.name) for row in rows)
    print(f"{'':{width}}  {'losses':>8} {'gradients':>9} {'weights':>8}")
    failures, trained = 0, set()
    for row in rows:
        for each in (row.reference, row):
            if each not in trained:
                train_on_ranks(each, STEPS[each.precision], directory)
                trained.add(each)
        found = differences(directory, row)
        failures += not holds(row, found)
        verdict = "pass" if holds(row, found) else "FAIL"
        print(f"{row.name:{width}}  {_figures(found)}  {verdict}", flush=True)
    for precision in sorted({row.precision for row in rows}):
        at_most = f"at most, after {STEPS[precision]} steps in {precision}"
        print(f"{at_most:{width}}  {_figures(TOLERANCES[precision])}")
    print(f"{len(rows)} rows, {failures} of them differ")
    return failures == 0


def _figures(found: Differences) -> str:
    return f"{found.losses:8.0e} {found.gradients:9.0e} {found.weights:8.0e}"


if __name__ == "__main__":
    sys.exit(main())
