"""Record the second training step of a small model on four ranks, beside a count of what torch.distributed was asked for.

    recorded.py DIRECTORY

Each layout gets a directory of strategy reports, of the counts as counts<rank>.json, and of facts as facts<rank>.json.
"""

import functools
import json
import sys
from collections import Counter
from pathlib import Path

import torch.distributed as dist
from ranks import fork_ranks, own_world
from train_layouts import SETTINGS, batches

from launcher.core.run_dir import strategy_name
from launcher.recipes.load import load_settings
from launcher.recipes.transformer.transformer_settings import TransformerSettings
from launcher.trainer.parallel import collectives
from launcher.trainer.plan import gives_parts
from launcher.trainer.programs.strategy_recorder import RecordedModel
from launcher.trainer.session import Session

BACKEND = ("parallel.transport=backend",)
ROWS = {
    "dp2-mp2": ({"dp": 2, "mp": 2, "pp": 1, "micro_batches": 1}, (*BACKEND, "parallel.gradient_groups=3")),
    "dp2-mp2-shared": ({"dp": 2, "mp": 2, "pp": 1, "micro_batches": 1}, ()),
    "dp2-pp2": ({"dp": 2, "mp": 1, "pp": 2, "micro_batches": 3}, BACKEND),
    "dp2-pp2-chunks": (
        {"dp": 2, "mp": 1, "pp": 2, "micro_batches": 4},
        (
            *(*BACKEND, "parallel.schedule=interleaved", "parallel.interleave=2"),
            *("parallel.gradient_accumulation_shard=true", "parallel.gradient_groups=2"),
        ),
    ),
    "mp2-pp2": (
        {"dp": 1, "mp": 2, "pp": 2, "micro_batches": 2},
        (*BACKEND, "parallel.recompute=true", "model.share=all"),
    ),
}


def count_calls(counts):
    """Have every call of torch.distributed that sends tensors counted: by kind, how many and of how many bytes."""

    def counted(owner, name, kind, sent=0):
        called = getattr(owner, name)

        @functools.wraps(called)
        def call(*args, **options):
            counts[kind, "count"] += 1
            counts[kind, "bytes"] += args[sent].nbytes
            return called(*args, **options)

        setattr(owner, name, call)

    counted(collectives, "_ALL_GATHER", "all_gather")
    counted(dist, "all_to_all_single", "all_to_all", sent=1)  # after the output
    kinds = {"all_reduce": "all_reduce", "isend": "send", "irecv": "receive", "send": "send", "recv": "receive"}
    for name, kind in kinds.items():
        counted(dist, name, kind)


def train(name, chosen, directory):
    settings = [f"{key}={value}" for key, value in SETTINGS.items()]
    settings = load_settings(TransformerSettings, None, [*settings, *chosen])
    with own_world(settings.parallel.transport) as world:
        rank = world.place.global_rank
        session = Session(settings, world)
        recorded = RecordedModel("transformer", session.model, session.placements, gives_parts(session.model))
        recorder = recorded.recorder(directory / name / strategy_name(rank), world, attempt=0)
        counts, losses = Counter(), []
        count_calls(counts)
        for step, examples in enumerate(batches(3), start=1):
            counts.clear() if step == 2 else None
            with recorder.step(step, is_last=step == 3):
                losses.append(session.train_step(examples, 1e-3, step=step, votes=lambda: (1.0,)).loss)
            if step == 2:
                counted = [[kind, what, number] for (kind, what), number in counts.items()]
                (directory / name / f"counts{rank}.json").write_text(json.dumps(counted))
        facts = {"flat_bytes": session.optimizer.layout.size * 4, "losses": losses, "told": recorder.first_line()}
        (directory / name / f"facts{rank}.json").write_text(json.dumps(facts))


def main():
    directory = Path(sys.argv[1])
    for name, (axes, chosen) in ROWS.items():
        (directory / name).mkdir(parents=True)
        fork_ranks(name, functools.partial(train, name, chosen, directory), **axes)


if __name__ == "__main__":
    main()
