"""Run work of the trainer at commit 947f4a1. PYTHONPATH must contain only a checkout of that commit.

Reads JSON from stdin: {"settings": [...], "layout": {"dp": 1, ...}, "work": "step" or "head", "parts": 1, "rounds":
[...]}. A round is a list of batches, a batch is a list of [source, target] pairs of token IDs. Prints {"elapsed":
[seconds of each round], "peak_bytes": memory beyond the model}. "head" runs only the output head and its loss, on
model-parallel ranks.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import launcher

sys.path.append(str(Path(launcher.__file__).parents[1] / "tests" / "programs"))

import torch
import torch.distributed as dist
from launcher.trainer.collectives import enter_model_parallel
from launcher.trainer.loss import vocabulary_parallel_token_loss_sum
from launcher.trainer.world import open_world, this_place
from ranks import fork_ranks
from torch import nn

from launcher.recipes.load import load_transformer
from launcher.trainer.data import Example, collate
from launcher.trainer.plan import part_bounds
from launcher.trainer.session import Session

Step = Callable[[Any], object]


def memory(name: str) -> int:
    return int(Path("/proc/self/status").read_text().partition(f"{name}:")[2].split()[0]) * 1024


def training_step(recipe: Any, world: Any) -> Step:
    session = Session(recipe, world)
    return lambda batch: session.train_step(batch, 1e-4)


def head_step(recipe: Any, world: Any) -> Step:
    sizes = recipe.model
    start, stop = part_bounds(sizes.vocabulary_size, world.mp)
    head = nn.Linear(sizes.d_model, stop - start, bias=False)

    def step(batch: Any) -> None:
        labels_BT = collate(batch).labels_BT
        hidden_BTD = torch.randn(*labels_BT.shape, sizes.d_model, requires_grad=True)
        logits_NW = head(enter_model_parallel(hidden_BTD, world.mp)).flatten(0, 1)
        loss = vocabulary_parallel_token_loss_sum(
            logits_NW,
            labels_BT.flatten(),
            recipe.train.label_smoothing,
            first_id=start,
            vocabulary_size=sizes.vocabulary_size,
            group=world.mp,
        )
        loss.backward()
        head.weight.grad = None

    return step


def measure() -> None:
    torch.set_num_threads(1)
    recipe = load_transformer(None, task["settings"])
    with open_world(this_place(micro_batches=task["layout"]["micro_batches"]), torch.device("cpu")) as world:
        step = {"step": training_step, "head": head_step}[task["work"]](recipe, world)
        step(rounds[0][0][: task["parts"]])
        held, elapsed = memory("VmRSS"), []
        for batches in rounds:
            if world.place.world_size > 1:
                dist.barrier()
            began_s = time.perf_counter()
            for batch in batches:
                step(batch)
            if world.place.world_size > 1:
                dist.barrier()
            elapsed.append(time.perf_counter() - began_s)
        if world.place.global_rank == 0:
            answer = {"elapsed": elapsed, "peak_bytes": memory("VmHWM") - held}
            Path(path).write_text(json.dumps(answer))


task = json.load(sys.stdin)
rounds = [
    [[Example(source, target, is_cut=False) for source, target in batch] for batch in batches]
    for batches in task["rounds"]
]
with tempfile.NamedTemporaryFile("r") as answer_file:
    path = answer_file.name
    fork_ranks("earlier", **task["layout"], work=measure)
    print(answer_file.read())
