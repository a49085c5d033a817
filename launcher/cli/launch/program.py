"""The program that ranks run, and what this machine can find out about it before one starts."""

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
from launcher.engines.mpi_match import compiled_for
from launcher.logs.terminal import escaped
from launcher.program.preload_scan import modules_to_preload
from launcher.program.program_command import PythonCommand, parse_python
from launcher.program.program_files import MINDSPORE, has_installed, is_of_mpi4py, mentions_mpi
from launcher.program.whole_program import uses_mindspore, uses_mpi

MAX_RUN_NAME_CHARS = 50


@frozen
class Program:
    """A command line and where ranks start it. Each property is found out when it is asked for first."""

    argv: tuple[str, ...]
    cwd: Path
    environment: Mapping[str, str]  # of ranks, as far as it is known before there are any
    recipe: str | None = None  # the bundled program's name; None: the user's own program
    continues: ResumedFrom | None = None  # by --resume
    notes: tuple[str, ...] = ()  # of the bundled program

    @cached_property
    def python(self) -> PythonCommand | None:
        """The Python program that `argv` runs; None where it runs no Python, or in a way that cannot be imitated."""
        return parse_python(self.argv, self.environment.get("PATH"), self.cwd)

    @property
    def kind(self) -> Literal["script", "module", "code", "other"]:
        return "other" if self.python is None else self.python.kind

    @property
    def target(self) -> str:
        """The script or module as it was typed; the program's own name where there is none."""
        return Path(self.argv[0]).name if self.python is None else self.python.target

    @property
    def run_name(self) -> str:
        """The name of the script or module, by which a user distinguishes runs, not of the interpreter."""
        if self.recipe is not None:
            return self.recipe
        name = Path(self.argv[0]).name if self.kind == "code" else self.target
        if self.kind == "script":
            name = (self.cwd / name).resolve().stem
        return "-".join(re.findall(r"[A-Za-z0-9_.+]+", name)).strip(".")[:MAX_RUN_NAME_CHARS] or "command"

    @cached_property
    def uses_mpi(self) -> bool | None:
        """True where ranks call MPI_Init, None where that cannot be seen.

        A shell's script, a program of another language and an installed package may do so unseen.
        """
        if self.recipe is not None:
            return False
        if self.python is None:
            return compiled_for(self.argv, self.environment.get("PATH"), self.cwd) is not None or None
        return uses_mpi(self.python, self.cwd, self.environment)

    @property
    def alone_in_mpi(self) -> str | None:
        """The name of a program that imports mpi4py; None for others.

        Only a program that has the word in its own file is read: others start no later for it.
        """
        if self.recipe is not None or self.python is None:
            return None
        if not (mentions_mpi(self.python, self.cwd, self.environment) and self.uses_mpi):
            return None
        return "the program" if self.kind == "code" or is_of_mpi4py(self.python) else escaped(self.target)

    @cached_property
    def uses_mindspore(self) -> bool:
        """True where the program, or a module of its own, is seen to import MindSpore and to have its ranks meet.

        It is read only where its Python has MindSpore: others may import it where it is installed, and do without.
        """
        if self.recipe is not None or self.python is None:
            return False
        if not has_installed(MINDSPORE, self.python, self.environment):
            return False
        return uses_mindspore(self.python, self.cwd, self.environment)

    @property
    def launcher_within(self) -> str | None:
        """Says what a person should know of a program that starts ranks itself; None for others."""
        if self.recipe is not None:
            return None
        if (found := other_launcher(self.argv, self.python)) is None:
            return None
        instead = ""
        if (line := found.as_tlaunch) is not None:
            table = "" if line.table is None else f", with the rank table of `{escaped(line.table)}`,"
            left_out = (*line.unknown, *line.missing)
            without = f", without {escaped(', '.join(left_out))}" if left_out else ""
            instead = f"; `{escaped(line.run)}`{table} starts that program once for each rank{without}"
        return f"{found.name} starts ranks itself, and every rank of this run would start its own{instead}"

    def preload(self, named: str | None) -> tuple[str, ...] | None:
        """Return what is imported once for all ranks; None where each starts by itself. `named`: by --preload.

        Raises:
            UsageError: modules were named, and the program's ranks cannot be forked.
        """
        if named is not None:
            if self.python is None:
                raise UsageError(
                    f"--preload: {self.argv[0]} is not started as a Python program whose ranks could be forked",
                    hint="start it as `python script.py` or `python -m module`, or leave --preload out",
                )
            return preloaded_modules(named)
        if self.python is None:
            return None
        return modules_to_preload(self.python, self.cwd, self.environment)
