"""Compares the settings of a training with those of the checkpoint that it goes on from: some must be the same, others may change."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from launcher.checkpoint.index import Index
from launcher.core.codec import encode
from launcher.core.errors import UsageError

# Settings that decide what the state is of, and which pairs come next; None: all of the section. Others may change, and these
# below only where a person names them.
SAME_SETTINGS: Mapping[str, tuple[str, ...] | None] = {
    "model": None,
    "data": None,
    "train": ("seed", "batch_size", "batch_tokens"),
}
FREE_SETTINGS = frozenset(("model", name) for name in ("dropout", "attention_dropout", "activation_dropout"))
NAMED_SETTINGS = ("train.precision",)
# A checkpoint without these is of a version that had another default. Its tokenizer tells whether the text is the same.
LATER_SETTINGS = frozenset({("data", "normalise")})
_NONE: Mapping[str, Mapping[str, Any]] = {}


def differing_settings(
    index: Index,
    settings: Mapping[str, Any],
    named: Collection[str] = (),
    *,
    defaults: Mapping[str, Mapping[str, Any]] = _NONE,
) -> Iterator[tuple[str, Any, Any]]:
    """Yield each setting that must be the same to go on and is not, its value in the checkpoint, and the one in `settings`.

    `named`: those that a person has set. One that the checkpoint's version did not have counts as its default, and where
    there is none in `defaults` as the same; so does one of `LATER_SETTINGS`, and one that the program does not have.
    """
    for section, names in SAME_SETTINGS.items():
        ours = settings.get(section, {})
        known = {
            name: value for name, value in defaults.get(section, {}).items() if (section, name) not in LATER_SETTINGS
        }
        theirs = {**encode(known), **index.settings.get(section, {})}
        for name in names or ours:
            is_of_both = name in ours and name in theirs
            if (section, name) not in FREE_SETTINGS and is_of_both and theirs[name] != encode(ours[name]):
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
    """Check that a training of this program with these settings can go on from the checkpoint. `named`, `defaults`: as above.

    Raises:
        UsageError: it cannot.
    """
    if index.program != program:
        raise UsageError(f"{checkpoint} is of the program {index.program}, and this one is {program}")
    found = [
        (name, _as_set(theirs), _as_set(ours))
        for name, theirs, ours in differing_settings(index, settings, named, defaults=defaults)
    ]
    if found:
        differences = ", ".join(f"{name} = {their} (here {our})" for name, their, our in found)
        same = ", ".join(f"{name}={their}" for name, their, _ in found)
        may_change = all(name in NAMED_SETTINGS for name, *_ in found)
        changed = ", ".join(f"{name}={our}" for name, _, our in found)
        raise UsageError(
            f"{checkpoint} is of a training with other settings: {differences}",
            hint=f"set {same}, or {f'{changed} to change it' if may_change else 'do not resume'}",
        )


def _as_set(value: Any) -> str:
    """Return a value as a person sets it."""
    return json.dumps(value) if isinstance(value, bool) else str(value)
