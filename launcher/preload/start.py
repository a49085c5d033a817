"""The first step: start a program at once, or serve forks of it."""

from __future__ import annotations

import os
import sys

from . import failure, names
from .import_isolation import forget_collisions, note_imports
from .run_main import Program, execute, prepare

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def main(born_with: dict[str, Any]) -> None:
    """Do what `sys.argv` says; return or raise as the program does. `born_with`: a script's first globals."""
    if sys.argv[1] == "run":
        _, _, device_dir, kind, target, *arguments = sys.argv
        note_imports()
        program = Program(kind, target, arguments)
        prepare(program, born_with)
        names.show(program.command_line)
        failure.install(os.path.abspath(device_dir))
    else:
        from . import serve  # needs more of the library than a program should find loaded

        program = serve.serve(int(sys.argv[2]), born_with)  # returns in every forked rank
    forget_collisions()
    execute(program)
