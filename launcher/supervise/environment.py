"""The whole environment of a rank, and how env.log shows it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from launcher.core.env import masked


def overlaid(inherited: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """`inherited` with `changes` laid over it; None takes a variable away."""
    merged = {name: value for name, value in inherited.items() if name not in changes}
    return merged | {name: value for name, value in changes.items() if value is not None}


def common(environments: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The variables that have the same value in all of them."""
    first = environments[0] if environments else {}
    return {name: value for name, value in first.items() if all(other.get(name) == value for other in environments)}


def render_environment(environment: Mapping[str, str]) -> str:
    r"""One NAME=VALUE a line, sorted, secrets masked; a newline in a value is shown as \n, a backslash as \\."""
    lines = (f"{name}={_on_one_line(masked(name, environment[name]))}\n" for name in sorted(environment))
    return "".join(lines)


def write_environment(path: Path, environment: Mapping[str, str]) -> None:
    """Write env.log, readable by its owner only.

    Raises:
        OSError: the directory is gone, the disk is full, ...
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123 - a descriptor
        file.write(render_environment(environment))


def _on_one_line(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
