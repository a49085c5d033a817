"""A trained model as files: weights, configuration, tokenizer. Written by all ranks together, read by one device.

<directory>/
    model.safetensors   parameters under the names of the single-device model, whatever the layout was
    config.json         the recipe, and how the training ended
    tokenizer.model     sentencepiece's own format; of a program that has one
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from launcher.checkpoint.index import is_checkpoint
from launcher.core.atomic import new_directory
from launcher.core.codec import read_json
from launcher.core.errors import UnreadableError, UsageError
from launcher.mesh.coordinates import Coordinate, rank_at
from launcher.recipes.load import recorded_settings
from launcher.recipes.transformer.transformer_settings import TransformerSettings
from launcher.trainer.data.tokenizer import Tokenizer, whole_tokenizer
from launcher.trainer.model.transformer import Transformer
from launcher.trainer.parallel.placement import Placement
from launcher.trainer.parallel.world import World
from launcher.trainer.plan import replace_parameter
from launcher.trainer.session import meta_model
from launcher.trainer.telemetry.heartbeat import getting_on

WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.model"


def gather(
    world: World, tensors: Mapping[str, Tensor], placements_at: Callable[[Coordinate], Mapping[str, Placement]]
) -> dict[str, Tensor] | None:
    """Return the tensors of the single-device model, on the CPU of rank 0; None elsewhere. All ranks must call it.

    `tensors` are this rank's parts, one for each of its parameters, and `placements_at` says in which order a rank sends
    which. The ranks of the first data-parallel copy send what they hold, one message each, in the order of their ranks; those
    whose stage has no parameter send none.
    """
    layout = world.place.layout
    parts = [tensors[name].detach().reshape(-1) for name in placements_at(world.place.coordinate)]
    if world.place.global_rank != 0:
        if world.dp.index == 0 and parts:
            dist.send(torch.cat(parts), dst=0)
        return None
    own = torch.cat(parts)  # the first stage has the embeddings at least
    whole: dict[str, Tensor] = {}
    for stage in range(layout.pp):
        for part in range(layout.mp):
            place = Coordinate(pp=stage, dp=0, mp=part)
            if not (placed := placements_at(place)):
                continue
            sender = rank_at(place, layout)
            flat = own if sender == 0 else own.new_empty(sum(place.shape.numel() for place in placed.values()))
            if sender != 0 and placed:
                dist.recv(flat, src=sender)
            received = flat.cpu().split([placement.shape.numel() for placement in placed.values()])
            for (name, placement), values in zip(placed.items(), received, strict=True):
                full = whole.setdefault(name, torch.empty(placement.full_shape, dtype=flat.dtype))
                placement.part_of(full).copy_(values.view(placement.shape))
            getting_on()
    return whole


def save_model(
    directory: Path,
    program: str,
    weights: dict[str, Tensor],
    settings: Any,
    tokenizer: bytes | None,
    facts: dict[str, Any],
) -> None:
    """Write the files aside, then rename the directory: it is whole or it is not there.

    `program` is the recipe's name, and `settings` are of it. Without a `tokenizer` there is no file of one. `facts` are kept in the configuration under "training".

    Raises:
        OSError: the directory exists already, the disk is full, ...
    """
    content = {"program": program, "recipe": dataclasses.asdict(settings), "training": facts}
    with new_directory(directory) as aside:
        (aside / CONFIG).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        if tokenizer is not None:
            (aside / TOKENIZER).write_bytes(tokenizer)
        (aside / WEIGHTS).write_bytes(save(weights, metadata={"format": "pt"}))


def model_of(directory: Path, program: str, settings: Any) -> dict[str, Tensor] | None:
    """Return the weights and buffers of a model that `save_model` has written there, of this program and these settings; None without one.

    Raises:
        UnreadableError: a file is damaged.
    """
    if not (directory / CONFIG).is_file():
        return None
    with _reading(directory / CONFIG):
        content = read_json(directory / CONFIG)
        if (content["program"], content["recipe"]) != (program, json.loads(json.dumps(dataclasses.asdict(settings)))):
            return None
    with _reading(directory / WEIGHTS):
        return dict(load_file(directory / WEIGHTS))


def check_can_save(directory: Path) -> None:
    """Find out before hours of training whether `save_model` will be able to write there.

    Raises:
        UsageError: the directory exists already.
        OSError: it cannot be made.
    """
    if directory.exists():
        raise UsageError(
            f"{directory} exists already, and a trained model is never overwritten",
            hint="name another output directory",
        )
    with new_directory(directory):
        pass
    directory.rmdir()


def load_model(directory: str | Path) -> tuple[Transformer, TransformerSettings, Tokenizer]:
    """Return the whole model on the CPU, ready to translate or to validate, with its recipe and its tokenizer.

    Raises:
        UnreadableError: a file is missing or damaged.
        UsageError: its settings are of another version.
    """
    directory = Path(directory)
    for name in (WEIGHTS, CONFIG, TOKENIZER):
        if not (directory / name).is_file():
            merged = f"`tlaunch ckpt merge {directory} --output DIR` makes a model of a checkpoint"
            hint = merged if is_checkpoint(directory) else None
            raise UnreadableError(f"{directory / name}: this model directory has no such file", hint=hint)
    with _reading(directory / CONFIG):
        sections = dict(read_json(directory / CONFIG)["recipe"])
    settings = recorded_settings(TransformerSettings, sections, where=str(directory / CONFIG))
    model = meta_model(settings)
    with _reading(directory / WEIGHTS):
        model.load_state_dict(load_file(directory / WEIGHTS), assign=True)
    with _reading(directory / TOKENIZER):
        tokenizer = whole_tokenizer((directory / TOKENIZER).read_bytes())
    return model.eval(), settings, tokenizer


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Tell of a file that cannot be read inside `with`, or does not hold what it should, as an UnreadableError."""
    try:
        yield
    except OSError as error:
        raise UnreadableError(f"{path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        first = str(error).strip().partition("\n")[0]
        raise UnreadableError(f"{path}: it is damaged: {first}") from error


def single_device_model(
    settings: TransformerSettings, weights: Mapping[str, Tensor], device: torch.device
) -> Transformer:
    """Return the whole model with `weights`, ready to translate."""
    model = meta_model(settings)
    for name, value in weights.items():
        replace_parameter(model, name, value.to(device))
    return model.eval()
