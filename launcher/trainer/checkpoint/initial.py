"""Start a training from the weights of a model or of a checkpoint of any layout, with a new optimizer state."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from launcher.checkpoint.file_layout import MODEL
from launcher.checkpoint.index import is_checkpoint
from launcher.checkpoint.initial_model import check_initial, tokenizer_of
from launcher.core.errors import UnreadableError, UsageError
from launcher.mesh.boxes import full_box
from launcher.trainer.checkpoint.restore import candidates_of, good_files, index_of_all, read_values
from launcher.trainer.checkpoint.state import NONE, State, Training, check_finite, shapes_of
from launcher.trainer.parallel.world import World
from launcher.trainer.telemetry.heartbeat import getting_on
from launcher.trainer.training_files import Files


def initial_tokenizer(files: Files) -> Path | None:
    """Return the tokenizer file of a training that starts from a model, or None if it does not.

    A checkpoint to resume from has the same tokenizer as the model, which may have been removed.

    Raises:
        UnreadableError: it is missing or damaged.
    """
    if files.init_from is None:
        return None
    for checkpoint in candidates_of(files):
        with suppress(UnreadableError):
            return tokenizer_of(checkpoint)
    return tokenizer_of(files.init_from)


def start_from(
    source: Path, training: Training, state: State, world: World, *, buffers: Mapping[str, Tensor] = NONE
) -> None:
    """Load the weights and buffers of a model or a checkpoint. The rest of `state` stays. All ranks must call it.

    Raises:
        TlaunchError: on every rank, if the model is missing, damaged or not finite, or does not fit the training.
    """

    def check() -> bytes:
        check_initial(source, training.program, training.settings, training.defaults)
        return b""

    world.from_rank_0(check)
    read = partial(_read_model, source / MODEL, training, state, buffers)
    if is_checkpoint(source):
        index = index_of_all(source, world)
        _check_shapes(source, index.tensors, training, buffers)
        files = good_files(source, index, world)
        read = partial(read_values, source, index, files, state, buffers, only_weights=True)
    world.while_others_wait(read)
    world.while_others_wait(partial(check_finite, state, str(source)))
    state.restored(0)


def _read_model(path: Path, training: Training, state: State, buffers: Mapping[str, Tensor]) -> None:
    """Copy this rank's parts of the model at `path` to `state`, and the buffers to `buffers`."""
    try:
        with safe_open(path, framework="pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - not a dict
            _check_shapes(path, shapes, training, buffers)
            for wanted in state.owned_boxes():
                getting_on()
                here = wanted.box.within(full_box(shapes[wanted.name]))
                wanted.values[0].copy_(file.get_slice(wanted.name)[here])
            for name, buffer in buffers.items():
                buffer.copy_(file.get_tensor(name))
    except OSError as error:
        raise UnreadableError(f"{path}: {error.strerror or error}") from error
    except SafetensorError as error:
        raise UnreadableError(f"{path} is damaged: {error}") from error


def _check_shapes(
    source: Path, found: Mapping[str, tuple[int, ...]], training: Training, buffers: Mapping[str, Tensor]
) -> None:
    for name, shape in {**training.shapes, **shapes_of(buffers)}.items():
        if found.get(name) != shape:
            theirs = f"the shape {found[name]}" if name in found else "no such tensor"
            raise UsageError(f"{name} has the shape {shape} in this run, but {source} has {theirs}")
