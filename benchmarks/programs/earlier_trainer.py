"""Steps of the trainer as it was at commit 947f4a1, from a checkout of that, which must be the only one on PYTHONPATH.

Reads from standard input {"settings": [...], "layout": {"dp": 1, ...}, "rounds": 3, "batches": [[[source, target], ...], ...]}
with lists of token ids, and prints {"elapsed": [seconds of each round], "peak_bytes": of memory above the model}.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import launcher

sys.path.append(str(Path(launcher.__file__).parents[1] / "tests" / "programs"))

import torch
import torch.distributed as dist
from launcher.trainer.world import open_world, this_place
from ranks import fork_ranks

from launcher.recipes.load import load_transformer
from launcher.trainer.data import Example
from launcher.trainer.session import Session


def memory(name: str) -> int:
    return int(Path("/proc/self/status").read_text().partition(f"{name}:")[2].split()[0]) * 1024


def measure() -> None:
    torch.set_num_threads(1)
    recipe = load_transformer(None, task["settings"])
    with open_world(this_place(micro_batches=task["layout"]["micro_batches"]), torch.device("cpu")) as world:
        session = Session(recipe, world)
        session.train_step(batches[0][: task["parts"]], 1e-4)
        held, elapsed = memory("VmRSS"), []
        for _ in range(task["rounds"]):
            if world.place.world_size > 1:
                dist.barrier()
            began_s = time.perf_counter()
            for batch in batches:
                session.train_step(batch, 1e-4)
            if world.place.world_size > 1:
                dist.barrier()
            elapsed.append(time.perf_counter() - began_s)
        if world.place.global_rank == 0:
            answer = {"elapsed": elapsed, "peak_bytes": memory("VmHWM") - held}
            Path(path).write_text(json.dumps(answer))


task = json.load(sys.stdin)
batches = [[Example(source, target, is_cut=False) for source, target in batch] for batch in task["batches"]]
with tempfile.NamedTemporaryFile("r") as answer_file:
    path = answer_file.name
    fork_ranks("earlier", **task["layout"], work=measure)
    print(answer_file.read())
