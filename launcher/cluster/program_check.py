"""A check that all servers have the same program, by digests of its files (launcher/program/digests.py)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.cluster.engine_output import listed
from launcher.core.env import PYTHONSAFEPATH
from launcher.core.frozen import frozen
from launcher.core.records import Server
from launcher.engines.assemble import Request
from launcher.logs.terminal import escaped
from launcher.program.digests import digests_of

QUESTION = "program"  # the name of this question in an examination
_FOR_PYTHON = ("PATH", "PYTHONPATH", PYTHONSAFEPATH)
SHOWN = 3  # files that a message lists; the others are counted
Digests = Mapping[str, str]  # by file name


@frozen
class Odd:
    """The servers whose program differs from the program on most servers."""

    servers: tuple[int, ...]  # their indices, ascending
    message: str
    hint: str


def odd_programs(programs: Mapping[int, Digests], servers: Sequence[Server]) -> Odd | None:
    """Compare the programs of all servers. Return the servers that differ from the majority, or None if all agree."""
    alike: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for index in sorted(programs):
        alike.setdefault(tuple(sorted(programs[index].items())), []).append(index)
    if len(alike) < 2:
        return None
    most = max(alike.values(), key=lambda indices: (len(indices), -indices[0]))
    odd = tuple(index for index in sorted(programs) if index not in most)
    usual = programs[most[0]]
    differing = sorted(
        {name for index in odd for name in {*programs[index], *usual} if programs[index].get(name) != usual.get(name)},
        # Files that all servers have come first.
        key=lambda name: (not all(name in one for one in programs.values()), name),
    )
    shown, more = ", ".join(map(escaped, differing[:SHOWN])), len(differing) - SHOWN
    differ = f" and {more} more files differ" if more > 0 else " differs" if len(differing) == 1 else " differ"
    ids = [server.server_id for server in servers]
    return Odd(
        odd,
        f"the program is not the same on {listed([ids[index] for index in odd])} as on {listed([ids[most[0]]])}: "
        f"{shown}{differ}",
        "copy the program to every server, or start the run with --allow-different-program",
    )


def question(words: Sequence[str], request: Request) -> dict[str, Any]:
    """Return the message that asks a server for the digests of a program."""
    variables = {name: value for name, value in request.user_env.items() if name in _FOR_PYTHON}
    return {"do": QUESTION, "words": list(words), "cwd": str(request.cwd), "variables": variables}


def answer_to(asked: Mapping[str, Any]) -> dict[str, Any]:
    try:
        environment = {**os.environ, **{str(name): str(value) for name, value in asked["variables"].items()}}
        return {"program": digests_of([str(word) for word in asked["words"]], environment, Path(asked["cwd"]))}
    except (KeyError, TypeError, AttributeError) as error:
        return {"trouble": f"{type(error).__name__}: {error}"}


def programs_of(answers: Mapping[int, Mapping[str, Any]]) -> dict[int, Digests]:
    return {
        index: {str(name): str(digest) for name, digest in program.items()}
        for index, answer in answers.items()
        if isinstance(program := answer.get("program"), Mapping)
    }
