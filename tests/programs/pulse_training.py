"""Train two ranks along each axis, of which the second is made slow, and write how long a step kept each of them.

    pulse_training.py DIRECTORY

Writes <axis><rank>.json: [busy, all, communication, bubble] seconds of one training step. The second rank is slow from when the first one
waits for it, so that the first one waits as long, however little of the CPU it gets.
"""

import json
import sys
import time
from functools import partial
from pathlib import Path

from ranks import fork_ranks, own_world

from launcher.recipes.load import load_settings
from launcher.recipes.transformer.transformer_settings import TransformerSettings
from launcher.trainer.data.tokens import Example
from launcher.trainer.session import Session
from launcher.trainer.telemetry.step_time import Stopwatch, Timer

SLOWER_S = 0.5
SETTINGS = (
    "vocabulary_size=64", "d_model=16", "heads=2", "feed_forward_dim=16", "encoder_layers=1", "decoder_layers=1",
)  # fmt: skip
EXAMPLES = [Example([5, 6, 2], [6, 5, 2])] * 4


def train(axis: str, directory: Path) -> None:
    settings = load_settings(TransformerSettings, None, [f"model.{setting}" for setting in SETTINGS])
    with own_world() as world:
        session = Session(settings, world)
        session.train_step(EXAMPLES, 1e-3, step=1)  # opens connections
        global_rank = world.place.global_rank
        waits = directory / f"{axis}.waits"
        if global_rank == 1:
            session.model.register_forward_pre_hook(lambda *_: be_slow(waits))
        else:
            tell_of_waiting(waits)
        stopwatch = Stopwatch()
        session.train_step(EXAMPLES, 1e-3, step=2)
        spent = stopwatch.read()
        told = [spent.busy_s, spent.seconds, spent.communication_s, spent.bubble_s]
        (directory / f"{axis}{global_rank}.json").write_text(json.dumps(told))


def tell_of_waiting(waits: Path) -> None:
    """Have a file there as soon as this rank waits for another one."""
    enter = Timer.__enter__

    def enter_and_tell(timer: Timer) -> None:
        enter(timer)
        waits.touch()

    Timer.__enter__ = enter_and_tell


def be_slow(waits: Path) -> None:
    while not waits.exists():
        time.sleep(0.001)
    time.sleep(SLOWER_S)


def main() -> None:
    for axis in ("dp", "mp", "pp"):
        axes = {"dp": 1, "mp": 1, "pp": 1, axis: 2}
        fork_ranks(axis, partial(train, axis, Path(sys.argv[1])), **axes)


if __name__ == "__main__":
    main()
