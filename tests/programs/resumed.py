"""Train a small model with dropout on some layouts, go on from each one's checkpoint on every layout, and compare.

    resumed.py DIRECTORY [LAYOUT ...]

Every layout trains all steps and writes checkpoints on the way, of the files that its name says ("dp2 slices"), which are else
those of what each rank owns. Every layout then goes on from those of every other one; without names, from each of those with other
files one layout for each kind of files, and one process. Exit 1 if
one differs: losses from those of one process that never stopped, a checkpoint that is written again at once from the one it was
made of (to the last bit), or a training that goes on on its own layout from what it was (to the last bit).
"""

import dataclasses
import functools
import itertools
import json
import sys
from pathlib import Path

import numpy as np
from ranks import fork_ranks, own_world
from train_layouts import SETTINGS, batches

from launcher.checkpoint.file_layout import OWNED, WAYS
from launcher.checkpoint.index import KINDS, checkpoints_in, damage_of, name_of, read_index
from launcher.recipes.load import load_settings
from launcher.recipes.transformer.transformer_settings import TransformerSettings
from launcher.trainer.checkpoint.restore import candidates_at, restore
from launcher.trainer.checkpoint.save import CheckpointWriter
from launcher.trainer.checkpoint.state import Training
from launcher.trainer.programs.transformer import learning_rate_at
from launcher.trainer.session import Session, meta_model

STEPS, SAVED = 4, 2
TOLERANCE = 1e-12
LAYOUTS = {
    "one": (1, 1, 1, "float64", ()),
    "dp2": (2, 1, 1, "float64", ("parallel.gradient_groups=4",)),
    "mp2": (1, 2, 1, "float64", ()),
    "pp2": (1, 1, 2, "float64", ()),
    "dp2 mp2": (
        *(2, 2, 1, "float64"),
        ("parallel.transport=backend", "parallel.vocab_emb_dp=true", "parallel.optimizer_shard=false"),
    ),
    "dp2 mp2 pp2": (2, 2, 2, "float64", ("parallel.schedule=interleaved", "parallel.interleave=2")),
    "pp4": (1, 1, 4, "float64", ("parallel.stages=[1, 0, 2, 1]",)),  # rank 1 holds nothing
}
SHARDED = ("dp2", "mp2", "pp2", "dp2 mp2")
PLAIN = tuple(LAYOUTS)
LAYOUTS |= {
    f"{name} {way}": (*LAYOUTS[name][:4], (*LAYOUTS[name][4], f"checkpoint.files={way}"))
    for name, way in itertools.product(SHARDED, WAYS)
    if way != OWNED
}
SHARING = ("model.share=all", "model.norm=post", "model.positions=sinusoidal", "model.attention_dropout=0.2")
LAYOUTS |= {
    f"{name} shared": (*axes, "float64", SHARING)
    for name, axes in (("one", (1, 1, 1)), ("dp2", (2, 1, 1)), ("mp2 pp2", (1, 2, 2)), ("dp2 mp2 pp2", (2, 2, 2)))
}
AFTER_OTHER_FILES = ("one", "dp2 slices", "mp2 one_copy", "pp2 integrated", "dp2 mp2")


def train(directory, name, resume=None, *, steps=STEPS, every=SAVED):
    """Train to the last step, from `resume` or from the newest checkpoint in `directory`; append each loss to losses.jsonl.

    Writes checkpoints there, and one more at once of the state it goes on from.
    """
    *_, precision, switches = LAYOUTS[name]
    given = [f"{key}={value}" for key, value in SETTINGS.items()]
    settings = load_settings(TransformerSettings, None, [*given, f"train.precision={precision}", *switches])
    with own_world(settings.parallel.transport) as world:
        session = Session(settings, world)
        shapes = {name: tuple(parameter.shape) for name, parameter in meta_model(settings).named_parameters()}
        facts = dataclasses.asdict(settings)
        training = Training("transformer", facts, world.place.layout, "a text", "", shapes, b"a tokenizer")
        find = functools.partial(candidates_at, resume) if resume else functools.partial(checkpoints_in, directory)
        found = restore(find, training, session.optimizer, world)
        writer = CheckpointWriter(directory, training, world, keep=4, way=settings.checkpoint.files)
        first = 1
        if found is not None:
            first += found[1]
            writer.save(found[1], session.optimizer)
        for step, batch in enumerate(batches(steps), start=1):
            if step < first:
                continue
            loss = session.train_step(batch, learning_rate_at(step, settings.train, steps), step=step).loss
            if world.is_first:
                with (directory / "losses.jsonl").open("a") as lines:
                    lines.write(json.dumps({"step": step, "loss": loss, "first": first}) + "\n")
            if step % every == 0:
                writer.save(step, session.optimizer)
        writer.finish()


def losses_in(directory):
    return [json.loads(line)["loss"] for line in (directory / "losses.jsonl").read_text().splitlines()]


def state_of(checkpoint):
    """All tensors of a checkpoint whole, by kind and parameter: read by its index alone. Copies are equal."""
    index = read_index(checkpoint)
    dtype = {"F32": np.float32, "F64": np.float64}[index.dtype]
    found = {(kind, name): np.full(shape, np.nan, dtype) for kind in KINDS for name, shape in index.shapes.items()}
    for file, part in index.files.items():
        assert damage_of(checkpoint, file, part) is None
        values = np.fromfile(checkpoint / file, "u1")[part.data_start :]
        at = 0
        for kind in KINDS if part.boxes else ():
            for each in part.boxes:
                stop = at + each.box.count * np.dtype(dtype).itemsize
                target = found[kind, each.name]
                slices = each.box.within(type(each.box)((0,) * target.ndim, target.shape))
                ours = values[at:stop].view(dtype).reshape(each.box.size)
                assert np.isnan(target[slices]).all() or np.array_equal(target[slices], ours)
                target[slices] = ours
                at = stop
    assert not any(np.isnan(each).any() for each in found.values())
    return found


def equal(one, other):
    return all(np.array_equal(one[key], other[key]) for key in one) and one.keys() == other.keys()


def main(directory, names):
    pairs = list(itertools.product(names, repeat=2)) or [
        *itertools.product(PLAIN, repeat=2),
        *itertools.product([name for name in LAYOUTS if name.endswith(WAYS)], AFTER_OTHER_FILES),
        *itertools.product([name for name in LAYOUTS if name.endswith("shared")], repeat=2),
    ]
    for name in dict.fromkeys(saved for saved, _ in pairs):
        start(directory / name, name)
    failed = 0
    for saved, name in pairs:
        whole = directory / saved
        here = directory / f"{saved} to {name}"
        start(here, name, whole / name_of(SAVED))
        reference = "one shared" if saved.endswith("shared") else "one"
        expected, found = losses_in(directory / reference), losses_in(here)
        difference = max(abs(a - b) / abs(b) for a, b in zip(found, expected[SAVED:], strict=True))
        again = equal(state_of(whole / name_of(SAVED)), state_of(here / name_of(SAVED)))
        goes_on = LAYOUTS[saved][:3] != LAYOUTS[name][:3] or equal(
            state_of(whole / name_of(STEPS)), state_of(here / name_of(STEPS))
        )
        passes = difference <= TOLERANCE and again and goes_on
        failed += not passes
        print(
            f"{saved:18} to {name:18} {difference:8.0e}  {again}  {goes_on}  {'pass' if passes else 'DIFFERS'}",
            flush=True,
        )
    return 1 if failed else 0


def start(directory, name, resume=None):
    directory.mkdir(parents=True)
    dp, mp, pp, _, _ = LAYOUTS[name]
    work = functools.partial(train, directory, name, resume)
    fork_ranks(directory.name, work, dp=dp, mp=mp, pp=pp, micro_batches=pp)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
