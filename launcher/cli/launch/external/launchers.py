"""Command lines of other launchers: a program that starts ranks itself, which a rank should hardly do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from launcher.core.frozen import frozen
from launcher.core.text import shell_words
from launcher.program.program_command import PythonCommand

if TYPE_CHECKING:
    from launcher.cli.launch.external.options import Launcher
    from launcher.cli.launch.external.tlaunch_line import TlaunchLine

# By their names; None: their lines are not translated (horovodrun's ranks meet by variables of its own).
PROGRAMS: Mapping[str, Launcher | None] = {
    **dict.fromkeys(
        ("mpirun", "mpiexec", "mpiexec.hydra", "mpirun.openmpi", "mpirun.mpich", "orterun", "prterun"), "mpirun"
    ),
    "torchrun": "torchrun", "msrun": "msrun", "deepspeed": "deepspeed", "accelerate": "accelerate", "srun": "srun",
    "horovodrun": None, "tlaunch": None,
}  # fmt: skip
MODULES: Mapping[str, Launcher | None] = {
    "torch.distributed.run": "torchrun", "torch.distributed.launch": "torchrun", "accelerate.commands.launch": "accelerate",
    "launcher": None,
}  # fmt: skip
_STARTING = {"tlaunch": "run", "launcher": "run", "accelerate": "launch"}  # of these only this subcommand starts ranks
_BY_MPI_OR_SLURM = frozenset(("mpirun", "srun"))  # all others start a program by Python
_GIVE_LOCAL_RANK = frozenset(("deepspeed", "torch.distributed.launch"))
_WITHOUT_LOCAL_RANK = frozenset(("--use-env", "--no-local-rank"))


@frozen
class OtherLauncher:
    """A launcher, and the line of tlaunch that starts the same program; None where that is not seen."""

    name: str
    as_tlaunch: TlaunchLine | None
    unclear: tuple[str, ...] = ()  # the options because of which there is no line


def other_launcher(argv: Sequence[str], python: PythonCommand | None) -> OtherLauncher | None:
    """Return the launcher that a command line is of; None where it is of none. `python`: the command, read as Python's own.

    >>> other_launcher(("torchrun", "--nproc-per-node=2", "ddp.py", "--lr", "1"), None).as_tlaunch.run
    'tlaunch run --devices 2 -- python ddp.py --lr 1'
    """
    if python is not None and python.kind == "module" and python.target in MODULES:
        program, name, words = python.target, f"python -m {python.target}", list(python.arguments)
        launcher = MODULES[program]
    else:
        program = name = argv[0].rpartition("/")[2]
        words = list(argv[1:])
        if program not in PROGRAMS:
            return None
        launcher = PROGRAMS[program]
    if program in _STARTING:
        if words[:1] != [_STARTING[program]]:
            return None
        if program != "accelerate":
            from launcher.cli.launch.external.tlaunch_line import TlaunchLine

            return OtherLauncher(name, TlaunchLine(None, shell_words(("tlaunch", *words))))
        del words[0]
    return OtherLauncher(name, None) if launcher is None else _as_tlaunch(name, program, launcher, words)


def _as_tlaunch(name: str, program: str, launcher: Launcher, words: Sequence[str]) -> OtherLauncher:
    from launcher.cli.launch.external.command_lines import parse_line
    from launcher.cli.launch.external.tlaunch_line import tlaunch_line

    line = parse_line(words, {}, launcher)
    found = tlaunch_line(line, by_python=launcher not in _BY_MPI_OR_SLURM) if line.program else None
    if found is None:
        return OtherLauncher(name, None, (*line.unknown, *(each.name for each in line.of("unclear"))))
    if program in _GIVE_LOCAL_RANK and not _WITHOUT_LOCAL_RANK & {each.key for each in line.typed}:
        note = f"ranks have LOCAL_RANK; {program}'s --local_rank is not among their arguments"
        found = replace(found, notes=(*found.notes, note))
    return OtherLauncher(name, found)
