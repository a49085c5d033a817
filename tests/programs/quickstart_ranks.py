"""Train the quickstart network on several ranks in every mode, and in one process: the same losses and weights, in float64.

    quickstart_ranks.py DIRECTORY

Then each way of saving: the checkpoint of step 8 is damaged where the way has copies, gone on from on another number of ranks,
merged, and loaded in one process. Exit 0 when all are equal.
"""

import re
import sys
from pathlib import Path

import torch
from recipe_ranks import difference, merged, model_of, train_on_ranks

from launcher.checkpoint.file_layout import SLICES, WAYS
from launcher.recipes.catalog import recipe_named
from launcher.trainer.programs.quickstart import Network, train

RECIPE = recipe_named("quickstart")
TUTORIAL = ("strategies.matmul=[[2, 4], [4, 1]]",)
CASES = {
    "the tutorial": (8, 1, TUTORIAL),
    "data parallel": (8, 1, ("parallel.mode=data_parallel",)),
    "given alone": (4, 1, ("parallel.mode=semi_auto_parallel", "strategies.matmul2=[[1, 2], [2, 2]]")),
    "searched": (4, 1, ("parallel.search_mode=dynamic_programming",)),
    "hybrid": (4, 2, ("parallel.mode=hybrid_parallel", "strategies.matmul=[[1, 2], [2, 1]]")),
}
TOLERANCE = 1e-12


def on_ranks(name, directory, settings, *, ranks, **more):
    train_on_ranks(
        name, directory, train, RECIPE.load(None, ["train.precision=float64", *settings]), ranks=ranks, **more
    )


def losses_of(directory):
    text = (directory / "log0").read_text()
    return [float(loss) for loss in re.findall(r"loss is ([0-9.]+)", text)]


def check(name, directory, weights):
    off = difference(model_of(directory), weights)
    print(f"{name}: {off:.1e}", flush=True)
    assert off <= TOLERANCE, name


def main(directory):
    one = directory / "one"
    on_ranks("one", one, ("parallel.mode=stand_alone",), ranks=1)
    losses, weights = losses_of(one), model_of(one)
    assert len(losses) == 20
    assert losses[-1] < losses[0] - 0.02, losses
    for number, (name, (ranks, copies, settings)) in enumerate(CASES.items()):
        where = directory / f"case{number}"
        on_ranks(name, where, settings, ranks=ranks, copies=copies)
        assert losses_of(where) == losses, name
        check(name, where, weights)
    for way in WAYS:
        saved_and_recovered(directory / way, way, weights)


def saved_and_recovered(where, way, weights):
    """Save in a way on 8 ranks, damage a copy, go on on 4 ranks, merge, and compute a loss in one process."""
    saving = (*TUTORIAL, "checkpoint.every_steps=8", f"checkpoint.files={way}")
    on_ranks(f"{way}, saved", where / "saved", saving, ranks=8)
    checkpoint, resumed = where / "saved" / "checkpoints" / "step-8", where / "resumed"
    if way == SLICES:  # ranks 0 and 4 hold the same quarter of the first weight
        (checkpoint / "rank4.safetensors").write_bytes(b"")
    on_ranks(f"{way}, gone on from", resumed, ("strategies.matmul=[[1, 4], [4, 1]]",), ranks=4, resume=checkpoint)
    assert "after step 8" in (resumed / "log0").read_text()
    check(way, resumed, weights)
    tensors = merged(where / "saved" / "checkpoints" / "step-20", where / "merged")
    assert all(torch.equal(tensors[name], tensor) for name, tensor in model_of(where / "saved").items()), way
    network = Network(32, 16, 16).to(torch.float64)
    network.load_state_dict(tensors)
    assert network(torch.rand(16, 32, dtype=torch.float64), torch.rand(16, 16, dtype=torch.float64)).isfinite()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
