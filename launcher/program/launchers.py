"""Command lines of other launchers: a program that starts ranks itself, which a rank should hardly do."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from launcher.core.frozen import frozen
from launcher.program.command import PythonCommand

if TYPE_CHECKING:
    from launcher.program.translation import TlaunchLine

_OF_MPI = frozenset(
    ("mpirun", "mpiexec", "mpiexec.hydra", "mpirun.openmpi", "mpirun.mpich", "orterun", "prterun")
)  # fmt: skip
PROGRAMS = _OF_MPI | {"torchrun", "srun", "msrun", "deepspeed", "horovodrun", "accelerate", "tlaunch"}
MODULES = frozenset(("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "launcher"))
_STARTING = {"tlaunch": "run", "launcher": "run", "accelerate": "launch"}  # of these only this subcommand starts ranks
_BY_PYTHON = frozenset(("torchrun", "msrun", "torch.distributed.run", "torch.distributed.launch"))


@frozen
class OtherLauncher:
    """A launcher, and the line of tlaunch that starts the same program; None where that is not seen."""

    name: str
    as_tlaunch: TlaunchLine | None


def other_launcher(argv: Sequence[str], python: PythonCommand | None) -> OtherLauncher | None:
    """Return the launcher that a command line is of; None where it is of none. `python`: the command, read as Python's own.

    >>> other_launcher(("torchrun", "--nproc-per-node=2", "ddp.py", "--lr", "1"), None).as_tlaunch.run
    'tlaunch run --devices 2 -- python ddp.py --lr 1'
    """
    if python is not None and python.kind == "module" and python.target in MODULES:
        program, name, words = python.target, f"python -m {python.target}", list(python.arguments)
    else:
        program = name = argv[0].rpartition("/")[2]
        words = list(argv[1:])
        if program not in PROGRAMS:
            return None
    from launcher.program.translation import TlaunchLine, parsed, tlaunch_line  # noqa: PLC0415 - most programs are no launchers

    if program in _STARTING:
        if words[:1] != [_STARTING[program]]:
            return None
        if program != "accelerate":
            return OtherLauncher(name, TlaunchLine(None, shlex.join(("tlaunch", *words)), ()))
        del words[0]
    line = parsed(words, {})
    if not line.program:
        return OtherLauncher(name, None)
    return OtherLauncher(name, tlaunch_line(line, by_python=program in _BY_PYTHON, by_mpi=program in _OF_MPI))
