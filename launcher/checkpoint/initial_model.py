"""The model whose weights and tokenizer a new training starts from: a model directory, or a checkpoint of any layout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.checkpoint.index import TOKENIZER, damage_of, is_checkpoint, read_index
from launcher.checkpoint.model_merge import read_config
from launcher.checkpoint.same_settings import as_set, difference_text, differing_initial_settings
from launcher.core.errors import UnreadableError, UsageError
from launcher.core.resources import at_home


def check_initial(
    source: Path, program: str, settings: Mapping[str, Any], defaults: Mapping[str, Mapping[str, Any]]
) -> None:
    """Raise an error if a training with `program` and `settings` cannot start from the model at `source`.

    Raises UnreadableError if the model is missing or damaged, and UsageError if it has another program, other sizes or
    another tokenizer. `defaults` are those of all settings; older models may lack some.
    """
    if is_checkpoint(source):
        index = read_index(source)
        their_program, theirs = index.program, index.settings
    else:
        their_program, theirs = read_config(source)
    if their_program != program:
        raise UsageError(f"{source} belongs to the program {their_program}, but this run trains {program}")
    if found := list(differing_initial_settings(theirs, settings, defaults)):
        differences = ", ".join(map(difference_text, found))
        same = " ".join(f"--set {name}={as_set(their)}" for name, their, _ in found)
        raise UsageError(f"{source} was trained with different settings: {differences}", hint=f"use `{same}`")
    if chosen := settings.get("data", {}).get("tokenizer"):
        try:
            is_same = Path(at_home(chosen)).read_bytes() == tokenizer_of(source).read_bytes()
        except OSError as error:
            raise UnreadableError(f"{error.filename}: {error.strerror}") from error
        if not is_same:
            raise UsageError(
                f"data.tokenizer = {chosen} is not the tokenizer of {source}",
                hint="leave out data.tokenizer; a training with --init-from uses the tokenizer of its initial model",
            )


def tokenizer_of(source: Path) -> Path:
    """Return the tokenizer file of a model or a checkpoint. Raise UnreadableError if it is missing or damaged."""
    path = source / TOKENIZER
    if is_checkpoint(source) and (file := read_index(source).files.get(TOKENIZER)) is not None:
        if (damage := damage_of(source, TOKENIZER, file)) is not None:
            raise UnreadableError(damage)
    elif not path.is_file():
        raise UnreadableError(f"{path} is missing", hint="choose a model with a tokenizer")
    return path
