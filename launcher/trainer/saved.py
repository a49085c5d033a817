"""Saves a trained model from all ranks, and loads it on one device.

<directory>/
    model.safetensors   parameters under the names of the single-device model, for every layout
    config.json         the recipe, and the final state of the training
    tokenizer.model     in sentencepiece's format, if the program has a tokenizer
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
from launcher.trainer.data.tokenizer import Tokenizer, load_tokenizer
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
    """Gather the full tensors on the CPU of rank 0. Return None on other ranks. All ranks must call it.

    `tensors` are this rank's shards. `placements_at` returns the shards of the rank at a coordinate, in the order in
    which that rank sends them. Each rank of the first data-parallel replica sends one message, in rank order. A rank
    without parameters sends none.
    """
    layout = world.place.layout
    parts = [tensors[name].detach().reshape(-1) for name in placements_at(world.place.coordinate)]
    if world.place.global_rank != 0:
        if world.dp.index == 0 and parts:
            dist.send(torch.cat(parts), dst=0)
        return None
    own = torch.cat(parts)  # never empty: the first stage has the embeddings
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
    """Write a model directory atomically, by renaming a temporary directory to `directory`.

    `program` is the recipe's name, and `settings` are its settings. `facts` are stored in config.json under "training".

    Raises:
        OSError: the directory exists already, or the disk is full, for example.
    """
    content = {"program": program, "recipe": dataclasses.asdict(settings), "training": facts}
    with new_directory(directory) as aside:
        (aside / CONFIG).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        if tokenizer is not None:
            (aside / TOKENIZER).write_bytes(tokenizer)
        (aside / WEIGHTS).write_bytes(save(weights, metadata={"format": "pt"}))


def model_of(directory: Path, program: str, settings: Any) -> dict[str, Tensor] | None:
    """Load the weights and buffers that `save_model` wrote for the given program and settings.

    Returns None if there is no model, or if it has another program or other settings.

    Raises:
        UnreadableError: a file is damaged.
    """
    if not (directory / CONFIG).is_file():
        return None
    with reading(directory / CONFIG):
        content = read_json(directory / CONFIG)
        if (content["program"], content["recipe"]) != (program, json.loads(json.dumps(dataclasses.asdict(settings)))):
            return None
    with reading(directory / WEIGHTS):
        return dict(load_file(directory / WEIGHTS))


def check_can_save(directory: Path) -> None:
    """Check before the training that `save_model` will be able to write to `directory`.

    Raises:
        UsageError: the directory exists already.
        OSError: the directory cannot be created.
    """
    if directory.exists():
        raise UsageError(
            f"{directory} already exists, and tlaunch does not overwrite a trained model",
            hint="name another output directory",
        )
    with new_directory(directory):
        pass
    directory.rmdir()


def load_model(directory: str | Path) -> tuple[Transformer, TransformerSettings, Tokenizer]:
    """Load a model directory. Return the model in evaluation mode on the CPU, its settings and its tokenizer.

    Raises:
        UnreadableError: a file is missing or damaged.
        UsageError: the settings were written by another version.
    """
    directory = Path(directory)
    for name in (WEIGHTS, CONFIG, TOKENIZER):
        if not (directory / name).is_file():
            merged = f"convert the checkpoint to a model: `tlaunch ckpt merge {directory} --output DIR`"
            hint = merged if is_checkpoint(directory) else None
            raise UnreadableError(f"{directory / name}: the model directory does not contain this file", hint=hint)
    with reading(directory / CONFIG):
        sections = dict(read_json(directory / CONFIG)["recipe"])
    settings = recorded_settings(TransformerSettings, sections, where=str(directory / CONFIG))
    model = meta_model(settings)
    with reading(directory / WEIGHTS):
        model.load_state_dict(load_file(directory / WEIGHTS), assign=True)
    with reading(directory / TOKENIZER):
        tokenizer = load_tokenizer((directory / TOKENIZER).read_bytes())
    return model.eval(), settings, tokenizer


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Convert errors in reading or parsing `path` inside the `with` block to an UnreadableError."""
    try:
        yield
    except OSError as error:
        raise UnreadableError(f"{path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        first = str(error).strip().partition("\n")[0]
        raise UnreadableError(f"{path} is damaged: {first}") from error


def single_device_model(
    settings: TransformerSettings, weights: Mapping[str, Tensor], device: torch.device
) -> Transformer:
    """Return the complete model with `weights` on `device`, in evaluation mode."""
    model = meta_model(settings)
    for name, value in weights.items():
        replace_parameter(model, name, value.to(device))
    return model.eval()
