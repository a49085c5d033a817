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
FREE_SETTINGS = frozenset(("model", name) for name in ("dropout", "attention_dropout", "activation_dropout"))
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
    for section, names in SAME_SETTINGS.items():
        ours = settings.get(section, {})
        known = {
            name: value for name, value in defaults.get(section, {}).items() if (section, name) not in LATER_SETTINGS
        }
        theirs = {**encode(known), **index.settings.get(section, {})}
        for name in names or ours:
            is_of_both = name in ours and name in theirs
            is_known = (section, name) not in LANGUAGES or "" not in {ours.get(name), theirs.get(name)}
            is_compared = (section, name) not in FREE_SETTINGS and is_known
            if is_compared and is_of_both and theirs[name] != encode(ours[name]):
                yield f"{section}.{name}", theirs[name], ours[name]
    for dotted in NAMED_SETTINGS:
        section, _, name = dotted.partition(".")
        our, their = (found.get(section, {}).get(name) for found in (settings, index.settings))
        if dotted not in named and None not in {our, their} and their != our:
            yield dotted, their, our


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
        same = ", ".join(f"{name}={_as_set(their)}" for name, their, _ in found)
        may_change = all(name in NAMED_SETTINGS for name, *_ in found)
        changed = ", ".join(f"{name}={_as_set(our)}" for name, _, our in found)
        raise UsageError(
            f"{checkpoint} was trained with different settings: {', '.join(map(difference_text, found))}",
            hint=f"set {same}, or {f'{changed} to change it' if may_change else 'do not resume'}",
        )


def difference_text(difference: tuple[str, Any, Any]) -> str:
    """Describe a difference that `differing_settings` yields: "train.batch_size = 32 (this run: 64)"."""
    name, theirs, ours = difference
    return f"{name} = {_as_set(theirs)} (this run: {_as_set(ours)})"


def _as_set(value: Any) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value)
