"""Train a small model with dropout on a layout of ranks, and write what came out.

The ranks are forked from this process, which imports the trainer once and runs no tensor operation itself.
"""

import functools
import hashlib
import json
import random
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from parity import Row
from ranks import fork_ranks, own_world
from safetensors.torch import save_file

from launcher.recipes.load import load_settings
from launcher.recipes.transformer.transformer_settings import TransformerSettings
from launcher.trainer.data.tokens import Example
from launcher.trainer.model.transformer import END
from launcher.trainer.parallel import head_loss
from launcher.trainer.parallel.collectives import all_reduce
from launcher.trainer.programs.transformer import learning_rate_at
from launcher.trainer.saved import gather
from launcher.trainer.session import Session, placements_at

BATCH_SIZE = 32
VOCABULARY_SIZE = 67  # no number of ranks divides it
LONGEST = 12
SETTINGS = {
    "model.vocabulary_size": VOCABULARY_SIZE,
    "model.d_model": 32,
    "model.heads": 8,
    "model.feed_forward_dim": 64,
    "model.encoder_layers": 2,
    "model.decoder_layers": 2,
    "model.dropout": 0.3,
    "data.source_length": LONGEST,
    "data.target_length": LONGEST,
    "train.batch_size": BATCH_SIZE,
    "train.warmup_steps": 2,
    "train.learning_rate": 5e-3,
    "train.weight_decay": 0.1,
    "train.clip_norm": 0.3,  # below every norm of the first steps, so that clipping acts
    "train.device": "cpu",
}

# Chunks of some tokens, so that each micro batch has several; with parts of 33 and 34 rows they would not be equally large.
head_loss.CPU_BYTES, head_loss.MIN_CHUNK_TOKENS = 8 * 270, 5


def example(numbers: random.Random) -> Example:
    """A pair whose target repeats its source reversed: there is something to learn, and lengths vary."""
    words = [numbers.randrange(4, VOCABULARY_SIZE) for _ in range(numbers.randrange(1, LONGEST))]
    return Example([*words, END], [*reversed(words), END])


def batches(count: int) -> list[list[Example]]:
    """Three of four are of sizes that ranks and micro batches do not divide: what fills them up must not count."""
    numbers = random.Random(7)
    return [[example(numbers) for _ in range(BATCH_SIZE - step % 4)] for step in range(count)]


def train_on_ranks(row: Row, steps: int, directory: Path) -> None:
    """Write <name>.json (the loss of every step), <name>.gradients and <name>.weights (safetensors, gathered)."""
    axes = {axis: getattr(row, axis) for axis in ("dp", "mp", "pp", "micro_batches")}
    fork_ranks(row.name, functools.partial(train, row, steps, directory), **axes)


def train(row: Row, steps: int, directory: Path) -> None:
    settings = [f"{key}={value}" for key, value in SETTINGS.items()]
    settings += [f"train.precision={row.precision}", *row.settings, *row.numbers]
    settings = load_settings(TransformerSettings, None, settings)
    with own_world(settings.parallel.transport) as world:
        session = Session(settings, world)
        trained = batches(steps)
        session.accumulate_gradients(trained[0], step=1)
        gradients = {name: parameter.grad for name, parameter in session.model.named_parameters()}
        summed = {name: all_reduce(gradient.clone(), world.dp) for name, gradient in gradients.items()}
        write_gathered(session, summed, directory / f"{row.name}.gradients")
        results = [
            session.train_step(batch, learning_rate_at(step, settings.train, steps), step=step)
            for step, batch in enumerate(trained, start=1)
        ]
        # 13 examples do not fill a batch.
        validation_loss = session.validate(trained[0] + trained[1][:13])
        write_gathered(session, dict(session.model.named_parameters()), directory / f"{row.name}.weights")
        check_replicas(session, results[-1].gradient_norm)
        assert "torch._dynamo" not in sys.modules  # which takes each rank a second to import
        if world.is_first:
            content = {
                "losses": [result.loss for result in results],
                "gradient_norms": [result.gradient_norm for result in results],
                "validation_loss": validation_loss,
            }
            (directory / f"{row.name}.json").write_text(json.dumps(content))


def check_replicas(session: Session, gradient_norm: float) -> None:
    """Whatever several ranks hold, they hold bit by bit alike."""
    world = session.world
    if world.place.world_size == 1:
        return
    digests = {name: digest(parameter.detach()) for name, parameter in session.model.named_parameters()}
    everywhere: list = [None] * world.place.world_size
    dist.all_gather_object(everywhere, (world.place.coordinate, digests, gradient_norm))
    for coordinate, theirs, their_norm in everywhere:
        assert their_norm == gradient_norm
        for name in theirs.keys() & digests.keys():
            if session.placements[name].copies > 1 or coordinate.mp == world.mp.index:
                assert theirs[name] == digests[name], f"{name} differs from that of {coordinate}"


def digest(tensor: torch.Tensor) -> bytes:
    """Of its bits: small to send, where whole tensors of eight ranks to eight ranks took most of the time."""
    return hashlib.sha256(tensor.contiguous().numpy().tobytes()).digest()


def write_gathered(session: Session, tensors: dict, path: Path) -> None:
    at = functools.partial(placements_at, session.settings, session.world.place.layout)
    if (whole := gather(session.world, tensors, at)) is not None:
        save_file(whole, path)
