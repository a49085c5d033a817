"""Train a bundled recipe on several ranks, and read the model it leaves."""

import contextlib
import subprocess
import sys

import torch
from ranks import fork_ranks
from safetensors.torch import load_file

from launcher.trainer.parallel.place import this_place
from launcher.trainer.parallel.world import open_world
from launcher.trainer.training_files import Files


def train_on_ranks(name, directory, train, settings, *, ranks, copies=1, micro_batches=1, **files):
    """Train on `ranks` ranks; the directory gets the model, checkpoints and each rank's log."""
    directory.mkdir(parents=True)

    def work():
        place = this_place(micro_batches=micro_batches)
        own = Files(output=directory / "model", checkpoints=directory / "checkpoints", **files)
        opening = open_world(place, torch.device("cpu"), settings.parallel.transport)
        log = directory / f"log{place.global_rank}"
        with log.open("w") as lines, contextlib.redirect_stdout(lines), opening as world:
            train(settings, world, own)

    fork_ranks(name, work, dp=copies, mp=ranks // copies, micro_batches=micro_batches)


def model_of(directory):
    return load_file(directory / "model" / "model.safetensors")


def difference(found, wanted):
    """Return the largest difference, as a share of the largest element of the same tensor."""
    assert found.keys() == wanted.keys(), found.keys() ^ wanted.keys()
    scale = {name: float(tensor.abs().max()) for name, tensor in wanted.items()}
    return max(float((found[name].double() - wanted[name].double()).abs().max()) / (scale[name] or 1) for name in found)


def merged(checkpoint, output):
    """Return the weights that `tlaunch ckpt merge` makes of a checkpoint."""
    command = [sys.executable, "-m", "launcher", "ckpt", "merge", checkpoint, "--output", output]
    subprocess.run(command, check=True, capture_output=True)
    return load_file(output / "model.safetensors")
