"""The program that ranks run, and properties of it that are determined before ranks start."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Literal

from launcher.cli.launch.external.launchers import other_launcher
from launcher.cli.run_options import preloaded_modules
from launcher.core.errors import UsageError
from launcher.core.frozen import frozen
from launcher.core.records import ResumedFrom
from launcher.core.resources import called_function
from launcher.engines.mpi_match import compiled_for
from launcher.logs.terminal import escaped
from launcher.program.preload_scan import modules_to_preload
from launcher.program.program_command import PythonCommand, parse_python
from launcher.program.program_files import MINDSPORE, has_installed, is_of_mpi4py, mentions_mpi
from launcher.program.whole_program import uses_mindspore, uses_mpi

MAX_RUN_NAME_CHARS = 50


@frozen
class Program:
    argv: tuple[str, ...]
    cwd: Path
    environment: Mapping[str, str]  # of the ranks, without the variables that differ between ranks
    recipe: str | None = None  # the bundled program's name; None: the user's own program
    continues: ResumedFrom | None = None  # by --resume
    init_from: str | None = None  # path of the initial model
    notes: tuple[str, ...] = ()  # of the bundled program

    @cached_property
    def python(self) -> PythonCommand | None:
        """The parsed Python command, or None if `argv` does not run Python or cannot run in forked ranks."""
        return parse_python(self.argv, self.environment.get("PATH"), self.cwd)

    @property
    def kind(self) -> Literal["script", "module", "code", "other"]:
        return "other" if self.python is None else self.python.kind

    @property
    def target(self) -> str:
        """The Python script or module as the user typed it. For other programs, the name of the executable."""
        return Path(self.argv[0]).name if self.python is None else self.python.target

    @property
    def run_name(self) -> str:
        """The default name of a run: the name of the function, script or module, not of the interpreter."""
        if self.recipe is not None:
            return self.recipe
        name = Path(self.argv[0]).name if self.kind == "code" else self.target
        if (function := called_function(self.argv)) is not None:
            name = function
        elif self.kind == "script":
            name = (self.cwd / name).resolve().stem
        return "-".join(re.findall(r"[A-Za-z0-9_.+]+", name)).strip(".")[:MAX_RUN_NAME_CHARS] or "command"

    @cached_property
    def uses_mpi(self) -> bool | None:
        """True if the ranks call MPI_Init, or None if this is unknown.

        It is unknown for shell scripts, programs in other languages and installed packages.
        """
        if self.recipe is not None:
            return False
        if self.python is None:
            return compiled_for(self.argv, self.environment.get("PATH"), self.cwd) is not None or None
        return uses_mpi(self.python, self.cwd, self.environment)

    @property
    def alone_in_mpi(self) -> str | None:
        """The program's name for the warning that mpi4py needs --engine, or None if the program does not use mpi4py.

        To save time, imports are searched only if the program's main file mentions mpi4py.
        """
        if self.recipe is not None or self.python is None:
            return None
        if not (mentions_mpi(self.python, self.cwd, self.environment) and self.uses_mpi):
            return None
        return "the program" if self.kind == "code" or is_of_mpi4py(self.python) else escaped(self.target)

    @cached_property
    def uses_mindspore(self) -> bool:
        """True if the program or its local modules import MindSpore and call MindSpore's init().

        False if MindSpore is not installed for the program's Python, because the import is then optional.
        """
        if self.recipe is not None or self.python is None:
            return False
        is_installed = has_installed(MINDSPORE, self.python, self.environment)
        return is_installed and uses_mindspore(self.python, self.cwd, self.environment)

    @property
    def launcher_within(self) -> str | None:
        """A warning with the equivalent tlaunch command if the program is another launcher, else None."""
        if self.recipe is not None or (found := other_launcher(self.argv, self.python)) is None:
            return None
        instead = ""
        if (line := found.as_tlaunch) is not None:
            table = "" if line.table is None else f" after `{escaped(line.table)}`"
            left_out = (*line.unknown, *line.missing)
            without = f" (without {escaped(', '.join(left_out))})" if left_out else ""
            instead = f"; to start the program once per rank, use `{escaped(line.run)}`{table}{without}"
        return f"{found.name} starts ranks itself, so every rank of this run would start more ranks{instead}"

    def preload(self, named: str | None) -> tuple[str, ...] | None:
        """Return the modules to import once for all ranks, or None if ranks are not forked.

        Raises UsageError if `named`, the value of --preload, is given, but the program's ranks cannot be forked.
        """
        if named is None:
            return None if self.python is None else modules_to_preload(self.python, self.cwd, self.environment)
        if self.python is None:
            raise UsageError(
                f"--preload forks ranks from a Python process, but {self.argv[0]} is not a Python command",
                hint="start the program as `python script.py` or `python -m module`, or leave out --preload",
            )
        return preloaded_modules(named)
