"""Detect another launcher in a command line, and translate the line to `tlaunch run`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from launcher.cli.launch.external.rank_scripts import rank_script
from launcher.core.frozen import frozen
from launcher.core.text import shell_words
from launcher.program.program_command import PythonCommand

if TYPE_CHECKING:
    from launcher.cli.launch.external.options import Launcher
    from launcher.cli.launch.external.tlaunch_line import TlaunchLine

# Program name: launcher; None: its lines are not translated (horovodrun uses other rendezvous variables).
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
_STARTING = {"tlaunch": "run", "launcher": "run", "accelerate": "launch"}  # program: its subcommand that starts ranks
_BY_MPI_OR_SLURM = frozenset(("mpirun", "srun"))  # all others start the program with Python
_GIVE_LOCAL_RANK = frozenset(("deepspeed", "torch.distributed.launch"))
_WITHOUT_LOCAL_RANK = frozenset(("--use-env", "--no-local-rank"))


@frozen
class OtherLauncher:
    name: str
    as_tlaunch: TlaunchLine | None  # the equivalent tlaunch command; None if there is none
    unclear: tuple[str, ...] = ()  # the options that cannot be translated


def other_launcher(argv: Sequence[str], python: PythonCommand | None) -> OtherLauncher | None:
    """Return the launcher that a command line starts, for example torchrun, or None for other commands.

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
            script = rank_script(argv)
            return script and OtherLauncher(*script)
        launcher = PROGRAMS[program]
    from launcher.cli.launch.external import command_lines, tlaunch_line  # only for other launchers

    if program in _STARTING:
        if words[:1] != [_STARTING[program]]:
            return None
        if program != "accelerate":
            return OtherLauncher(name, tlaunch_line.TlaunchLine(None, shell_words(("tlaunch", *words))))
        del words[0]
    if launcher is None:
        return OtherLauncher(name, None)
    line = command_lines.parse_line(words, {}, launcher)
    found = tlaunch_line.tlaunch_line(line, by_python=launcher not in _BY_MPI_OR_SLURM) if line.program else None
    if found is None:
        return OtherLauncher(name, None, (*line.unknown, *(each.name for each in line.of("unclear"))))
    if program in _GIVE_LOCAL_RANK and not _WITHOUT_LOCAL_RANK & {each.key for each in line.typed}:
        note = f"ranks get LOCAL_RANK in their environment, not {program}'s argument --local_rank"
        found = replace(found, notes=(*found.notes, note))
    return OtherLauncher(name, found)
