"""Divide the checkpoint of every layout anew for every other one, as `tlaunch ckpt reshard` does, and go on from it.

    resharded.py DIRECTORY [LAYOUT ...]

Exit 1 if one differs: the model and moments that both are merged to (byte by byte), the boxes of each file from those that the other
layout writes itself, what they are divided into as before (byte by byte), or a loss of the training that goes on from it from
that of one which goes on, on the same layout, from the checkpoint as it was written (to the last bit).
"""

import itertools
import sys
from pathlib import Path

from resumed import PLAIN, SAVED, losses_in, start

from launcher.checkpoint.index import TOKENIZER, name_of, read_index
from launcher.checkpoint.merge import OPTIMIZER, merge
from launcher.checkpoint.reshard import reshard
from launcher.checkpoint.tensors import opened
from launcher.checkpoint.ways import MODEL
from launcher.recipes.load import recorded_settings
from launcher.recipes.transformer.config import TransformerSettings
from launcher.trainer.checkpoint.owners import plan_of
from launcher.trainer.programs import transformer


def opening(path):
    return opened(path, read_index(path), lambda _: None, print)


def divide(source, like, target):
    """Divide a checkpoint as the training that has written `like` divides its own."""
    index = read_index(like)
    settings = recorded_settings(TransformerSettings, index.settings, where=str(like))
    with opening(source) as stored:
        reshard(stored, plan_of(transformer, settings, index.layout), index.layout, target, index.settings)


def joined(source, target):
    with opening(source) as stored:
        merge(stored, target, moments=True)
    return [(target / name).read_bytes() for name in (MODEL, OPTIMIZER, TOKENIZER)]


def boxes_of(path):
    return {name: file.boxes for name, file in read_index(path).files.items() if file.boxes}


def main(directory, names):
    for name in names:
        start(directory / name, name)
    failed = 0
    for saved, name in itertools.permutations(names, 2):
        source, like = (directory / each / name_of(SAVED) for each in (saved, name))
        here = directory / f"{saved} to {name}"
        divided, back = here / "divided" / name_of(SAVED), here / "back" / name_of(SAVED)
        divide(source, like, divided)
        divide(divided, source, back)
        is_same = joined(source, here / "model") == joined(divided, here / "again")
        fits = boxes_of(divided) == boxes_of(like)
        is_back = read_index(back) == read_index(source)
        start(here / "from divided", name, divided)
        start(here / "from written", name, source)
        goes_on = losses_in(here / "from divided") == losses_in(here / "from written")
        passes = is_same and fits and is_back and goes_on
        failed += not passes
        print(
            f"{saved:12} to {name:12} {is_same}  {fits}  {is_back}  {goes_on}  {'pass' if passes else 'DIFFERS'}",
            flush=True,
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:] or list(PLAIN)))
