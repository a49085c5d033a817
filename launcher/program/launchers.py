"""Command lines of other launchers: a program that starts ranks itself, which a rank should hardly do."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from launcher.core.frozen import frozen
from launcher.program.command import PythonCommand

PROGRAMS = frozenset(
    ("torchrun", "mpirun", "mpiexec", "mpiexec.hydra", "mpirun.openmpi", "mpirun.mpich", "orterun", "prterun", "srun",
     "msrun", "deepspeed", "horovodrun", "accelerate", "tlaunch")
)  # fmt: skip
MODULES = frozenset(("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "launcher"))
_STARTING = {"tlaunch": "run", "launcher": "run", "accelerate": "launch"}  # of these only this subcommand starts ranks
_COUNT = re.compile(
    r"(?:-n|-np|--np|--ntasks|--nproc[-_]per[-_]node|--num_processes|--num_gpus|--worker_num|--devices)(?:=(.*))?"
)
_INTERPRETER = re.compile(r"(?:.*/)?python(?:3(?:\.\d+)?)?")


@frozen
class OtherLauncher:
    """A launcher, and what it was asked to start, as far as its words tell."""

    name: str
    command: tuple[str, ...]  # of a rank; empty where it is not seen
    count: int | None  # of ranks on a server

    @property
    def as_tlaunch(self) -> str | None:
        """The command of tlaunch that starts the same program; None where that is not seen."""
        if not self.command:
            return None
        devices = "N" if self.count is None else self.count
        return f"tlaunch run --devices {devices} -- {shlex.join(self.command)}"


def other_launcher(argv: Sequence[str], python: PythonCommand | None) -> OtherLauncher | None:
    """Return the launcher that a command line is of; None where it is of none. `python`: the command, read as Python's own.

    >>> other_launcher(("torchrun", "--nproc-per-node=2", "ddp.py", "--lr", "1"), None).as_tlaunch
    'tlaunch run --devices 2 -- python ddp.py --lr 1'
    """
    if python is not None and python.kind == "module" and python.target in MODULES:
        program, name, words = python.target, f"python -m {python.target}", list(python.arguments)
    else:
        program = name = argv[0].rpartition("/")[2]
        words = list(argv[1:])
        if program not in PROGRAMS:
            return None
    if program in _STARTING and words[:1] != [_STARTING[program]]:
        return None
    started = (number for number, word in enumerate(words) if _INTERPRETER.fullmatch(word) or word.endswith(".py"))
    first = next(started, len(words))
    command = words[first:]
    if command and command[0].endswith(".py"):
        command.insert(0, "python")
    return OtherLauncher(name, tuple(command), _count(words[:first]))


def _count(options: Sequence[str]) -> int | None:
    """Return the number of ranks that options ask for."""
    for number, word in enumerate(options):
        if (found := _COUNT.fullmatch(word)) is not None:
            value = found[1] if found[1] is not None else (options[number + 1 : number + 2] or [""])[0]
            if value.isdecimal():
                return int(value)
    return None
