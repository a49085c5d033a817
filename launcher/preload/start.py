"""The first step: start a program at once, or serve forks of it."""

from __future__ import annotations

import os
import sys

from . import LOADED_BEFORE, failure
from .run_main import Program, execute, prepare, show_command_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Modules that this package imported for its own sake, and that must not be taken for the program's of the same name.
_own: set[str] = set()


def main(born_with: dict[str, Any]) -> None:
    """Do what `sys.argv` says; return or raise as the program does. `born_with`: a script's first globals."""
    if sys.argv[1] == "run":
        _, _, device_dir, kind, target, *arguments = sys.argv
        note_imports()
        program = Program(kind, target, arguments)
        prepare(program, born_with)
        show_command_line(program.command_line)
        failure.install(os.path.abspath(device_dir))
    else:
        from . import serve  # needs more of the library than a program should find loaded

        program = serve.serve(int(sys.argv[2]), born_with)  # returns in every forked rank
    _forget_collisions()
    execute(program)


def note_imports() -> None:
    """Note what is imported now as this package's. Call before anything is imported for the program."""
    _own.update(set(sys.modules) - LOADED_BEFORE)


def _forget_collisions() -> None:
    """Let the program import its own `struct.py` where this package had imported the library's.

    Only where there is such a file: loading a module of the library twice is harmless, but not free.
    """
    if not (_own and sys.path):
        return
    try:
        beside = {name.partition(".")[0] for name in os.listdir(sys.path[0] or ".")}
    except OSError:
        return
    for name in _own:
        if name.partition(".")[0] in beside:
            sys.modules.pop(name, None)
