"""Compare the settings of a training with a checkpoint to resume from. Some must be equal; others may change."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from launcher.checkpoint.index import Index
from launcher.core.codec import encode
from launcher.core.errors import UsageError

# Settings that define the model state and the order of the data; None means all of a section. Others may change.
# NAMED_SETTINGS may change only if the user sets them explicitly.
SAME_SETTINGS: Mapping[str, tuple[str, ...] | None] = {
    "model": None,
    "data": None,
    "train": ("seed", "batch_size", "batch_tokens"),
}
# The digest of the tokenizer is compared instead of the path of its file.
FREE_SETTINGS = frozenset(
    {("data", "tokenizer"), *(("model", name) for name in ("dropout", "attention_dropout", "activation_dropout"))}
)
# Settings that define the model, and must be equal to start a new training from it.
INITIAL_SETTINGS: Mapping[str, tuple[str, ...] | None] = {"model": None, "data": ("source_length", "target_length")}
NAMED_SETTINGS = ("train.precision",)
LANGUAGES = frozenset(("data", name) for name in ("source_language", "target_language"))  # "" is unknown
# A checkpoint without these is from a version with another default. Its tokenizer shows whether the text is the same.
LATER_SETTINGS = frozenset({("data", "normalise")})
_NONE: Mapping[str, Mapping[str, Any]] = {}


def differing_settings(
    index: Index,
    settings: Mapping[str, Any],
    named: Collection[str] = (),
    *,
    defaults: Mapping[str, Mapping[str, Any]] = _NONE,
) -> Iterator[tuple[str, Any, Any]]:
    """Yield (name, checkpoint's value, new value) for each setting that differs and therefore prevents a resume.

    `named` are settings that the user has set. A setting that the checkpoint's version lacked has its value in
    `defaults`. It counts as equal if it has none, is in `LATER_SETTINGS`, or is unknown to the program.
    """
    yield from _differing(SAME_SETTINGS, index.settings, settings, defaults)
    for dotted in NAMED_SETTINGS:
        section, _, name = dotted.partition(".")
        our, their = (found.get(section, {}).get(name) for found in (settings, index.settings))
        if dotted not in named and None not in {our, their} and their != our:
            yield dotted, their, our


def differing_initial_settings(
    theirs: Mapping[str, Any], ours: Mapping[str, Any], defaults: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, Any, Any]]:
    """Yield the settings that prevent a start from another training's model: (name, its value, this run's value).

    Lengths of sentences matter only for learned positions, because the model has a vector for each.
    """
    has_positions = ours.get("model", {}).get("positions") == "learned"
    same = INITIAL_SETTINGS if has_positions else {"model": None}
    yield from _differing(same, theirs, ours, defaults)


def changed_settings(index: Index, settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield the settings that a resumed training changes, such as "train.learning_rate 0.003 -> 0.001".

    Only settings that change how the model is trained are compared: those of `train`, and the dropout of the model.
    """
    for section in ("train", "model"):
        theirs = index.settings.get(section, {})
        for name, ours in settings.get(section, {}).items():
            if name in theirs and theirs[name] != encode(ours):
                yield f"{section}.{name} {as_set(theirs[name])} -> {as_set(ours)}"


def _differing(
    same: Mapping[str, tuple[str, ...] | None],
    their_settings: Mapping[str, Any],
    settings: Mapping[str, Any],
    defaults: Mapping[str, Mapping[str, Any]],
) -> Iterator[tuple[str, Any, Any]]:
    for section, names in same.items():
        ours = settings.get(section, {})
        known = {
            name: value for name, value in defaults.get(section, {}).items() if (section, name) not in LATER_SETTINGS
        }
        theirs = {**encode(known), **their_settings.get(section, {})}
        for name in names or ours:
            is_of_both = name in ours and name in theirs
            is_known = (section, name) not in LANGUAGES or "" not in {ours.get(name), theirs.get(name)}
            is_compared = (section, name) not in FREE_SETTINGS and is_known
            if is_compared and is_of_both and theirs[name] != encode(ours[name]):
                yield f"{section}.{name}", theirs[name], ours[name]


def check_settings(
    checkpoint: Path,
    index: Index,
    program: str,
    settings: Mapping[str, Any],
    named: Collection[str],
    *,
    defaults: Mapping[str, Mapping[str, Any]] = _NONE,
) -> None:
    """Raise UsageError if a training with `program` and `settings` cannot resume from the checkpoint.

    `named` and `defaults`: see `differing_settings`.
    """
    if index.program != program:
        raise UsageError(f"{checkpoint} belongs to the program {index.program}, but this run trains {program}")
    found = list(differing_settings(index, settings, named, defaults=defaults))
    if found:
        same = ", ".join(f"{name}={as_set(their)}" for name, their, _ in found)
        may_change = all(name in NAMED_SETTINGS for name, *_ in found)
        changed = ", ".join(f"{name}={as_set(our)}" for name, _, our in found)
        raise UsageError(
            f"{checkpoint} was trained with different settings: {', '.join(map(difference_text, found))}",
            hint=f"set {same}, or {f'{changed} to change it' if may_change else 'do not resume'}",
        )


def difference_text(difference: tuple[str, Any, Any]) -> str:
    """Describe a difference that `differing_settings` yields: "train.batch_size = 32 (this run: 64)"."""
    name, theirs, ours = difference
    return f"{name} = {as_set(theirs)} (this run: {as_set(ours)})"


def as_set(value: Any) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value)
